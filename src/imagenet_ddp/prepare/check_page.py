"""Make check.html, the page of prepare=check, from its sections."""

from collections.abc import Callable, Sequence
from pathlib import Path

from imagenet_ddp.pages.render import FOLDER, render
from imagenet_ddp.pages.section import Checked, Section
from imagenet_ddp.pages.sections.classes import classes
from imagenet_ddp.pages.sections.exact_copies import exact_copies
from imagenet_ddp.pages.sections.expected_accuracy import expected_accuracy
from imagenet_ddp.pages.sections.image_map import image_map
from imagenet_ddp.pages.sections.near_copies import near_copies
from imagenet_ddp.pages.sections.quality import quality
from imagenet_ddp.pages.sections.unreadable import unreadable
from imagenet_ddp.pages.sections.wrong_labels import wrong_labels

PAGE = "check.html"
MARKER = "imagenet_ddp.prepare"

# in the order of the page; a function returns None if its section has nothing to say
SECTIONS: tuple[Callable[[Checked], Section | None], ...] = (
    expected_accuracy,
    unreadable,
    exact_copies,
    near_copies,
    wrong_labels,
    quality,
    classes,
    image_map,
)


def make_sections(checked: Checked) -> list[Section]:
    return [section for make in SECTIONS if (section := make(checked)) is not None]


def check_page(checked: Checked, sections: Sequence[Section], notes: Sequence[str] = ()) -> bytes:
    """Return the page. notes: sentences below what is good and what is to be mended."""
    findings = [finding for section in sections for finding in section.findings]
    to_mend = sorted((each for each in findings if each.urgency), key=lambda each: -each.urgency)
    splits = {"train": "for training", "val": "for validation"}
    numbers = [f"{len(images):,} {splits[name]}" for name, images in checked.images.items()]
    figures = [
        *(figure for section in sections for figure in section.figures),
        ("images", f"{sum(map(len, checked.images.values())):,}", ", ".join(numbers)),
        ("classes", f"{len(checked.labels):,}", ""),
    ]
    where = f" in {name}" if (name := Path(checked.root).name) else ""
    return render(FOLDER / "check.html", {
        "marker": MARKER, "title": f"Check of the images{where}", "name": checked.root,
        "figures": figures, "to_mend": to_mend, "good": [each for each in findings if not each.urgency],
        "notes": notes, "sections": [section for section in sections if section.title],
    })  # fmt: skip
