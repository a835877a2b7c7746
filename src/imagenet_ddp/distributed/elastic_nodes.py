"""Parse trainer.num_nodes=LEAST:MOST, for nodes that may leave and rejoin a run, and check its requirements.

This module does not import torch.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagenet_ddp.config.keys import key_of
from imagenet_ddp.distributed.launchers.request import requested_address
from imagenet_ddp.distributed.strategies import batch_split
from imagenet_ddp.errors import ConfigError


@dataclass(frozen=True)
class ElasticNodes:
    """Settings of a run on `least` to `most` nodes.

    host, port: address of the rendezvous, on the node that must not leave the run. here: this node's own address.
    is_host: whether this node serves the rendezvous.
    """

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
    """Return (least, most), or None if trainer.num_nodes is not a valid range, such as a single number or auto."""
    found = re.fullmatch(r"([1-9]\d*):([1-9]\d*)", num_nodes) if isinstance(num_nodes, str) else None
    return (int(found[1]), int(found[2])) if found else None


def is_wanted(config: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return whether this command must start a run on LEAST:MOST nodes.

    The workers that such a command starts, and the workers of torchrun, only take part in a run.
    """
    return node_range(config["trainer"].get("num_nodes")) is not None and "TORCHELASTIC_RUN_ID" not in environ


def validate(
    config: Mapping[str, Any], environ: Mapping[str, str], *, verb: str, typed: Sequence[str], multirun: bool
) -> list[str]:
    """Return an error message for each requirement of trainer.num_nodes=LEAST:MOST that is not met."""
    num_nodes, cluster = config["trainer"]["num_nodes"], config["cluster"]
    key = f"trainer.num_nodes={num_nodes}"
    if verb != "train" or multirun:
        what = "a sweep" if multirun else verb
        return [
            f"trainer.num_nodes must be a single number for {what}, got {num_nodes}. Hint: set trainer.num_nodes=1."
        ]
    least, most = node_range(num_nodes) or (1, 1)
    given = {key_of(option): option.partition("=")[2] for option in typed}
    found: list[str] = []
    if least > most:
        found.append(
            f"trainer.num_nodes must be LEAST:MOST, got {num_nodes}. Hint: set trainer.num_nodes={most}:{least}."
        )
    if config["strategy"]["name"] in batch_split.DATA_PARALLEL:
        name = config["strategy"]["name"]
        found.append(f"strategy={name} runs in one process, but {key} requests several nodes. Hint: set strategy=ddp.")
    try:
        address = requested_address(cluster, environ)
        if address is None or address.host is None:
            found.append(
                f"{key} needs the address of the node that serves the rendezvous during the whole run. "
                "Hint: set cluster.address=HOST:29500 on every node, or set trainer.num_nodes=1."
            )
    except ConfigError as error:
        found += error.mistakes
    if "hydra.run.dir" not in given:
        found.append(
            f"{key} needs one run folder, on a disk that all nodes share. "
            "Hint: set hydra.run.dir=FOLDER to the same folder on every node."
        )
    if not cluster["max_restarts"]:
        found.append(
            f"{key} restarts training when a node is lost, but cluster.max_restarts is 0. "
            "Hint: set cluster.max_restarts=10 to allow 10 restarts."
        )
    if given.get("resume", "auto") not in ("auto", "null"):
        found.append(
            f"resume must be auto with {key}, got {given['resume']}. Hint: set hydra.run.dir={given['resume']} instead."
        )
    numbered = [name for name in ("node_rank", "rank", "local_rank", "world_size") if cluster[name] is not None]
    found += [
        f"cluster.{name} must be null with {key}, because nodes are numbered in order of arrival. "
        f"Hint: leave cluster.{name} out."
        for name in numbered
    ]
    return found
