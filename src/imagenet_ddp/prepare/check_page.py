"""Make check.html, the page of prepare=check, from its sections."""

from collections.abc import Callable, Sequence
from pathlib import Path

from imagenet_ddp.curation.decision_lists import DECISIONS
from imagenet_ddp.pages.render import render, way_from
from imagenet_ddp.sections.classes import classes
from imagenet_ddp.sections.exact_copies import exact_copies
from imagenet_ddp.sections.expected_accuracy import expected_accuracy
from imagenet_ddp.sections.image_map import image_map
from imagenet_ddp.sections.near_copies import near_copies
from imagenet_ddp.sections.outside import outside
from imagenet_ddp.sections.quality import quality
from imagenet_ddp.sections.section import Checked, Finding, Section, Urgency
from imagenet_ddp.sections.unreadable import unreadable
from imagenet_ddp.sections.wrong_labels import wrong_labels

PAGE = "check.html"
MARKER = "imagenet_ddp.prepare"
TO_MEND = "What to mend first"

# what is equally urgent is in this order; a function returns None if its section has nothing to say
SECTIONS: tuple[Callable[[Checked], Section | None], ...] = (
    expected_accuracy,
    exact_copies,
    near_copies,
    unreadable,
    outside,
    wrong_labels,
    quality,
    classes,
    image_map,
)


def make_sections(checked: Checked) -> list[Section]:
    """Return the sections in the order of the page, the most urgent first."""
    sections = [section for make in SECTIONS if (section := make(checked)) is not None]
    return sorted(sections, key=lambda section: -max((each.urgency for each in section.findings), default=0))


def find_faults(checked: Checked, sections: Sequence[Section]) -> list[Finding]:
    """Return what is to be mended, the most urgent first: the doubts, then the sections in their order on the page.
    sections: result of make_sections."""
    found = [Finding(text[:1].upper() + text[1:], Urgency.FIRST) for text in checked.doubts]
    found += [finding for section in sections for finding in section.findings if finding.urgency]
    return sorted(found, key=lambda each: -each.urgency)


def nothing_found(sections: Sequence[Section]) -> str:
    """Return the sentence of a check without findings."""
    is_part = any(section.missing for section in sections)
    return f"Nothing was found that has to be mended{', but not everything was checked' * is_part}."


def check_page(
    checked: Checked, sections: Sequence[Section], to_mend: Sequence[Finding], notes: Sequence[str], out: Path
) -> bytes:
    """Return the page. to_mend: result of find_faults. notes: sentences below what is good and what is to be mended.
    out: the folder of the page."""
    good = [finding for section in sections for finding in section.findings if not finding.urgency]
    splits = {"train": "for training", "val": "for validation"}
    numbers = [f"{len(images):,} {splits[name]}" for name, images in checked.images.items()]
    figures = [
        *(figure for section in sections for figure in section.figures),
        ("images", f"{sum(map(len, checked.images.values())):,}", ", ".join(numbers)),
    ]
    where = f" in {name}" if (name := Path(checked.root).name) else ""
    return render(Path(__file__).with_name(PAGE), {
        "marker": MARKER, "title": f"Check of the images{where}", "name": checked.root,
        "folder": way_from(out / PAGE),
        "figures": figures, "faults": (TO_MEND, to_mend, nothing_found(sections)), "good": good,
        "notes": notes, "sections": [section for section in sections if section.title],
        "missing": [text for section in sections for text in section.missing],
        "decides": checked.relabel[DECISIONS] if any(each.decide in checked.relabel for each in sections) else "",
        "removes": checked.can_remove, "train": checked.train, "to_train": checked.to_train,
    })  # fmt: skip
