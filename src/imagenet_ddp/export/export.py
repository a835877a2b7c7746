"""Write one file, compare it with the checkpoint, and keep it only if they agree."""

import json
import secrets
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from imagenet_ddp import __version__
from imagenet_ddp.config.schema.commands import ExportConfig
from imagenet_ddp.data.transforms import EvalTransform
from imagenet_ddp.engine.predictor import Predictor, eval_transform, load_net, make_predictor, open_exported
from imagenet_ddp.engine.stored_config import checkpoint_path
from imagenet_ddp.engine.trained_model import TrainedModel, load
from imagenet_ddp.errors import RunError
from imagenet_ddp.export import card, compare
from imagenet_ddp.export.formats.check import CARD, export_path
from imagenet_ddp.export.formats.graph import Classifier
from imagenet_ddp.export.formats.registry import FORMATS, Format
from imagenet_ddp.runs.folder import disk_errors_as_run_error
from imagenet_ddp.system.files import atomic_path, atomic_write


def export(config: ExportConfig, is_data_typed: bool) -> Iterator[str]:
    """Write the file, and yield a sentence after each step. Raises RunError if the file differs too much from the
    checkpoint; it is then removed."""
    kind, path = FORMATS[config.format], export_path(config)
    trained = load(config, checkpoint_path(config))
    yield from trained.notes
    samples, why_random = compare.find_samples(config, trained, is_data_typed)
    if why_random:
        yield f"Comparing on random images, because the validation images are not available: {why_random}"
    transform = eval_transform(config)
    metadata = _metadata(config, trained, transform)
    net = load_net(config, trained)
    graph = Classifier(net, transform, metadata["preprocessing"] or "outside").eval()
    reference = make_predictor(config, trained, net, torch.device("cpu"))
    path.parent.mkdir(parents=True, exist_ok=True)
    # keeps the suffix, by which readers recognise the format
    draft = path.with_name(f".{path.stem}.{secrets.token_hex(8)}{path.suffix}")
    with disk_errors_as_run_error(path), atomic_path(path, draft):
        built = kind.build(graph, config.batch_size)
        kind.save(built, draft, json.dumps(metadata))
        comparison = compare.compare(reference, _open(draft, kind, config, trained), samples)
        yield comparison.sentence(kind.name)
        most = config.max_difference or kind.max_difference(metadata["preprocessing"])
        if comparison.max_difference > most:
            raise RunError(
                f"the probabilities of {path.name} must be within {most:g} of the checkpoint's, "
                f"but differ by {comparison.max_difference:.1e}. "
                "Hint: set max_difference=0.1, or choose another format."
            )
        metadata["comparison"] = asdict(comparison)
        kind.save(built, draft, json.dumps(metadata))
    yield f"Written to {path} ({path.stat().st_size / 1e6:.1f} MB)."
    if config.card:
        readme = path.with_name(CARD)
        if readme.exists() and not (config.overwrite and card.is_card(readme)):
            yield f"Model card: not written, because {readme} exists. Hint: move it away, or set out=OTHER_FOLDER/FILE."
        else:
            atomic_write(readme, card.text(config, trained, metadata, path.name))
            yield f"Model card: {readme}"


def _open(draft: Path, kind: Format, config: ExportConfig, trained: TrainedModel) -> Predictor:
    """Return a predictor that reads the written file in the same way as its users."""
    if kind.has_graph:
        return open_exported(draft, config.data.decoder)
    written = replace(trained, weights=kind.read_weights(draft))
    return make_predictor(config, written, load_net(config, written), torch.device("cpu"))


def _metadata(config: ExportConfig, trained: TrainedModel, transform: EvalTransform) -> dict[str, Any]:
    """Return the metadata that a program needs if it has only the exported file."""
    contents, model = trained.contents, config.model
    # the weights may have changed after the best validation; another transform gives another accuracy
    of_best = trained.is_best and transform.as_dict() == contents["eval_transform"]
    return {
        "version": __version__,
        "classes": trained.classes,
        "labels": trained.labels,
        "eval_transform": transform.as_dict(),
        "exif_orientation": config.data.exif_orientation,
        "preprocessing": (config.preprocessing or "inside") if FORMATS[config.format].has_graph else None,
        "batch_size": config.batch_size,
        "model": {key: model[key] for key in ("name", "library", "_target_", "args", "blur_pool")},
        "epochs": trained.epochs,
        "top1": contents["best_top1"] if of_best else None,
        "license": config.license,
    }
