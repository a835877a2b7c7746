"""Section: the images whose label is likely wrong."""

from functools import partial

from imagenet_ddp.curation import wrong_labels as curation
from imagenet_ddp.sections.section import Checked, Finding, Section, Urgency, other_classes
from imagenet_ddp.system.text import count_noun

NAME = "wrong_labels"
NUM_PICTURES = 96


def wrong_labels(checked: Checked) -> Section | None:
    """The list holds every image that the finding counts."""
    features, probabilities = checked.features, checked.probabilities
    if features is None or probabilities is None:
        return None
    found = curation.of_probabilities(features.targets, probabilities)
    splits = [features.place(row)[0] for row in found.rows.tolist()]
    content = curation.list_csv(
        found, features.paths, features.classes, features.targets, {"split": splits}, checked.delimiter,
        partial(checked.decided, curation.FILE),
    )  # fmt: skip
    files = {curation.FILE: content}
    labels = [features.classes[target] for target in features.targets.tolist()]
    to_mend = [(row, suggested) for row, suggested in zip(found.rows.tolist(), found.suggested.tolist(), strict=True)
               if not checked.is_kept(curation.FILE, features.paths[row], labels[row])]  # fmt: skip
    number, total = len(to_mend), count_noun(len(features.targets), "image")
    num_kept = len(found.rows) - number
    if not number:
        but = f", but for {num_kept:,} whose label you have decided" if num_kept else ""
        finding = Finding(f"Each of {total} looks like the class of its label{but}.", Urgency.GOOD)
        return Section(NAME, "", findings=[finding], files=files)
    looks, aim = f"{number:,} look", "look at the first ones, and correct wrong labels"
    if number == 1:
        looks, aim = "1 looks", "look at it, and correct the label if it is wrong"
    text = f"{looks} more like another class than like the label: {aim}."

    def classes(row: int, suggested: int) -> list[str]:
        return other_classes([features.classes[suggested]], features.classes, labels[row])

    pictures = [
        checked.item(
            *features.place(row),
            choice=checked.choice(curation.FILE, features.paths[row], labels[row], classes=classes(row, suggested)),
            suggested=features.labels[suggested], label_probability=float(probabilities[row, features.targets[row]]),
            probability=float(probabilities[row, suggested]),
        )
        for row, suggested in to_mend[:NUM_PICTURES]
    ]  # fmt: skip
    command = checked.relabel.get(curation.FILE, "")
    context = {"pictures": pictures, "number": number, "num_kept": num_kept, "file": curation.FILE, "command": command,
               "removes": checked.can_remove}  # fmt: skip
    finding = Finding(f"Of {total}, {text}", Urgency.SOON, NAME)
    return Section(
        NAME, "Wrong labels", context, [finding], "Labels that may be wrong", files=files, decide=curation.FILE
    )
