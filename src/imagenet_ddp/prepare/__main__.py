"""Prepare images once, before training: python -m imagenet_ddp.prepare prepare=imagenet|pack|import|check|relabel.

Exit codes: 0 success with nothing bad found, 1 failure or something bad found, 2 refused (ConfigError), 128 + n stopped
by signal n.
"""

import importlib
import os
import sys

from imagenet_ddp.cli import command
from imagenet_ddp.prepare import options
from imagenet_ddp.runs.signals import exit_on_signal
from imagenet_ddp.system.console import print_message


def main() -> None:
    with command.run_command("prepare", lambda argv: options.read(argv, os.environ)):
        plan = command.planned("prepare", sys.argv[1:], options.read)
        data = plan.config.data
        if plan.config.prepare.name == "check":
            print_message(
                f"Checking the images of {data.root or data.target or data.name}. Loading PyTorch.", sys.stdout
            )
            exit_on_signal("The check was stopped: no list and no page is written. Nothing in the images is changed.")
        # imported after the command line is checked, because these modules import torch
        name = {"import": "pack"}.get(plan.config.prepare.name, plan.config.prepare.name)  # of other images
        module = importlib.import_module(f"imagenet_ddp.prepare.{name}")
        sys.exit(module.run(plan))


if __name__ == "__main__":
    main()
