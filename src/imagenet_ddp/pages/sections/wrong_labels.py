"""Section: the images whose label is likely wrong."""

from imagenet_ddp.curation import wrong_labels as curation
from imagenet_ddp.pages.section import Checked, Finding, Section, Urgency
from imagenet_ddp.system.text import count_noun

NAME = "wrong_labels"
NUM_PICTURES = 96


def wrong_labels(checked: Checked) -> Section | None:
    """The list holds every image that the finding counts."""
    features, probabilities = checked.features, checked.probabilities
    if features is None or probabilities is None:
        return None
    found = curation.of_probabilities(features.targets, probabilities)
    number, total = len(found.rows), count_noun(len(features.targets), "image")
    if not number:
        finding = Finding(f"Each of {total} looks like the class of its label.", Urgency.GOOD)
        files = {curation.FILE: curation.list_csv(found, features, checked.delimiter)}
        return Section(NAME, "", findings=[finding], files=files)
    looks = "1 looks" if number == 1 else f"{number:,} look"
    text = f"{looks} more like another class than like the label: look at the first ones, and correct wrong labels."
    pictures = [
        checked.item(
            *features.place(row),
            suggested=features.labels[suggested], label_probability=float(probabilities[row, features.targets[row]]),
            probability=float(probabilities[row, suggested]),
        )
        for row, suggested in zip(found.rows[:NUM_PICTURES].tolist(), found.suggested.tolist(), strict=False)
    ]  # fmt: skip
    context = {"pictures": pictures, "number": number, "file": curation.FILE, "command": checked.relabel}
    finding = Finding(f"Of {total}, {text}", Urgency.SOON, NAME)
    files = {curation.FILE: curation.list_csv(found, features, checked.delimiter, checked.decisions)}
    lines = [f"When you have written decisions into {curation.FILE}: {checked.relabel}"] if checked.relabel else []
    return Section(NAME, "Wrong labels", context, [finding], "Labels that may be wrong", files=files, lines=lines)
