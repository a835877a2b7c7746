"""python -m imagenet_ddp.benchmark benchmark=loader data=... data.root=FOLDER: measure how many images per second the
loader delivers on this machine, from files and packed, and whether training waits for it. Imports torch only once the
command line is valid.

Exit codes: 0 done, 1 failed, 2 refused, 128 + n stopped by signal n.
"""

import sys

from imagenet_ddp.benchmark import options
from imagenet_ddp.cli import command, overrides
from imagenet_ddp.system.heavy_imports import import_torch


def main() -> None:
    with command.run_command("benchmark"):
        plan = command.planned("benchmark", options.read)
        with import_torch():
            from imagenet_ddp.benchmark import loader  # torch from here on

        loader.run(plan, overrides.shell_line("benchmark", sys.argv[1:]))


if __name__ == "__main__":
    main()
