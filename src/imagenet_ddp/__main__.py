"""List the commands, or run one: `python -m imagenet_ddp train` does the same as `python -m imagenet_ddp.train`."""

import importlib
import importlib.util
import sys
from pathlib import Path

from imagenet_ddp.cli import help
from imagenet_ddp.cli.known_terms import closest
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.system import console
from imagenet_ddp.system.text import uv_run


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
    else:
        message = f"imagenet_ddp: the command must be one of {', '.join(names)}, got {command}."
        print(f"{message} Hint: {_hint(command, names)}", file=sys.stderr)
        sys.exit(2)


def _hint(command: str, names: list[str]) -> str:
    program = "python -m imagenet_ddp" if Path(sys.argv[0]).name == "__main__.py" else "imagenet-ddp"
    if "=" in command:
        return f"type `{uv_run()}{program} train {command} ...`."
    if close := closest(command, names):
        return f"did you mean {close[0]}?"
    return f"`{uv_run()}{program} --help` lists the commands."


if __name__ == "__main__":
    main()
