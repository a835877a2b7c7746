"""Compute the features of all images in one pass, each image once over all ranks, and write their file."""

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from imagenet_ddp.config.schema.features import FeaturesConfig
from imagenet_ddp.curation import unknown
from imagenet_ddp.curation.features import FILE, Features, read_features, write_features, write_parquet
from imagenet_ddp.curation.recognise import digest_of, stamps_of
from imagenet_ddp.data.decoding.decode import Picture, Reading
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.plan import Plan
from imagenet_ddp.launch.trained_model import find_other
from imagenet_ddp.launch.world import World
from imagenet_ddp.models.head import head_names, require_features
from imagenet_ddp.models.weights.load import load_weights_into
from imagenet_ddp.runs.checkpoint_file import is_own
from imagenet_ddp.runs.disk_errors import disk_errors_as_run_error
from imagenet_ddp.runs.folder import lock
from imagenet_ddp.runs.log import Log
from imagenet_ddp.runs.result_files import known_file
from imagenet_ddp.strategies.process_group import destroy_process_group
from imagenet_ddp.system.text import count_noun
from imagenet_ddp.training import build
from imagenet_ddp.use.feature_collector import Collect
from imagenet_ddp.use.validate import Validation

PARTS = "parts"  # folder of what an interrupted pass has computed


def run(job: Job, plan: Plan, world: World) -> int:
    """Compute the features with the job's checkpoint or weights, and write them to its folder. Return the number of
    images that could be read."""
    config, is_first = job.config, world.place.rank == 0
    assert isinstance(config, FeaturesConfig)
    with disk_errors_as_run_error(job.run_dir), lock(job.run_dir) if is_first else nullcontext():
        log = Log(job.run_dir / "logs", world.place.rank)
        log.capture_libraries()
        data = build.make_data(plan, world, log.say, scan=job.scan)
        num_images = len(data.train_images) + len(data.val_images)
        data.bad_images.most = num_images  # unreadable ones are listed, and stop nothing
        splits, classes = (data.train_images, data.val_images), data.source.classes
        module = build.make_module(plan, classes, num_images)
        heads, weights = head_names(module.net, len(classes)), find_other(config.model, job.checkpoint)
        log.say(load_weights_into(module.net, weights, heads, classes)[0])
        require_features(
            module.net, config.model.name, heads, config.data.image_size, "features need", "set another model.name"
        )
        precision = plan.precision.value
        digest = digest_of(module.net, heads, data.eval_transform, Reading.of(data.options), precision)
        checkpoint, of_net = job.checkpoint if is_first else None, ""
        if checkpoint is not None and is_own(checkpoint):  # now, because the strategy converts the net for bf16-true
            of_net = unknown.net_digest(module.net, heads, data.eval_transform, Reading.of(data.options))
        stamps = np.concatenate([
            stamps_of(images, data.source.digest, name) for name, images in zip(("train", "val"), splits, strict=True)
        ])  # fmt: skip
        width: Any = module.net.get_submodule(heads[0]).in_features
        known = _known(job.run_dir, digest, width) if is_first else {}
        todo = _rows_to_compute(stamps, known, world)
        if world.place.world_size > 1:
            log.say(world.place.sentence())
        num_known = len(stamps) - len(todo)
        known_words = f"; those of {num_known:,} are known from an earlier pass" if num_known else ""
        log.say(
            f"Computing the features of {count_noun(len(todo), 'image')} with {weights.origin} at "
            f"{config.data.image_size} pixels, precision {precision}{known_words}."
        )
        collected, begin_s = Collect(heads[0], stamps[todo], digest, job.run_dir / PARTS), time.monotonic()
        if todo:
            data.source.val = Joined(splits, np.array(todo))
            for line in Validation(plan, world, [collected], job.run_dir).run(module, data):
                log.say(line)
        seconds = time.monotonic() - begin_s
        number = 0
        if is_first:
            known |= collected.result
            reasons = dict(data.bad_images.board.all())
            features = _together(splits, stamps, known, data, reasons, f"{config.model.name}, {weights.origin}", digest)
            number, unreadable = len(features), len(features.unreadable)
            write_features(job.run_dir / FILE, features)
            shutil.rmtree(job.run_dir / PARTS, ignore_errors=True)
            if checkpoint is not None and of_net:
                log.say(unknown.write_reference(known_file(checkpoint), features, of_net))
            rate = f" ({len(collected.result) / seconds:,.1f} images/s)" if collected.result else ""
            missing = f"; {count_noun(unreadable, 'image')} cannot be read" if unreadable else ""
            log.say(f"{count_noun(number, 'image')}, {features.vectors.shape[1]:,} features each{rate}{missing}.")
            if config.out:
                _write_copy(Path(config.out), features)
                log.say(f"Written to {config.out}")
        log.say(f"Written to {job.run_dir / FILE}")
        log.close()
    destroy_process_group()
    return number


