"""Import torch and Lightning once, and fork the commands that helpers/forked_commands.py requests.

Run this file as a script. Its input is a listening socket. The first message of a connection is the pickled pid of the
first process of the host to run on (helpers/hosts.py; None: this machine), a request (see _run), and whether it stands
in for a process (helpers/forked_python.py); the answers are the pid of the command and, when it has ended, its exit
code. In place of a process, each further message is the number of a signal for the command and all processes below it,
and the end of the connection kills them.

A forked process behaves like `python -m module` in that folder and environment, except that most modules have been
imported. The processes that it starts with multiprocessing (ranks, loader workers), or with subprocess as `python -m`,
are forked, too. They are forked from an idle copy that the process makes of itself at its start, but they are children
of the process, as after a normal start.
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib.util
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

# Everything that a training process imports. Modules of commands are missing, because a module that runs as a command
# must not have been imported.
PRELOADED = (
    "torch", "torch.distributed.launcher.api", "torchvision.transforms.v2", "lightning.pytorch", "torchmetrics",
    "hydra", "omegaconf", "PIL.JpegImagePlugin", "matplotlib.figure", "matplotlib.backends.backend_agg", "psutil",
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks", "torch.utils.serialization",
    "imagenet_ddp.cli.command", "imagenet_ddp.launch.processes", "imagenet_ddp.launch.ranks",
    "imagenet_ddp.training.fit", "imagenet_ddp.training.train_rank", "imagenet_ddp.training.build",
    "imagenet_ddp.data.module", "imagenet_ddp.models.lightning_module",
    "imagenet_ddp.callbacks.run_files",
)  # fmt: skip
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STARTS = ("from multiprocessing.spawn import", "from multiprocessing.forkserver import")
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
LIBC = ctypes.CDLL(None, use_errno=True)
HIGH_FD = 200  # above any file descriptor that a process passes on
MESSAGE_BYTES, MAX_FDS = 1 << 20, 64
# Variables that Python and OpenMP read at their start. A forked process has the values that this server started with.
AT_START = ("PYTHON", "OMP_", "MKL_", "LC_", "LANG")


def at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(AT_START)}


def of_hub(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that huggingface_hub, which timm imports, reads when it is imported."""
    return {name: value for name, value in environment.items() if name.startswith("HF_")}


def serve() -> NoReturn:
    _end_with_parent()
    sys.path[0] = str(Path(__file__).parents[2] / "src")  # instead of this file's folder
    gc.disable()  # these imports create a million objects that are never freed
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.modules["wandb"] = None  # type: ignore[assignment]  # timm imports it, which takes longer than the rest of timm
    with contextlib.suppress(ImportError):
        importlib.import_module("timm")
    del sys.modules["wandb"]
    _prepare_command_lines(Path(sys.argv[1]))
    gc.freeze()  # a collection in a forked process would copy every page
    gc.enable()
    listener, events = socket.socket(fileno=0), select.poll()
    events.register(listener, select.POLLIN)
    running: dict[int, tuple[int, socket.socket]] = {}  # pidfd: (pid, connection) of a command
    in_place: dict[int, tuple[int, socket.socket]] = {}  # the same of those in place of a process: by the connection
    while True:
        for fd, _ in events.poll():
            if fd in running:
                events.unregister(fd)
                os.close(fd)
                pid, connection = running.pop(fd)
                if in_place.pop(connection.fileno(), None):
                    with contextlib.suppress(KeyError):  # its process has been killed
                        events.unregister(connection)
                answer = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            elif fd in in_place:
                _pass_on(*in_place[fd], events)
                continue
            elif fd == listener.fileno():
                connection, _ = listener.accept()
                pid, is_in_place = _fork_command(
                    connection, [listener, *(each for _, each in running.values())], [*running]
                )
                answer = pid
                running[pidfd := os.pidfd_open(pid)] = pid, connection
                events.register(pidfd, select.POLLIN)
                if is_in_place:
                    in_place[connection.fileno()] = pid, connection
                    events.register(connection, select.POLLIN)
            else:  # of a connection that has ended with its command
                continue
            with contextlib.suppress(OSError):  # the test no longer waits for the command
                connection.send(str(answer).encode())


