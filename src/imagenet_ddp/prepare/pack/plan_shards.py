"""Plan which images go into which shard of a pack. The same source and options always result in the same plan."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.download import size_of
from imagenet_ddp.data.sources.manifest import WORK, PackOptions
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare.disk_space import require_free_space
from imagenet_ddp.prepare.pack import shards
from imagenet_ddp.prepare.pack.encode import encode_image
from imagenet_ddp.prepare.pack.fingerprint import SourceSplit
from imagenet_ddp.prepare.pack.shards import Shard
from imagenet_ddp.system.text import MIB

NUM_SAMPLES = 64  # images packed beforehand to estimate the size


def validate_same(found: Mapping[str, Any], wanted: PackOptions, out: Path, what: str) -> None:
    """Raise ConfigError if `out` was made with other options. found: the stored options. what: noun for `out`."""
    words = {"source": "other images", "encoder": f"other libraries ({found.get('encoder')}; now {wanted.encoder})"}
    different = [
        words.get(name, f"{name}={found.get(name)} instead of {value}")
        for name, value in asdict(wanted).items()
        if found.get(name) != value
    ]
    if different:
        raise ConfigError(
            f"{out} must be {what} of these images and options, but was made with {', '.join(different)}. Hint: type "
            "the options it was made with, remove the folder, or set out=FOLDER to another folder."
        )


def plan_shards(out: Path, wanted: PackOptions, splits: Mapping[str, SourceSplit]) -> list[Shard]:
    """Distribute the images over shards. Their mean size is stored in WORK, so that a resumed pack makes the same
    plan."""
    file = out / WORK / "plan.json"
    if file.exists():
        plain = json.loads(file.read_bytes())
        validate_same(plain.get("options", {}), wanted, out, "an unfinished pack")
        mean_bytes = plain["mean_bytes"]
    else:
        mean_bytes = {name: _mean_bytes(split.images, wanted) for name, split in splits.items()}
    plans = []
    for name, split in splits.items():
        per_shard = max(1, int(wanted.shard_mib * MIB / max(mean_bytes[name], 1)))
        plans += shards.divide(name, split.states, per_shard, shuffle=name == "train")
    need = sum(  # a shard that is written again replaces its file
        mean_bytes[shard.split] * len(shard.indices) - size_of(out / shard.file)
        for shard in plans
        if not shards.find(out, shard)
    )
    require_free_space(out, need, ", or set a smaller prepare.short_side")
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        shards.save(file, json.dumps({"options": asdict(wanted), "mean_bytes": mean_bytes}).encode())
    return plans


def _mean_bytes(images: Images, options: PackOptions) -> float:
    """Estimate the mean size of a packed image in bytes, always from the same sample."""
    sample = np.unique(np.linspace(0, len(images) - 1, min(NUM_SAMPLES, len(images))).astype(np.int64))
    sizes = [len(encode_image(images, index, options).data) for index in sample.tolist()]
    return float(np.mean([size for size in sizes if size] or [0]))
