"""Train image classifiers with PyTorch Lightning and Hydra. `python -m imagenet_ddp` lists the commands."""

import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_ddp.version import __version__ as __version__

if TYPE_CHECKING:
    from imagenet_ddp.use.classifier import load as load

BEGIN_S = time.monotonic()  # when this process began


def _require_system() -> None:
    """End with a sentence where modules of Python that this package needs (fcntl, resource) do not exist."""
    if sys.platform != "win32":
        return
    sentence = (
        "imagenet_ddp needs Linux or macOS, got Windows. "
        "Hint: run `wsl --install`, and type the same commands in the Linux that it installs."
    )
    if _is_command():
        print(sentence, file=sys.stderr)
        sys.exit(2)
    raise ImportError(sentence)


def _is_command() -> bool:
    """Return whether this process is a command, which imports the package first, and not a program that uses it."""
    if sys.argv[:1] == ["-m"]:
        return _module_typed().split(".")[0] == __name__
    # a process that multiprocessing starts has the arguments of its parent in sys.argv only
    return any(Path(word).stem == "imagenet-ddp" and word in sys.orig_argv for word in sys.argv[:1])


def _module_typed() -> str:
    """Return the module after -m. While Python looks for it, the first argument is "-m"."""
    return sys.orig_argv[-len(sys.argv)].removeprefix("-m") if sys.argv[:1] == ["-m"] else ""


def _require_module() -> None:
    """End with a sentence if no module has the name after -m, for which Python has no correction."""
    folder, name = Path(__file__).parent, (*_module_typed().split("."), "")[1]
    if not name or (folder / f"{name}.py").exists() or (folder / name / "__main__.py").exists():
        return
    if (folder / name).is_dir() and _module_typed().count(".") > 1:  # one of its modules
        return
    from difflib import get_close_matches

    from imagenet_ddp.config import command_of
    from imagenet_ddp.system.console import print_message

    names = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__main__.py")}
    near = command_of(name) or get_close_matches(name.lower(), names, 1)
    hint = f"did you mean {__name__}.{' '.join(near)}?" if near else f"`python -m {__name__}` lists the commands."
    print_message(f"there is no command {__name__}.{name}. Hint: {hint}")
    if near[1:]:
        import shlex

        from imagenet_ddp.system.text import as_typed

        line = as_typed(shlex.join(["python", "-m", f"{__name__}.{near[0]}", *near[1:], *sys.argv[1:]]))
        print_message(f"\nCorrected command:\n{line}")
    sys.exit(2)


def _begin_command() -> None:
    """Prepare the process for the imports of a command, which take up to a second.

    A stop signal ends it without a traceback until the command installs its own handlers (runs/signals.py). Standard
    streams that are closed (`>&-`) become /dev/null; the next opened files would otherwise take their numbers, and
    receive what other libraries and child processes print. A comment, which zsh passes on as words, is left out.
    """
    from imagenet_ddp.system.stop_signals import STOP_SIGNALS  # which Windows does not have

    if "#" in sys.argv:
        del sys.argv[sys.argv.index("#") :]
    for number in STOP_SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):  # else it is ignored
            signal.signal(number, lambda number, frame: os._exit(128 + number))
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode)  # noqa: SIM115 (stays open)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def __getattr__(name: str) -> Any:
    """Import `load` when it is used, because it needs torch, and a command that only prints does not."""
    if name == "load":
        return importlib.import_module("imagenet_ddp.use.classifier").load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_require_system()
if _is_command():
    _require_module()
    _begin_command()
