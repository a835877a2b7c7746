"""Write one file, compare it with the checkpoint on the same images, and keep it only if they agree."""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from imagenet_ddp.config.schema.export import ExportConfig
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.data import check_data
from imagenet_ddp.data.decoding.decode import Reading, decode
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.sources.base import Scan
from imagenet_ddp.data.sources.image_files import read_file
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.data.sources.walk import find_images
from imagenet_ddp.data.transforms import EvalTransform
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.export import model_card, program
from imagenet_ddp.exported.formats.base import CARD, Format
from imagenet_ddp.exported.formats.check_model_file import export_path
from imagenet_ddp.exported.formats.registry import format_of
from imagenet_ddp.exported.graph import Classifier
from imagenet_ddp.launch.stored_config import checkpoint_path, model_title
from imagenet_ddp.launch.trained_model import TrainedModel, load
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.models.head import head_names
from imagenet_ddp.runs.disk_errors import disk_errors_as_run_error
from imagenet_ddp.system.files import atomic_path, atomic_write, where
from imagenet_ddp.system.text import percent, without_secrets
from imagenet_ddp.training.held_out import choose
from imagenet_ddp.use.exported_predictor import open_exported
from imagenet_ddp.use.open_predictor import without_reference
from imagenet_ddp.use.predictor import Predictor, eval_transform, find_reference, load_net, make_predictor
from imagenet_ddp.version import __version__

_CHUNK = 4  # number of images in memory at a time; they have their original size
_NUM_RANDOM = 16
# The familiarity may differ by this many times as much as a probability: softmax dampens small differences of the
# features, and the familiarity does not. It is 1 apart for a typical image and the middle of all.
_FAMILIARITY_SCALE = 10


def export(config: ExportConfig, is_data_typed: bool) -> Iterator[str]:
    """Write the file, and yield a sentence after each step. Raises RunError if the file differs too much from the
    checkpoint; it is then removed."""
    kind, path = format_of(config), export_path(config)
    checkpoint = checkpoint_path(config)
    trained = load(config, checkpoint)
    yield from trained.notes
    samples, why_random = find_samples(config, trained, is_data_typed)
    if why_random:
        yield f"Comparing on random images, because the validation images are not available: {why_random}"
    transform = eval_transform(config)
    metadata = _metadata(config, trained, transform)
    net = load_net(config, trained)
    known, reason = find_reference(config, trained, net, checkpoint) if kind.has_graph else (None, "")
    metadata["familiarity_threshold"] = None if known is None else known.threshold
    head = head_names(net, len(trained.classes))[0] if known is not None else ""
    graph = Classifier(net, transform, metadata["preprocessing"] or "outside", known, head).eval()
    reference = make_predictor(config, trained, net, torch.device("cpu"), known)
    path.parent.mkdir(parents=True, exist_ok=True)
    # keeps the suffix, by which readers recognise the format
    draft = path.with_name(f".{path.stem}.{secrets.token_hex(8)}{path.suffix}")
    with disk_errors_as_run_error(path), ExitStack() as stack:
        for pair in zip(kind.paths(path), kind.paths(draft), strict=True):
            stack.enter_context(atomic_path(*pair))
        wrong = ""
        for built in kind.candidates(graph, metadata["batch_size"]):
            kind.save(built, draft, json.dumps(metadata))
            comparison = compare(reference, _open(draft, kind, config, trained), samples)
            yield comparison.sentence(kind.name, samples.location)
            most = config.max_difference or kind.max_difference(metadata["preprocessing"])
            if not (wrong := comparison.excess(path.name, most)):
                metadata["comparison"] = asdict(comparison)
                kind.save(built, draft, json.dumps(metadata))
                break
        if wrong:
            raise RunError(f"{wrong}. Hint: set max_difference=0.1, or choose another format.")
    size = sum(each.stat().st_size for each in kind.paths(path))
    yield f"Written to {path} ({size / 1e6:.1f} MB)."
    if config.card:
        yield from _write_beside(config, trained, metadata, path)
    if reason:
        yield without_reference(trained.origin, reason, ", then export again with overwrite=true")


