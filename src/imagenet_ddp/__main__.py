"""List the commands, or run one: `python -m imagenet_ddp train` does the same as `python -m imagenet_ddp.train`."""

import importlib
import importlib.util
import sys
from difflib import get_close_matches

from imagenet_ddp.cli import help
from imagenet_ddp.config import command_of
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.system import console
from imagenet_ddp.system.files import exists

# The commands of other programs.
OTHER_NAMES = {name: [command] for command, others in {
    "train": ("fit", "learn", "run", "finetune", "fine-tune", "classify"), "evaluate": ("val", "test", "score"),
    "predict": ("infer", "inference", "detect", "label"), "export": ("convert",), "demo": ("serve", "app", "gradio"),
    "doctor": ("info", "settings")}.items() for name in others}  # fmt: skip


def main() -> None:
    names = [*COMMANDS, "report"]
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command in ("--help", "-h"):
        with console.exit_on_closed_pipe():
            print(help.commands())
    elif command in names:
        del sys.argv[1]
        name = f"imagenet_ddp.{command}"
        spec = importlib.util.find_spec(name)
        is_package = spec is not None and spec.submodule_search_locations is not None
        importlib.import_module(f"{name}.__main__" if is_package else name).main()
    elif command == "--version":
        print(help.versions())
    else:
        near = (
            command_of(command) or get_close_matches(command.lower(), names, 1) or OTHER_NAMES.get(command.lower(), [])
        )
        if not near and exists(command):  # a folder of photographs
            near = ["train", command]
        near = near or command_of(command, near=True)
        is_option = command.startswith("-") or "=" in command
        otherwise = f"type the command first: train {command}" if is_option else "`--help` alone says what they do"
        hint = f"did you mean {' '.join(near)}?" if near else otherwise
        mistake = Mistake(f"imagenet_ddp: the command must be one of {', '.join(names)}, got {command}", hint=hint)
        console.print_message(str(mistake))
        if near:
            from imagenet_ddp.cli.overrides import shell_line

            console.print_message(f"\nCorrected command:\n{shell_line(near[0], [*near[1:], *sys.argv[2:]])}")
        sys.exit(2)


if __name__ == "__main__":
    main()
