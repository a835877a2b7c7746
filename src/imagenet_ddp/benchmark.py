"""python -m imagenet_ddp.benchmark benchmark=loader data=... data.root=FOLDER: how many images per second reach the
model on this machine, from files and packed, and whether that is what training waits for. No torch before the command
line is found good.

Exit codes: 0 done, 1 failed, 2 refused, 128 + n stopped by signal n.
"""

import os
import sys

from imagenet_ddp import check, screen, session
from imagenet_ddp.benchmarking import asked
from imagenet_ddp.importing import heavy
from imagenet_ddp.run.signals import exit_on_signal
from imagenet_ddp.schema import ConfigError, RunError


@screen.until_closed()
def main() -> None:
    exit_on_signal()
    try:
        plan = asked.read(sys.argv[1:], os.environ)
        if plan is None:  # --help, --cfg: Hydra prints, and no more
            session.with_hydra("benchmark", sys.argv[1:], lambda config: None)
            return
        with heavy():
            from imagenet_ddp.benchmarking import loader  # torch from here on

        loader.run(plan, session.command("benchmark", sys.argv[1:]))
    except RunError as error:
        screen.say(str(error))
        sys.exit(1)
    except ConfigError as error:
        check.refuse(error, "benchmark")


if __name__ == "__main__":
    main()