def _write_beside(config: ExportConfig, trained: TrainedModel, metadata: dict[str, Any], path: Path) -> Iterator[str]:
    """Write the model card and the program that uses the file, and yield what was written. A file of somebody else is
    never replaced, and those of another exported file stay: the name of the format then tells them apart."""

    def place(name: str, is_ours: Callable[[Path], bool], is_of: Callable[[Path, str], bool]) -> Path:
        file, kind = path.with_name(name), format_of(config).name
        is_of_another = not config.push and is_ours(file) and not is_of(file, path.name)
        return file.with_stem(f"{file.stem}_{kind}") if is_of_another else file

    to_run = place(program.NAME, program.is_program, program.is_of)
    card = place(CARD, model_card.is_card, model_card.is_of)
    program_text = program.text(metadata, format_of(config), path.name, to_run.name)
    card_text = model_card.text(config, trained, metadata, path.name, program_text)
    files = [("Model card", card, card_text, model_card.is_card)]
    files += [("Program that uses it", to_run, program_text, program.is_program)] if program_text else []
    for what, file, text, is_ours in files:
        is_mine = is_ours(file)
        if file.exists() and not (config.overwrite and is_mine):
            hint = "set overwrite=true, or" if is_mine else "move it away, or set"
            yield f"{what}: not written, because {file} exists. Hint: {hint} out=OTHER_FOLDER/FILE."
        else:
            atomic_write(file, text)
            yield f"{what}: {file}"


def _open(draft: Path, kind: Format, config: ExportConfig, trained: TrainedModel) -> Predictor:
    """Return a predictor that reads the written file in the same way as its users."""
    if kind.has_graph:
        return open_exported(draft, config.data.decoder)
    written = replace(trained, weights=kind.read_weights(draft))
    return make_predictor(config, written, load_net(config, written), torch.device("cpu"))


def _metadata(config: ExportConfig, trained: TrainedModel, transform: EvalTransform) -> dict[str, Any]:
    """Return the metadata that a program needs if it has only the exported file."""
    contents, model, kind = trained.contents, config.model, format_of(config)
    # the weights may have changed after the best validation; another transform gives another accuracy
    of_best = trained.is_best and transform.as_dict() == contents["eval_transform"]
    top1 = contents.get("best_score") if of_best and contents.get("monitor") == "val/top1" else None
    title = model_title(model, contents["config"]["data"]) if contents else Path(trained.origin).name
    return {
        "version": __version__,
        "title": without_secrets(title),
        "classes": trained.classes,
        "labels": trained.labels,
        "eval_transform": transform.as_dict(),
        "exif_orientation": config.data.exif_orientation,
        "white_level": config.data.white_level,
        "preprocessing": (config.preprocessing or "inside") if kind.has_graph else None,
        "batch_size": kind.only.get("batch_size", config.batch_size),
        "model": without_secrets({key: model[key] for key in ("name", "library", "_target_", "args", "blur_pool")}),
        "epochs": trained.epochs,
        "top1": top1,
        "num_val_images": None if top1 is None else trained.num_val_images,
        "license": config.license,
    }


# ---- the comparison -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Samples:
    """Images on which predictors are compared. read: maps a position to uint8 (3, H, W). targets: int64 (N,), positions
    in the checkpoint's classes; None if unknown."""

    what: str  # such as "validation images"
    num_images: int
    read: Callable[[int], Tensor]
    targets: np.ndarray | None = None
    location: str = ""  # folder or address


@dataclass(frozen=True)
class Comparison:
    """How the predictions of a file differ from those of its checkpoint."""

    images: str  # kind of images, such as "validation images"
    num_images: int
    max_difference: float  # of a probability
    num_same_top1: int
    top1: tuple[float, ...] | None  # fractions, of the checkpoint and of the file; None: the classes are unknown
    max_familiarity_difference: float | None = None  # None: it is not computed

    def sentence(self, name: str, location: str) -> str:
        top1 = "" if self.top1 is None else f"; top-1 {percent(self.top1[1])} and {percent(self.top1[0])}"
        difference = self.max_familiarity_difference
        familiarity = "" if difference is None else f"; the familiarity differs by at most {difference:.1e}"
        return (
            f"{name} and the checkpoint on {self.num_images} {self.images}{where(location)}: probabilities differ by "
            f"at most {self.max_difference:.1e}, same top-1 class for {self.num_same_top1}{top1}{familiarity}."
        )

    def excess(self, file: str, most: float) -> str:
        """Return what differs too much, without a full stop; "" if nothing does. most: of a probability."""
        of_familiarity = self.max_familiarity_difference or 0.0
        for what, difference, allowed in (
            ("probabilities", self.max_difference, most),
            ("familiarities", of_familiarity, _FAMILIARITY_SCALE * most),
        ):
            if difference > allowed:
                return f"the {what} of {file} must be within {allowed:g} of the checkpoint's, but differ by " \
                    f"{difference:.1e}"  # fmt: skip
        return ""