def _pass_on(pid: int, connection: socket.socket, events: select.poll) -> None:
    """Send the signal that is requested there to a command and all processes below it, as a cluster does."""
    import psutil

    try:
        message = connection.recv(64, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return
    except ConnectionError:
        message = b""
    if not message:
        events.unregister(connection)
    command = psutil.Process(pid)  # it remains until it is waited for
    for each in [command, *command.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(int(message or signal.SIGKILL))


def _prepare_command_lines(folder: Path) -> None:
    """Parse the files of conf/, and fill the caches (plugins, grammars, tables of keys) that each command would fill.
    Composing a command line takes half of the CPU time of a small training, so a choice of files is composed once, and
    kept in the folder."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    from imagenet_ddp.cli.parse import command_line
    from imagenet_ddp.config.schema.commands import COMMANDS
    from imagenet_ddp.errors import ConfigError

    spec = importlib.util.spec_from_file_location("composed_once", Path(__file__).with_name("composed_once.py"))
    composed_once = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]  # of no path of the commands
    spec.loader.exec_module(composed_once)  # type: ignore[union-attr]
    composed_once.parse_files_once()
    kept: Any = functools.partialmethod(composed_once.composed, folder=folder)
    ConfigLoaderImpl.load_configuration = kept
    for verb in COMMANDS:
        with contextlib.suppress(ConfigError):  # some of them require an option
            command_line(verb, ["seed=1"], {})


def _fork_command(connection: socket.socket, others: list[socket.socket], pidfds: list[int]) -> tuple[int, bool]:
    """Fork the command that is requested there, and return its pid, and whether it stands in for a process. others,
    pidfds: what the command must close."""
    message, received, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, MAX_FDS)
    host, request, is_in_place = pickle.loads(message)
    names = ("pid", "net", "uts", "ipc", "mnt") if host else ()
    spaces = [os.open(f"/proc/{host}/ns/{name}", os.O_RDONLY) for name in names]
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    for fd in spaces[:1]:
        _enter(fd)  # takes effect for the child: a process cannot change its own pid namespace
    if (pid := os.fork()) == 0:
        for each in (connection, *others):
            each.close()
        for fd in spaces[1:]:
            _enter(fd)
        for fd in (own, *spaces, *pidfds):
            os.close(fd)
        _end_with_parent()
        _run(request, received)
    if host:
        _enter(own)
    for fd in (own, *spaces, *received):
        os.close(fd)
    return pid, is_in_place


def _enter(fd: int) -> None:
    if LIBC.setns(fd, 0):
        raise OSError(ctypes.get_errno(), "setns")


def _end_with_parent() -> None:
    """Kill this process when its parent ends, so that no process remains if the tests are killed."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _run(request: bytes, received: list[int]) -> NoReturn:
    """Become the requested process, and end with it.

    request: pickled (words of the command line, folder, environment, numbers of the received file descriptors, ignored
    signals, blocked signals, whether it leads a session, what it calls first or None).
    """
    words, folder, environment, numbers, ignored, blocked, is_session, before = pickle.loads(request)
    if is_session:
        os.setsid()
    if before:
        before()
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, HIGH_FD) for fd in received]
    for fd in received:
        os.close(fd)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    os.chdir(folder)
    hub = of_hub(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    sys.modules["numpy"].random.seed()  # as in each new Python process; `random` reseeds itself after a fork
    platform._uname_cache = None  # type: ignore[attr-defined]  # the host has another name
    tempfile.tempdir = None  # the environment may have another TMPDIR
    if hub != of_hub(environment):
        for name in [each for each in sys.modules if each.partition(".")[0] in ("huggingface_hub", "timm")]:
            del sys.modules[name]
    _fork_what_it_starts()
    is_module = words[1] == "-m"
    sys.path[:0] = [folder if is_module else "", *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    if is_module:
        sys.argv[:] = ["-m", *words[3:]]
        _run_to_the_end(runpy._run_module_as_main, words[2])  # type: ignore[attr-defined]  # what `python -m` calls
    at = words.index("-c")
    sys.argv[:] = ["-c", *words[at + 2 :]]
    _run_to_the_end(exec, words[at + 1], {"__name__": "__main__"})


def _fork_what_it_starts() -> None:
    """Make an idle copy of this process, from which the Python processes that it starts are forked."""
    # An orphan becomes a child of the nearest subreaper. This makes what the copy forks children of this process.
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    mine, copys = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        mine.close()
        _fork_on_request(copys)
    copys.close()
    spawn, execute, turn = multiprocessing.util.spawnv_passfds, subprocess._fork_exec, threading.Lock()  # type: ignore[attr-defined]
    here = at_start(os.environ)

    def fork(
        words: list[str], folder: str, environ: dict[str, str], fds: dict[int, int], is_session: bool,
        before: Callable[[], None] | None,
    ) -> int:  # fmt: skip
        """Request a process from the copy, and return its pid. fds: {descriptor there: descriptor here}."""
        ignored = [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
        blocked = [*signal.pthread_sigmask(signal.SIG_BLOCK, [])]
        request = pickle.dumps((words, folder, environ, [*fds], ignored, blocked, is_session, before))
        with turn:
            socket.send_fds(mine, [request], [*fds.values()])
            return int(mine.recv(64))

    def fork_spawned(path: bytes, args: list[Any], passfds: list[int]) -> int:
        words = [os.fsdecode(word) for word in args]
        if not any(word.startswith(STARTS) for word in words):
            return spawn(path, args, passfds)
        return fork(words, str(Path.cwd()), dict(os.environ), {fd: fd for fd in (0, 1, 2, *passfds)}, False, None)

    def fork_module(*call: Any) -> int:
        """Replace subprocess._fork_exec: fork `python -m` if its environment agrees with this one in the variables that
        Python reads at its start, and execute everything else."""
        args, _, _, kept, folder, assigned, stdin, _, _, stdout, _, stderr, _, errpipe, _, is_session, *others = call
        words = [os.fsdecode(word) for word in args]
        if words[1:2] == ["-u"]:  # torchrun starts its ranks with -u; here their output is flushed when they end
            del words[1]
        environ = dict(os.environ)
        if assigned is not None:
            environ = dict(os.fsdecode(each).split("=", 1) for each in assigned)
        *who, before = others[:6]
        is_plain = who == [-1, None, None, None, -1]  # no process group, user or umask
        if is_plain and words[0] == sys.executable and words[1:2] == ["-m"] and at_start(environ) == here:
            streams = {number: number if fd < 0 else fd for number, fd in enumerate((stdin, stdout, stderr))}
            fds = streams | {fd: fd for fd in kept if fd != errpipe}
            with contextlib.suppress(pickle.PicklingError, AttributeError, TypeError):  # `before` is a local function
                return fork(words, os.fsdecode(folder or Path.cwd()), environ, fds, is_session, before)
        return execute(*call)

    multiprocessing.util.spawnv_passfds = fork_spawned
    subprocess._fork_exec = fork_module  # type: ignore[attr-defined]


def _fork_on_request(requests: socket.socket) -> NoReturn:
    """Fork one process per message until the process that this is a copy of closes the socket."""
    # the signals are meant for other processes, and no forked process may lose one before it is set up
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    while True:
        message, fds, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, MAX_FDS)
        if not message:
            os._exit(0)
        if (between := os.fork()) == 0:
            middle = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == middle:
                time.sleep(0.001)
            requests.send(str(os.getpid()).encode())
            requests.close()
            _run(message, fds)
        os.waitpid(between, 0)
        for fd in fds:
            os.close(fd)


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
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    serve()