def _rows_to_compute(stamps: np.ndarray, known: Mapping[int, np.ndarray], world: World) -> list[int]:
    """Return the positions of the images whose features are not known, the same on all ranks. known: on rank 0."""
    todo = [row for row, stamp in enumerate(stamps.tolist()) if stamp not in known]
    if world.meeting is not None:
        todo = world.meeting.broadcast("images to compute", todo)
    if todo and len(todo) < len(stamps):  # a pass in which no image can be read would end with an error
        todo.append(min(set(range(len(stamps))) - set(todo)))
    return todo


def _write_copy(out: Path, features: Features) -> None:
    write = write_parquet if out.name.endswith(".parquet") else write_features
    with disk_errors_as_run_error(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write(out, features)


def _known(folder: Path, digest: str, width: int) -> dict[int, np.ndarray]:
    """Return stamp -> vector of the images that an earlier pass with the same net and preprocessing has computed, even
    one that was interrupted. Files that cannot be read count for nothing, because their images are computed again."""
    found: dict[int, np.ndarray] = {}
    for file in (folder / FILE, *sorted((folder / PARTS).glob("*.npz"))):
        try:
            features = read_features(file)
        except ConfigError:
            continue
        if features.is_of(digest, width):
            found |= zip(features.stamps.tolist(), features.vectors, strict=True)
    return found


def _together(
    splits: Sequence[Images], stamps: np.ndarray, known: Mapping[int, np.ndarray], data: ImageDataModule,
    reasons: Mapping[str, str], net: str, digest: str,
) -> Features:  # fmt: skip
    """Return the features of all images that could be read, in the order of the splits. Raises ConfigError if there is
    none. known: stamp -> vector. reasons: path -> why an image could not be read."""
    rows = np.array([row for row, stamp in enumerate(stamps.tolist()) if stamp in known], np.int64)
    if not len(rows):
        raise ConfigError("no image can be read. Hint: run `python -m imagenet_ddp.prepare prepare=check` to see why.")
    is_val = np.repeat([False, True], [len(images) for images in splits])
    index = np.concatenate([np.arange(len(images)) for images in splits])
    targets = np.concatenate([images.targets for images in splits])
    vectors = np.stack([known[stamp] for stamp in stamps[rows].tolist()])
    paths = [images.path(position) for images in splits for position in range(len(images))]
    unreadable = [(path, reasons.get(path, "it cannot be read"))
                  for path, stamp in zip(paths, stamps.tolist(), strict=True) if stamp not in known]  # fmt: skip
    return Features(
        vectors, targets[rows], is_val[rows], index[rows], stamps[rows], [paths[row] for row in rows.tolist()],
        data.source.classes, data.source.labels, unreadable, net, digest,
    )  # fmt: skip


class Joined(Images):
    """Some images of several splits, as one. rows: int64 (N,), positions in the splits after each other."""

    def __init__(self, splits: Sequence[Images], rows: np.ndarray):
        self._splits, self._rows = splits, rows
        self._begins = np.cumsum([0, *(len(images) for images in splits)])
        self.targets = np.concatenate([images.targets for images in splits])[rows]
        self.location, self.reading = splits[-1].location, splits[-1].reading

    def _of(self, index: int) -> tuple[Images, int]:
        row = int(self._rows[index])
        split = int(np.searchsorted(self._begins, row, side="right")) - 1
        return self._splits[split], row - int(self._begins[split])

    def read(self, index: int) -> Tensor:
        images, position = self._of(index)
        return images.read(position)

    def open(self, index: int) -> Picture:
        images, position = self._of(index)
        return images.open(position)

    def path(self, index: int) -> str:
        images, position = self._of(index)
        return images.path(position)