def compare(checkpoint: Predictor, file: Predictor, samples: Samples) -> Comparison:
    """Compare the probabilities of a file with those of its checkpoint. Unreadable images are left out; raises
    ConfigError if none can be read."""
    positions: list[int] = []
    parts: list[Tensor] = []
    familiarities: list[Tensor] = []
    for start in range(0, samples.num_images, _CHUNK):
        pictures: dict[int, Tensor] = {}
        for position in range(start, min(start + _CHUNK, samples.num_images)):
            with suppress(UnreadableImage, OSError):
                pictures[position] = samples.read(position)
        if pictures:
            positions += pictures
            both = [
                each.compute([each.read.prepare(image) for image in pictures.values()]) for each in (checkpoint, file)
            ]
            parts.append(torch.stack([outputs.probabilities for outputs in both]))
            scores = [outputs.familiarity for outputs in both if outputs.familiarity is not None]
            familiarities += [torch.stack(scores)] if len(scores) == 2 else []
    if not parts:
        what = f"at least one of the {samples.what} must be readable, but none is"
        raise ConfigError(Mistake(what, ("images",), (setting("images=FOLDER"),)))
    found = torch.cat(parts, dim=1)  # (2, images, classes)
    difference = _largest_difference(found)
    of_familiarity = _largest_difference(torch.cat(familiarities, dim=1)) if familiarities else None
    tops = found.argmax(dim=2).numpy()
    top1 = None
    if samples.targets is not None:
        top1 = tuple((tops == samples.targets[positions]).mean(axis=1).tolist())
    num_same = int((tops[1] == tops[0]).sum())
    return Comparison(samples.what, len(positions), difference, num_same, top1, of_familiarity)


def _largest_difference(pair: Tensor) -> float:
    return (pair[1] - pair[0]).abs().nan_to_num(torch.inf).max().item()


def find_samples(config: ExportConfig, trained: TrainedModel, is_data_typed: bool) -> tuple[Samples, str]:
    """Return (the images to compare on, why they are random). The reason is "" if they are not random. is_data_typed:
    options of the data were typed, so data that cannot be opened raise ConfigError."""
    if config.images is not None:
        return _files(config, config.images), ""
    if trained.contents or is_data_typed:
        mistakes, scan = check_data.inspect(config.data, config.seed, purpose=Purpose.EVALUATE)
    else:  # data.* has the default, which is not what these weights were trained on
        what = "data must be set, because these weights do not name their data"
        mistakes, scan = [Mistake(what, ("data",), hint="set data= and data.root=")], None
    if not mistakes:
        return _of_source(config, trained, scan), ""
    if is_data_typed:
        raise ConfigError(mistakes)
    return _random(), str(mistakes[0])


def _of_source(config: ExportConfig, trained: TrainedModel, scan: Scan | None) -> Samples:
    """Return config.num_images evenly spaced validation images."""
    source = open_source(config.data, config.seed, purpose=Purpose.EVALUATE, found=scan)
    choose(source, config.data, trained.contents, trained.origin)
    images = source.val
    assert images is not None
    chosen = _evenly(len(images), config.num_images)
    targets = trained.positions(source)[images.targets[chosen]]
    return Samples(
        "validation images", len(chosen), lambda position: images.read(int(chosen[position])), targets, images.location
    )


def _files(config: ExportConfig, pattern: str) -> Samples:
    paths = find_images(pattern)
    reading = Reading.of(config.data)
    chosen = [paths[position] for position in _evenly(len(paths), config.num_images)]
    return Samples("images", len(chosen), lambda position: decode(read_file(chosen[position]), "", reading))


def _random() -> Samples:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(64, 640, (_NUM_RANDOM, 2), generator=generator).tolist()
    images = [torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in sizes]
    return Samples("random images", _NUM_RANDOM, images.__getitem__)


def _evenly(length: int, most: int) -> np.ndarray:
    return np.linspace(0, length - 1, min(length, most)).round().astype(np.int64)
