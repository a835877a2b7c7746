"""Read trainer.num_nodes=LEAST:MOST, for nodes that may leave and come back, and check its requirements. No torch."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagenet_ddp.distributed.launchers.request import requested_address
from imagenet_ddp.distributed.strategies import batch_split
from imagenet_ddp.errors import ConfigError


@dataclass(frozen=True)
class ElasticNodes:
    """A training on `least` to `most` nodes. host, port: of the node that must stay. here: this node's own address."""

    least: int
    most: int
    host: str
    port: int
    here: str
    is_host: bool
    max_restarts: int

    @property
    def range(self) -> str:
        return f"{self.least} to {self.most} nodes"


def node_range(num_nodes: object) -> tuple[int, int] | None:
    """Return (least, most); None if trainer.num_nodes is a number, auto or no valid range."""
    found = re.fullmatch(r"([1-9]\d*):([1-9]\d*)", num_nodes) if isinstance(num_nodes, str) else None
    return (int(found[1]), int(found[2])) if found else None


def is_wanted(config: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return whether this command is to start such a training; its own ranks, and torchrun's, only take part in it."""
    return node_range(config["trainer"].get("num_nodes")) is not None and "TORCHELASTIC_RUN_ID" not in environ


def validate(
    config: Mapping[str, Any], environ: Mapping[str, str], *, verb: str, typed: Sequence[str], multirun: bool
) -> list[str]:
    """Return every requirement of such a training that is not met."""
    num_nodes, cluster = config["trainer"]["num_nodes"], config["cluster"]
    key = f"trainer.num_nodes={num_nodes}"
    if verb != "train" or multirun:
        what = "a sweep" if multirun else verb
        return [f"trainer.num_nodes must be a single number for {what}, got {num_nodes}. Hint: trainer.num_nodes=1."]
    least, most = node_range(num_nodes) or (1, 1)
    given = {option.partition("=")[0].lstrip("+"): option.partition("=")[2] for option in typed}
    found: list[str] = []
    if least > most:
        found.append(f"trainer.num_nodes must be LEAST:MOST, got {num_nodes}. Hint: trainer.num_nodes={most}:{least}.")
    if config["strategy"]["name"] in batch_split.DATA_PARALLEL:
        name = config["strategy"]["name"]
        found.append(f"strategy={name} runs in one process, but {key} requests several nodes. Hint: strategy=ddp.")
    try:
        address = requested_address(cluster, environ)
        if address is None or address.host is None:
            found.append(
                f"{key} needs the address of the node that stays, by which the others find it. "
                "Hint: cluster.address=HOST:29500, the same on each node; or trainer.num_nodes=1."
            )
    except ConfigError as error:
        found += error.mistakes
    if "hydra.run.dir" not in given:
        found.append(
            f"{key} needs one run folder for all its parts, on a disk that all nodes share. "
            "Hint: hydra.run.dir=FOLDER, the same on each node."
        )
    if not cluster["max_restarts"]:
        found.append(
            f"{key} starts the training again when a node is lost, but cluster.max_restarts is 0. "
            "Hint: cluster.max_restarts=10, so many losses."
        )
    if given.get("resume", "auto") not in ("auto", "null"):
        found.append(f"resume must be auto with {key}, got {given['resume']}. Hint: hydra.run.dir={given['resume']}.")
    numbered = [name for name in ("node_rank", "rank", "local_rank", "world_size") if cluster[name] is not None]
    found += [f"cluster.{name} must be null with {key}: nodes are numbered in order of arrival. Hint: leave it out."
              for name in numbered]  # fmt: skip
    return found
