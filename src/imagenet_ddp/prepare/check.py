"""Run prepare=check: decode every image, and report bad, duplicate, missing and unevenly distributed images."""

import contextlib
import hashlib
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from imagenet_ddp.cli.correct import apply
from imagenet_ddp.cli.overrides import quoted, shell_line
from imagenet_ddp.cli.photograph_lines import OF_IMAGES, OPTIONS
from imagenet_ddp.config.schema.data import FolderData
from imagenet_ddp.curation.decision_lists import DECISIONS, earlier_decisions, require_readable
from imagenet_ddp.curation.near_copies import FILE as NEAR_COPIES
from imagenet_ddp.curation.quality import ROW, Quality, measure
from imagenet_ddp.curation.right_labels import decided_labels
from imagenet_ddp.curation.wrong_labels import FILE as WRONG_LABELS
from imagenet_ddp.data.dataset_summary import DatasetSummary, summarise_source
from imagenet_ddp.data.decoding.decode import open_picture
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.decoding.pixel_conversion import Ignored, is_rotated
from imagenet_ddp.data.ignored_parts import IgnoredParts
from imagenet_ddp.data.sources.base import Images, Source
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.prepare.check_page import PAGE, TO_MEND, check_page, find_faults, make_sections, nothing_found
from imagenet_ddp.prepare.features_of_images import with_features
from imagenet_ddp.prepare.options import Plan, can_relabel
from imagenet_ddp.prepare.worker_pool import process_images
from imagenet_ddp.runs import folder as run_folder
from imagenet_ddp.runs.disk_errors import disk_errors_as_run_error
from imagenet_ddp.runs.signals import exit_on_signal
from imagenet_ddp.sections.exact_copies import FILE as DUPLICATES
from imagenet_ddp.sections.outside import FILE as OUTSIDE
from imagenet_ddp.sections.quality import FILE as QUALITY
from imagenet_ddp.sections.section import Checked, Copy, Urgency
from imagenet_ddp.sections.unreadable import FILE as BAD_IMAGES
from imagenet_ddp.system.console import Progress, print_message
from imagenet_ddp.system.files import atomic_write
from imagenet_ddp.system.text import count_noun, without_secrets

LISTS = (BAD_IMAGES, OUTSIDE, DUPLICATES, NEAR_COPIES, WRONG_LABELS, QUALITY)  # into which a person writes decisions
WINDOW = 4096  # finished probes that may wait for a slow one before them
HEADER_BYTES = 65536  # with the EXIF data of a photograph, and without those of a second image in the file
MAX_PRINTED = 20  # bad images named in the summary


class Probe(NamedTuple):
    """The result for one image. reason: why it cannot be decoded; None if it can. content_hash: 64-bit BLAKE2b of the
    file's bytes, or of the pixels if there is no file; 0 if they could not be read. is_rotated: by its EXIF data.
    ignored: parts of its file that are not used. quality: of its pixels."""

    reason: str | None
    content_hash: int = 0
    is_rotated: bool = False
    ignored: Ignored = Ignored.NONE
    quality: Quality | None = None


class Probes(NamedTuple):
    """The results for all images. bad: split, position and reason of each that cannot be decoded. num_rotated: by
    split. contents, qualities: split -> the content_hash and the quality of each image."""

    bad: list[tuple[str, int, str]]
    num_rotated: Counter[str]
    ignored: IgnoredParts
    contents: dict[str, np.ndarray]
    qualities: dict[str, np.ndarray]


