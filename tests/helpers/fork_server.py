"""Import torch and Lightning once, and fork the processes that helpers/forked_commands.py requests.

Run this file as a script. Its input is a datagram socket, each of whose messages is JSON: [module, arguments, folder,
environment, path stem of the files to write, pid of the first process of the host (helpers/hosts.py) to run on, or
null].

A forked process behaves like `python -m module` in that folder and environment, except that most modules have been
imported. The processes that it starts with multiprocessing (ranks, loader workers), or with subprocess as `python -m`,
are forked, too. They are forked from an idle copy that the process makes of itself at its start, but they are children
of the process, as after a normal start.
"""

import atexit
import base64
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import multiprocessing.util
import os
import pickle
import platform
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

# Everything that a training process imports, except the project itself.
PRELOADED = (
    "torch", "torch.distributed.launcher.api", "torchvision.transforms.v2", "lightning.pytorch", "torchmetrics",
    "hydra", "omegaconf", "PIL.JpegImagePlugin", "matplotlib.figure", "matplotlib.backends.backend_agg", "psutil",
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks", "torch.utils.serialization",
)  # fmt: skip
# Modules of the project that a training process imports. Modules of commands are missing, because a module that runs as
# a command must not have been imported.
PROJECT = (
    "imagenet_ddp.cli.command", "imagenet_ddp.engine.launch", "imagenet_ddp.engine.worker",
    "imagenet_ddp.engine.fit", "imagenet_ddp.engine.build", "imagenet_ddp.data.module",
    "imagenet_ddp.models.lightning_module", "imagenet_ddp.callbacks.run_files",
)  # fmt: skip
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STARTS = ("from multiprocessing.spawn import", "from multiprocessing.forkserver import")
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
LIBC = ctypes.CDLL(None, use_errno=True)
SPACES = ("net", "uts", "ipc", "mnt")
HIGH_FD = 200  # above any file descriptor that a process passes on
# Variables that Python, OpenMP and huggingface_hub (imported by timm) read at their start. A forked process has the
# values that this server started with.
AT_START = ("PYTHON", "OMP_", "MKL_", "LC_", "LANG", "HF_")


def at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(AT_START)}


