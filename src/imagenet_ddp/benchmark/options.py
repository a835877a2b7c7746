"""The command line of benchmark -> a plan, or every mistake at once. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_ddp.data import validate as data_check
from imagenet_ddp.engine import job
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.folder import make_given, make_new
from imagenet_ddp.system.cpu_cores import num_cores

# Image files are what the packed forms are made from, and compared with.
OF_FILES = ("imagefolder", "imagenet", "shapes")


@dataclass(frozen=True)
class Plan:
    options: Mapping[str, Any]  # benchmark.*
    config: Mapping[str, Any]  # resolved, plain
    num_workers: tuple[int, ...]  # numbers of loader processes to compare
    folder: Path  # of this benchmark; made


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Plan | None:
    """None where Hydra only prints something. Raises ConfigError with every mistake; else the folder is made."""
    asked = job.single("benchmark", argv, environ, "a benchmark is to be alone on its machine")
    if asked is None:
        return None
    request, found = asked.request, asked.found
    options, data = asked.config["benchmark"], asked.config["data"]
    if data["_target_"] or data["name"] not in OF_FILES:
        found.append(
            f"benchmark=loader expects image files, which it packs to compare, but data is "
            f"{data['_target_'] or data['name']}. Hint: data=imagefolder data.root=FOLDER."
        )
    else:
        found += data_check.validate(asked.config, asked.environ)
    if found:
        raise ConfigError(list(dict.fromkeys(found)))
    assert request.hydra is not None
    wanted = Path(request.hydra.run.dir)
    folder = make_given(wanted) if job.typed_value(request, "hydra.run.dir") else make_new(wanted)
    return Plan(options, asked.config, tuple(options["num_workers"] or _powers(num_cores())), folder)


def _powers(cores: int) -> list[int]:
    """0, 1, 2, 4, ... up to the cores"""
    return [0, *(2**power for power in range(cores.bit_length()) if 2**power <= cores)]
