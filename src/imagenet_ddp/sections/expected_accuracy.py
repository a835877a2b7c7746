"""Section: the accuracy to expect on new images, from a regression to the features of a trained net."""

import numpy as np

from imagenet_ddp.curation.accuracies import grouped_sentence, uneven_sentence
from imagenet_ddp.curation.interval import interval_words
from imagenet_ddp.curation.wrong_labels import FILE as WRONG_LABELS
from imagenet_ddp.data.sources.groups import groups_of
from imagenet_ddp.sections.section import Checked, Finding, Section, Urgency
from imagenet_ddp.system.text import alphabetical, count_noun, percent

NAME = "expected_accuracy"
GOOD = 0.8  # accuracy; below, the classes or the images are worth a look first


def expected_accuracy(checked: Checked) -> Section | None:
    """Without a net, the section says what was not checked, and how to get one."""
    features, probabilities, curve = checked.features, checked.probabilities, checked.curve
    if features is None or probabilities is None or curve is None:
        return _not_checked(checked)
    is_right = probabilities.argmax(1) == features.targets
    whole = curve.accuracies[-1]
    words = f"{in_words(whole.share)} new images like these will be recognised"
    range_words = interval_words(whole.num_right, whole.num_images)
    counts, right = (
        np.bincount(targets, minlength=len(features.labels))
        for targets in (features.targets, features.targets[is_right])
    )
    rows = [
        (label, int(number), int(good) / int(number), interval_words(int(good), int(number)))
        for label, number, good in zip(features.labels, counts, right, strict=True)
        if number
    ]
    rows.sort(key=lambda row: (row[2], -row[1], alphabetical(row[0])))
    mistakes = [(features.paths[row], features.classes[features.targets[row]]) for row in np.flatnonzero(~is_right)]
    num_doubtful = sum(not checked.is_kept(WRONG_LABELS, path, label) for path, label in mistakes)
    grouped = grouped_sentence(groups_of(*checked.images.values()))
    more = f"{grouped} {uneven_sentence(features.targets, is_right, features.labels)}".strip()
    context = {
        "command": "", "more": more, "words": words, "range": range_words, "num_doubtful": num_doubtful,
        "share": percent(whole.share, 1), "rows": rows,
        "curve": curve.sentence, "net": features.net, "total": count_noun(len(is_right), "image"),
        "sizes": [(f"{number:,}", percent(each.share, 1))
                  for number, each in zip(curve.num_images, curve.accuracies, strict=True)],
    }  # fmt: skip
    figure = ("expected accuracy", percent(whole.share, 1), range_words)
    finding = Finding(
        f"Only {words[0].lower()}{words[1:]} ({range_words} of them, a 95 % interval).", Urgency.SOON, NAME
    )
    findings = [finding] if whole.share < GOOD else []  # else the figure says it
    line = f"Expected accuracy on new images like these: {percent(whole.share, 1)} ({range_words}). {more}".rstrip()
    return Section(NAME, "Accuracy", context, findings, "What accuracy to expect", [figure], lines=[line])


def _not_checked(checked: Checked) -> Section | None:
    what = "Wrong labels, near-copies" if checked.features is None else "Wrong labels"
    text = f"{what} and the expected accuracy were not checked: "
    if checked.why_unseen:
        text += checked.why_unseen
        if checked.features is None:
            return Section(NAME, "", missing=[text])
        return Section(NAME, "", findings=[Finding(text, Urgency.SOON)])
    if not checked.command or len(checked.labels) < 2:
        return None
    finding = Finding(f"{text}no net has seen the images. Hint: run `{checked.command}`.", Urgency.LATER, NAME)
    return Section(NAME, "Accuracy", {"command": checked.command}, [finding], "What accuracy to expect")


def in_words(share: float) -> str:
    """Return a share as people say it, such as "About 19 of 20"."""
    for number in (10, 20, 50, 100, 200):
        if 0 < (part := round(share * number)) < number and abs(part / number - share) < 0.1 / number**0.5 / 3:
            return f"About {part} of {number}"
    return "Nearly all" if share > 0.5 else "Hardly any"