def run(plan: Plan) -> int:
    """Check the images and return the exit code: 1 if something bad was found, else 0. Raises ConfigError if the
    options are refused, RunError if the check fails."""
    config, data = plan.config, plan.config.data
    for name in LISTS if config.out is not None else ():
        require_readable(plan.out / name)
    source = open_source(data, config.seed, purpose=config.purpose, found=plan.scan)
    layout = summarise_source(config.seed, source)
    images = {name: split.images for name, split in layout.splits.items()}
    write = partial(print_message, stream=sys.stdout)
    number = sum(map(len, images.values()))
    write(f"Checking {count_noun(number, 'image')} of {count_noun(len(source.classes), 'class')}.")
    probes = _probe_all(plan, images)
    copies = find_duplicates(probes.contents, images)
    how = "turned" if data.exif_orientation else "not turned (data.exif_orientation=false)"
    rotated = [
        f"{name}: {count_noun(number, 'photograph')} with an EXIF rotation or mirroring, {how}"
        for name, number in probes.num_rotated.items()
        if number
    ]
    wrong_root = [str(source.wrong_root).rstrip(".")] if source.wrong_root else []  # what to mend first names it
    of_files = [text.rstrip(".") for text in (*layout.notes, *rotated, *probes.ignored.lines(images))]
    of_files = [text for text in of_files if text not in wrong_root]
    for line in (*_what_can_be_read(layout, images, probes.bad), *(f"note: {text}" for text in of_files)):
        write(line)
    # only now: what a long check has found is printed even if the files cannot be written
    out = run_folder.make_new(plan.out) if config.out is None else plan.out
    with disk_errors_as_run_error(out):
        out.mkdir(parents=True, exist_ok=True)
    labelled = (
        (each.path(at), source.classes[int(each.targets[at])])
        for each in images.values()
        for at in range(len(each) if each.targets.ndim == 1 else 0)
    )
    checked = Checked(
        data.root or "", source.labels, images, probes.bad, copies, probes.qualities, delimiter=config.csv_delimiter,
        decisions={**{name: earlier_decisions(out / name, out / DECISIONS) for name in LISTS},
                   WRONG_LABELS: decided_labels(out / WRONG_LABELS, labelled, Path.cwd(), data.root)},
        relabel=_relabel_lines(plan, out),
        can_remove=isinstance(data, FolderData), doubts=[*_check_again(plan, source), *map(str, layout.mistakes)],
        classes=source.classes, copies_outside=find_copies_outside(probes.contents, images),
    )  # fmt: skip
    checked = with_features(checked, plan, out)
    sections = make_sections(checked)
    to_mend = find_faults(checked, sections)
    write(f"{TO_MEND}:" if to_mend else nothing_found(sections))
    for number, finding in enumerate(to_mend, 1):
        write(f"{number:2}. {finding.text}")
    for line in (line for section in sections for line in (*section.missing, *section.lines)):
        write(line)
    if any(section.decide in checked.relabel for section in sections):
        write(f"When you have decided on the page and put {DECISIONS} beside it: `{checked.relabel[DECISIONS]}`")
    if checked.train:
        together = ", each group of near-copies together" if checked.groups else ""
        write(f"{checked.to_train} train on these images{together}: `{checked.train}`")
    files = {
        **{name: content for section in sections for name, content in section.files.items()},
        PAGE: check_page(checked, sections, to_mend, of_files, out),
        OPTIONS: f"{shlex.join(map(without_secrets, plan.argv))}\n".encode(),
    }
    exit_on_signal()  # from here on, it would not be true that nothing is written
    with disk_errors_as_run_error(out):
        for name, content in files.items():
            atomic_write(out / name, content)
    lists = [name for name in files if name not in (PAGE, OPTIONS)]
    write(f"Open {out / PAGE}, the page with pictures. The lists beside it: {', '.join(lists)}.")
    is_missing = any(section.missing for section in sections)
    return int(is_missing or any(finding.urgency == Urgency.FIRST for finding in to_mend))


def _probe_all(plan: Plan, images: Mapping[str, Images]) -> Probes:
    contents = {name: np.zeros(len(members), dtype=np.uint64) for name, members in images.items()}
    qualities = {name: np.zeros(len(members), dtype=ROW) for name, members in images.items()}
    ignored = IgnoredParts(lambda _: None)  # the summary counts them
    found = Probes([], Counter(), ignored, contents, qualities)
    progress = Progress("check", sum(map(len, images.values())), "images")
    progress.more = lambda: f" ({len(found.bad):,} bad)"
    tasks = ((name, index) for name, members in images.items() for index in range(len(members)))
    results = process_images(probe_image, images, tasks, plan.num_workers, plan.config.prepare.timeout_s, WINDOW)
    with contextlib.closing(progress), contextlib.closing(results):
        for split, index, value, failure in results:
            probe = value or Probe(failure)
            if probe.reason is not None:
                found.bad.append((split, index, probe.reason))
            found.num_rotated[split] += probe.is_rotated
            if probe.ignored:
                found.ignored.add(split, images[split], {index: probe.ignored.value})
            contents[split][index] = probe.content_hash
            if probe.quality is not None:
                qualities[split][index] = tuple(probe.quality)
            progress.add(1)
    return found


