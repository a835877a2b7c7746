"""Write a model file for other programs, and compare it with the checkpoint: python -m imagenet_ddp.export
checkpoint=PATH.

Exit codes: 0 success; 1 the file differs too much from the checkpoint, or cannot be written; 2 refused.
"""

import os
import sys

from imagenet_ddp.cli import command
from imagenet_ddp.config.schema.export import ExportConfig
from imagenet_ddp.launch.stored_config import checkpoint_path, from_checkpoint
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.process import import_torch


def main() -> None:
    with command.run_command("export"):
        request = command.request("export")
        config = from_checkpoint(request, checkpoint_path(request.config), os.environ, ExportConfig)
        with import_torch():
            from imagenet_ddp.export.push import push
            from imagenet_ddp.export.write_and_compare import export
        is_data_typed = any(option.lstrip("+").startswith(("data.", "data=")) for option in request.typed)
        for line in export(config, is_data_typed):
            print_message(line, sys.stdout)
        for line in push(config, request.argv) if config.push else ():
            print_message(line, sys.stdout)


if __name__ == "__main__":
    main()
