"""python -m imagenet_ddp.prepare prepare=imagenet|stl10|pack|check: what is done once with the images, before training.
No torch before the command line is found good.

Exit codes: 0 done, and nothing bad found; 1 something bad found, or failed; 2 refused; 128 + n stopped by signal n.
"""

import importlib
import sys

from imagenet_ddp.cli import command, mistakes
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.prepare import options
from imagenet_ddp.prepare.options import FailedError

MODULES = {"imagenet": "imagenet.prepare", "stl10": "stl10", "pack": "pack.pack", "check": "check.check"}


def main() -> None:
    with command.run_command("prepare"):
        plan = command.planned("prepare", options.read)
        try:
            # here, because pack and check cost torch
            code = importlib.import_module(f"imagenet_ddp.prepare.{MODULES[plan.name]}").run(plan)
        except (FailedError, RunError) as error:
            failed = error if isinstance(error, FailedError) else ConfigError(str(error))
            mistakes.show(failed, "prepare", "what is finished is kept")
            code = 1
        sys.exit(code)


if __name__ == "__main__":
    main()
