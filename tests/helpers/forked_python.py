"""Stand in for `python -m MODULE ...` in a program that starts it, such as a batch script: the command is forked from
helpers/fork_server.py, and this process passes signals on to it, waits, and ends as it ended.

Run this file as a script: forked_python.py NAME_OF_SERVER -m MODULE .... It is started anew for each command, so it
imports next to nothing. If this process is killed, the server kills the command and all processes below it.
"""

import os
import pickle
import signal
import socket
import sys
from typing import NoReturn

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


def main(server: str, *words: str) -> NoReturn:
    if words[:1] != ("-m",):
        os.execv(sys.executable, [sys.executable, *words])
    blocked = [*signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)]
    ignored = [number for number in PASSED_ON if signal.getsignal(number) is signal.SIG_IGN]
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(f"\0{server}")
    request = pickle.dumps(
        ([sys.executable, *words], os.getcwd(), dict(os.environ), [0, 1, 2], ignored, blocked, True, None)  # noqa: PTH109
    )
    socket.send_fds(connection, [pickle.dumps((None, request, True))], [0, 1, 2])
    connection.recv(64)  # its pid
    # Also signals that are ignored here: a cluster signals every process of a job, and the command may have others.
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: connection.send(str(int(number)).encode()))
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    code = int(connection.recv(64) or -signal.SIGKILL)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
