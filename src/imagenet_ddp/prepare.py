"""python -m imagenet_ddp.prepare prepare=imagenet|stl10|pack|check: what is done once with the images, before training.
No torch before the command line is found good.

Exit codes: 0 done, and nothing bad found; 1 something bad found, or failed; 2 refused; 128 + n stopped by signal n.
"""

import importlib
import sys

from imagenet_ddp import check, shell
from imagenet_ddp.preparing import asked
from imagenet_ddp.preparing.asked import FailedError
from imagenet_ddp.schema import ConfigError, RunError


def main() -> None:
    with shell.answering("prepare"):
        plan = shell.planned("prepare", asked.read)
        try:
            # here, because pack and check cost torch
            code = importlib.import_module(f"imagenet_ddp.preparing.{plan.name}").run(plan)
        except (FailedError, RunError) as error:
            failed = error if isinstance(error, FailedError) else ConfigError(str(error))
            check.show(failed, "prepare", "what is finished is kept")
            code = 1
        sys.exit(code)


if __name__ == "__main__":
    main()
