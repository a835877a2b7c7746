"""Read the command line of benchmark into a plan, or report every mistake at once. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_ddp.cli import overrides, single_process
from imagenet_ddp.data import validate as data_check
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.folder import make_given, make_new
from imagenet_ddp.system.cpu_cores import num_cores

# The packs are made from image files, and compared with them.
FILE_SOURCES = ("imagefolder", "imagenet", "shapes", "table")


@dataclass(frozen=True)
class Plan:
    options: Mapping[str, Any]  # benchmark.*
    config: Mapping[str, Any]  # resolved, plain
    num_workers: tuple[int, ...]  # numbers of loader processes to compare
    folder: Path  # of this benchmark; made


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Plan | None:
    """Return None where Hydra only prints something. Make the run folder; raise ConfigError with every mistake."""
    parsed = single_process.read_single_process("benchmark", argv, environ, "a benchmark is to be alone on its machine")
    if parsed is None:
        return None
    request, mistakes = parsed.request, parsed.found
    options, data = parsed.config["benchmark"], parsed.config["data"]
    if data["_target_"] or data["name"] not in FILE_SOURCES:
        mistakes.append(
            f"data must be a source of image files for benchmark=loader, which packs them to compare, got "
            f"{data['_target_'] or data['name']}. Hint: data=imagefolder data.root=FOLDER."
        )
    else:
        mistakes += data_check.validate(parsed.config, parsed.environ)
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))
    assert request.hydra is not None
    wanted = Path(request.hydra.run.dir)
    folder = make_given(wanted) if overrides.typed_value(request, "hydra.run.dir") else make_new(wanted)
    return Plan(options, parsed.config, tuple(options["num_workers"] or _powers(num_cores())), folder)


def _powers(cores: int) -> list[int]:
    """Return 0, 1, 2, 4, ... up to the number of cores."""
    return [0, *(2**power for power in range(cores.bit_length()) if 2**power <= cores)]