def serve() -> NoReturn:
    _end_with_parent()
    sys.path[0] = str(Path(__file__).parents[2] / "src")  # instead of this file's folder
    gc.disable()  # these imports create a million objects that are never freed
    for name in (*PRELOADED, *PROJECT):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.modules["wandb"] = None  # type: ignore[assignment]  # timm imports it, which takes longer than the rest of timm
    with contextlib.suppress(ImportError):
        importlib.import_module("timm")
    del sys.modules["wandb"]
    gc.freeze()  # a collection in a forked process would copy every page
    gc.enable()
    requests, events = socket.socket(fileno=0), select.poll()
    events.register(requests, select.POLLIN)
    running: dict[int, tuple[int, str]] = {}  # pidfd: (pid, path stem) of a command
    while True:
        for fd, _ in events.poll():
            if fd in running:
                events.unregister(fd)
                pid, stem = running.pop(fd)
                os.close(fd)
                _write(f"{stem}.code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                continue
            module, arguments, folder, environment, stem, host = json.loads(requests.recv(1 << 20))
            for end in ("out", "err"):
                Path(f"{stem}.{end}").touch()  # readable as soon as the pid is known
            if (pid := _fork_on(host)) == 0:
                _end_with_parent()
                for each in running:
                    os.close(each)
                _redirect(stem)
                os.setsid()
                _set_up(folder, environment, folder)
                sys.argv[:] = ["-m", *arguments]
                _run_to_the_end(runpy._run_module_as_main, module)  # type: ignore[attr-defined]  # what `python -m` calls
            _write(f"{stem}.pid", pid)
            running[pidfd := os.pidfd_open(pid)] = pid, stem
            events.register(pidfd, select.POLLIN)


def _fork_on(host: int | None) -> int:
    """Fork on a host, and return what os.fork() does: 0 in the child.

    host: pid of the first process of the host whose namespaces the child enters; None: this machine.
    """
    if host is None:
        return os.fork()
    spaces = [os.open(f"/proc/{host}/ns/{name}", os.O_RDONLY) for name in ("pid", *SPACES)]
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    _enter(spaces[0])  # takes effect for the child: a process cannot change its own pid namespace
    pid = os.fork()
    for fd in spaces[1:] if pid == 0 else [own]:
        _enter(fd)
    for fd in (own, *spaces):
        os.close(fd)
    return pid


def _enter(fd: int) -> None:
    if LIBC.setns(fd, 0):
        raise OSError(ctypes.get_errno(), "setns")


def _end_with_parent() -> None:
    """Kill this process when its parent ends, so that no process remains if the tests are killed."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _write(path: str, number: int) -> None:
    unfinished = Path(f"{path}~")
    unfinished.write_text(str(number))
    unfinished.rename(path)


def _redirect(stem: str) -> None:
    streams = ((os.devnull, os.O_RDONLY), *((f"{stem}.{end}", os.O_WRONLY) for end in ("out", "err")))
    for number, (path, flags) in enumerate(streams):
        fd = os.open(path, flags, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    _open_streams()


def _open_streams() -> None:
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]


def _set_up(folder: str, environment: dict[str, str], first_path: str) -> None:
    """Make this process equal to one started in this folder and environment, and make it fork the Python processes that
    it starts."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.modules["numpy"].random.seed()  # as in each new Python process; `random` reseeds itself after a fork
    platform._uname_cache = None  # type: ignore[attr-defined]  # the host has another name
    tempfile.tempdir = None  # the environment may have another TMPDIR
    # An orphan becomes a child of the nearest subreaper. This makes the processes that the copy forks children of this
    # process.
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    mine, copys = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        mine.close()
        _fork_on_request(copys)
    copys.close()
    sys.path[:0] = [first_path, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    spawn, execute, turn = multiprocessing.util.spawnv_passfds, subprocess._fork_exec, threading.Lock()  # type: ignore[attr-defined]
    here = at_start(environment)

    def fork(
        words: list[str], folder: str, environ: Mapping[str, str], fds: dict[int, int], session: bool,
        before: Callable[[], None] | None = None,
    ) -> int:  # fmt: skip
        """Request a process from the copy, and return its pid. fds: {descriptor there: descriptor here}. before: what
        the process calls first, which must be picklable."""
        ignored = [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
        blocked = [*signal.pthread_sigmask(signal.SIG_BLOCK, [])]
        pickled = base64.b64encode(pickle.dumps(before)).decode()
        message = json.dumps([words, folder, dict(environ), [*fds], ignored, blocked, session, pickled])
        with turn:
            socket.send_fds(mine, [message.encode()], [*fds.values()])
            return int(mine.recv(64))

    def fork_spawned(path: bytes, args: list[Any], passfds: list[int]) -> int:
        words = [os.fsdecode(word) for word in args]
        if not any(word.startswith(STARTS) for word in words):
            return spawn(path, args, passfds)
        return fork(words, str(Path.cwd()), os.environ, {fd: fd for fd in (0, 1, 2, *sorted(passfds))}, False)

    def fork_module(*call: Any) -> int:
        """Replace subprocess._fork_exec: fork `python -m` if its environment agrees with this one in the variables that
        Python reads at its start, and execute everything else."""
        args, _, _, kept, folder, assigned, stdin, _, _, stdout, _, stderr, _, errpipe, _, session, *others = call
        words = [os.fsdecode(word) for word in args]
        if words[1:2] == ["-u"]:  # torchrun starts its ranks with -u; here their output is flushed when they end
            del words[1]
        names = dict(os.fsdecode(each).split("=", 1) for each in assigned or ())
        environ = names if assigned is not None else dict(os.environ)
        *who, before = others[:6]
        plain = who == [-1, None, None, None, -1] and _is_picklable(before)  # no process group, user or umask
        if not (plain and words[0] == sys.executable and words[1:2] == ["-m"] and at_start(environ) == here):
            return execute(*call)
        streams = {number: number if fd < 0 else fd for number, fd in enumerate((stdin, stdout, stderr))}
        fds = streams | {fd: fd for fd in kept if fd != errpipe}
        return fork(words, os.fsdecode(folder) if folder else str(Path.cwd()), environ, fds, session, before)

    multiprocessing.util.spawnv_passfds = fork_spawned
    subprocess._fork_exec = fork_module  # type: ignore[attr-defined]


def _is_picklable(function: Callable[[], None] | None) -> bool:
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


def _fork_on_request(requests: socket.socket) -> NoReturn:
    """Fork one process per message until the parent closes the socket."""
    # the signals are meant for other processes, and no forked process may lose one before it is set up
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    while True:
        message, fds, _, _ = socket.recv_fds(requests, 1 << 20, 64)
        if not message:
            os._exit(0)
        begin, end = os.pipe()
        between = os.fork()
        if between == 0:
            middle = os.getpid()
            if pid := os.fork():
                os.write(end, str(pid).encode())
                os._exit(0)
            os.close(begin)
            os.close(end)
            requests.close()
            while os.getppid() == middle:
                time.sleep(0.001)
            _run_spawned(message, fds)
        os.waitpid(between, 0)
        requests.send(os.read(begin, 64))
        for fd in (begin, end, *fds):
            os.close(fd)


def _run_spawned(message: bytes, received: list[int]) -> NoReturn:
    words, folder, environment, fds, ignored, blocked, session, pickled = json.loads(message)
    if before := pickle.loads(base64.b64decode(pickled)):
        before()
    if session:
        os.setsid()
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, HIGH_FD) for fd in received]
    for fd in received:
        os.close(fd)
    for fd, number in zip(moved, fds, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    _open_streams()
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    _set_up(folder, environment, "")
    if words[1] == "-m":
        sys.path[0] = folder
        sys.argv[:] = words[1:2] + words[3:]
        _run_to_the_end(runpy._run_module_as_main, words[2])  # type: ignore[attr-defined]
    at = words.index("-c")
    sys.argv[:] = ["-c", *words[at + 2 :]]
    _run_to_the_end(exec, words[at + 1], {"__name__": "__main__"})


def _run_to_the_end(function: Callable[..., object], *args: Any) -> NoReturn:
    """Call the function, and end the process as Python would, but without taking the modules apart.

    Taking them apart would copy every page of the memory shared with the server, which takes a second.
    """
    code: object = None
    try:
        function(*args)
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
        if isinstance(error, KeyboardInterrupt):
            code = -signal.SIGINT
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the non-daemon threads
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the reader has closed the pipe
        code = 120
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    serve()
