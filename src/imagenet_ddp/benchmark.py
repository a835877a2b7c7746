"""python -m imagenet_ddp.benchmark benchmark=loader data=... data.root=FOLDER: how many images per second reach the
model on this machine, from files and packed, and whether that is what training waits for. No torch before the command
line is found good.

Exit codes: 0 done, 1 failed, 2 refused, 128 + n stopped by signal n.
"""

import sys

from imagenet_ddp import session, shell
from imagenet_ddp.benchmarking import asked
from imagenet_ddp.importing import heavy


def main() -> None:
    with shell.answering("benchmark"):
        plan = shell.planned("benchmark", asked.read)
        with heavy():
            from imagenet_ddp.benchmarking import loader  # torch from here on

        loader.run(plan, session.command("benchmark", sys.argv[1:]))


if __name__ == "__main__":
    main()