def _what_can_be_read(
    layout: DatasetSummary, images: Mapping[str, Images], bad: Sequence[tuple[str, int, str]]
) -> list[str]:
    """Return how many images of each split can be read, and the first that cannot."""
    num_bad, lines = Counter(split for split, _, _ in bad), list[str]()
    for name, split in layout.splits.items():
        least, most = min(split.counts.values()), max(split.counts.values())
        span = f"{least:,} to {count_noun(most, 'image')}" if least < most else count_noun(most, "image")
        num_images, classes = split.num_images, count_noun(len(split.counts), "class")
        read = f"{num_images - num_bad[name]:,} of {count_noun(num_images, 'image')} can be read"
        lines.append(f"{name}: {read}, {classes} with {span} each")
    lines += [f"bad: {images[split].path(index)}: {reason}" for split, index, reason in bad[:MAX_PRINTED]]
    if len(bad) > MAX_PRINTED:
        lines.append(f"and {len(bad) - MAX_PRINTED:,} more in {BAD_IMAGES}")
    return lines


def _relabel_lines(plan: Plan, out: Path) -> dict[str, str]:
    """Return the line that applies the decisions of each list; none if nothing can apply them. Images are removed from
    folders only, so a table has no use for lists of what is to be removed."""
    lists = [*(LISTS if isinstance(plan.config.data, FolderData) else [WRONG_LABELS]), DECISIONS]
    options = [word for word in plan.argv if word.startswith(OF_IMAGES)]
    return {
        name: shell_line("prepare", ["prepare=relabel", *options, quoted(f"decisions={out / name}")])
        for name in lists
        if can_relabel(plan.config.data)
    }


def _check_again(plan: Plan, source: Source) -> list[str]:
    """Return the sentence about a root that is probably wrong, with the line that checks the images of the right
    one."""
    if source.wrong_root is None:
        return []
    argv = apply(source.wrong_root.fixes[0], plan.argv)
    line = shell_line("prepare", [quoted(word) if word.startswith("data.root=") else word for word in argv])
    return [f"{source.wrong_root} To check those: `{line}`."]


def probe_image(images: Images, index: int) -> Probe:
    """Decode and hash one image. Never raises for a bad image."""
    content = 0
    try:
        data = images.encoded(index)
        if isinstance(images, FileImages) and data is not None:
            content = _content_hash(data)
            picture = open_picture(data, images.path(index), images.reading)
            quality = measure(picture.region(0, 0, picture.height, picture.width))
            return Probe(None, content, is_rotated(data[:HEADER_BYTES]), picture.ignored, quality)
        images.verify(index)
        pixels = images.read(index)
        content = _content_hash(pixels.contiguous().numpy() if data is None else data)
        return Probe(None, content, quality=measure(pixels.permute(1, 2, 0).numpy()))
    except UnreadableImage as error:
        return Probe(error.reason, content)
    except OSError as error:
        return Probe(error.strerror or str(error), content)
    except Exception as error:  # a user's own source may raise anything
        return Probe(f"{type(error).__name__}: {error}", content)


def find_copies_outside(contents: Mapping[str, np.ndarray], images: Mapping[str, Images]) -> dict[str, str]:
    """Return the path of each image outside the class folders that has the content of one inside -> the path of that
    one. contents: hash of each image of a split."""
    inside = {
        int(value): images[split].path(index)
        for split, content in reversed([*contents.items()])
        for index, value in reversed([*enumerate(content.tolist())])
    }
    found = dict[str, str]()
    for loose in (each.loose_images() for each in images.values() if isinstance(each, FileImages)):
        for index in range(len(loose)):
            with contextlib.suppress(UnreadableImage, OSError):
                if other := inside.get(_content_hash(loose.encoded(index))):
                    found[loose.path(index)] = other
    return found


def _content_hash(data: Any) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1


def find_duplicates(contents: Mapping[str, np.ndarray], images: Mapping[str, Images]) -> list[Copy]:
    """Return the images with the same content, those in one split first. contents: hash of each image of a split; 0:
    unknown."""
    found = list[Copy]()
    first: dict[str, dict[int, int]] = {}  # split -> content -> position of the first image with it
    for split, content in contents.items():
        targets, known = images[split].targets, first.setdefault(split, {})
        pairs = [(known.setdefault(value, index), index) for index, value in enumerate(content.tolist()) if value]
        found += [
            Copy(
                f"{split}, {'two classes' if np.any(targets[a] != targets[b]) else 'one class'}", (split, a), (split, b)
            )
            for a, b in pairs
            if a != b
        ]
    val, train = contents.get("val", np.zeros(0)).tolist(), first.get("train", {})
    leaks = [(train[value], index) for index, value in enumerate(val) if value in train]
    return found + [Copy("train and val, same bytes", ("train", a), ("val", b)) for a, b in leaks]
