"""Restore what a test, or a package that it imports first, leaves changed in its process: the next test would meet it,
and the result of a test would depend on the order of the tests."""

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

Read = Callable[[], Any]
Write = Callable[[Any], object]
# set by pytest, with the first forked command, and by the first command or rank that meets others in a process
IGNORED = (b"PYTEST_CURRENT_TEST", b"IMAGENET_DDP_FORK_SERVER", b"TORCH_CPP_LOG_LEVEL")
# SIGALRM is pytest-timeout's
SIGNALS = [*map(signal.Signals, (1, 2, 10, 12, 13, 15, 17, 18))] if sys.platform == "linux" else [signal.SIGINT]


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109  # a third of the time of Path.cwd
    except FileNotFoundError:
        return "a folder that has been removed"


def _environ() -> dict[bytes, bytes]:
    found = dict(os.environ._data)  # type: ignore[attr-defined]  # decoding it would take a hundred times longer
    # mlflow sets a variable of its own when it is imported: _MLFLOW_TELEMETRY_SESSION_ID
    return {name: value for name, value in found.items() if name not in IGNORED and name[:1] != b"_"}


def _set_environ(before: dict[bytes, bytes]) -> None:
    for name in _environ().keys() - before.keys():
        del os.environb[name]
    os.environb.update(before)


def _set_handlers(before: list[Any]) -> None:
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def _log() -> tuple[int, list[logging.Handler]]:
    handlers = [each for each in logging.root.handlers if not type(each).__module__.startswith("_pytest")]
    return logging.root.level, handlers


def _set_log(before: tuple[int, list[logging.Handler]]) -> None:
    logging.root.setLevel(before[0])
    for handler in [handler for handler in _log()[1] if handler not in before[1]]:
        logging.root.removeHandler(handler)


def _set_hooks(before: tuple[Any, Any]) -> None:
    sys.excepthook, threading.excepthook = before


def _umask() -> int:
    os.umask(mask := os.umask(0o022))
    return mask


def _path() -> list[str]:
    return [folder for folder in sys.path if "site-packages" not in folder]  # onnxruntime adds folders of its own


def _set_path(before: list[str]) -> None:
    sys.path[:] = [*before, *(folder for folder in sys.path if "site-packages" in folder)]


def _set_argv(before: list[str]) -> None:
    sys.argv[:] = before


OF_PYTHON: dict[str, tuple[Read, Write]] = {
    "current folder": (_folder, lambda before: os.chdir(before if Path(before).is_dir() else Path(__file__).parent)),
    "os.environ": (_environ, _set_environ),
    "signal handlers": (lambda: [signal.getsignal(number) for number in SIGNALS], _set_handlers),
    "sys.path": (_path, _set_path),
    "sys.argv": (lambda: sys.argv.copy(), _set_argv),
    "hooks of uncaught errors": (lambda: (sys.excepthook, threading.excepthook), _set_hooks),
    "root logger": (_log, _set_log),
    "timeout of sockets": (socket.getdefaulttimeout, socket.setdefaulttimeout),
    "umask": (_umask, os.umask),
    **({"cores": (lambda: os.sched_getaffinity(0), lambda before: os.sched_setaffinity(0, before))}
       if hasattr(os, "sched_getaffinity") else {}),
}  # fmt: skip


def _of_torch() -> dict[str, tuple[Read, Write]]:
    import torch
    from torch.backends import cudnn

    def set_cudnn(before: tuple[bool, bool]) -> None:
        cudnn.benchmark, cudnn.deterministic = before

    return {
        "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "torch's default device": (torch.get_default_device, torch.set_default_device),
        "torch's threads": (torch.get_num_threads, torch.set_num_threads),
        "torch's gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
        "torch's deterministic mode": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        "torch's matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "cuDNN's mode": (lambda: (cudnn.benchmark, cudnn.deterministic), set_cudnn),
        "process group": (torch.distributed.is_initialized, lambda _: torch.distributed.destroy_process_group()),
    }


_TABLE = dict(OF_PYTHON)


def read() -> dict[str, Any]:
    """Return the state that tests of one process share."""
    if len(_TABLE) == len(OF_PYTHON) and "torch.backends" in sys.modules:
        _TABLE.update(_of_torch())
    return {name: get() for name, (get, _) in _TABLE.items()}


def restore(before: dict[str, Any]) -> None:
    """Restore what is no longer as it was."""
    for name, value in before.items():
        get, write = _TABLE[name]
        if get() != value:
            write(value)
