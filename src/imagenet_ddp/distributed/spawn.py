"""Start this node's worker processes with torchrun's elastic agent, forward signals to them, and return their exit
code."""

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.system.console import discard_closed_terminal
from imagenet_ddp.system.idle_cores import Cores
from imagenet_ddp.system.process import exit_at_once, start_resource_tracker

# Loggers of the engine, which are silenced because their warnings and tracebacks add nothing to the worker's.
QUIET = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing.spawn")
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


class WorkersFailedError(Exception):
    """Raised when a worker has failed and has printed the reason.

    exit_code: 2 if the worker was refused, 128 + n if signal n stopped it, otherwise 1. is_requeued: whether SLURM will
    requeue the job.
    """

    def __init__(self, exit_code: int, reason: str = "", *, engine_runs: bool = False):
        super().__init__(f"a worker ended with exit code {exit_code}")
        self.exit_code, self.reason = exit_code, reason
        self.is_requeued = False
        self._engine_runs = engine_runs

    def exit(self) -> NoReturn:
        """End this process with the exit code.

        If the engine's thread is still running, the process ends without clean-up, because a normal exit aborts while
        that thread is in C++ code.
        """
        if self._engine_runs:
            exit_at_once(self.exit_code)
        sys.exit(self.exit_code)


@dataclass
class Workers:
    """Run worker(world_info, *arguments) in num_local processes of this node.

    Each process has the environment variables that torchrun sets, because libraries read them. first: ranks of this
    node's first worker if several nodes have joined; None on a single node. cores: for all workers, if counted.
    """

    worker: Callable[..., Any]
    arguments: tuple[Any, ...]
    num_local: int
    first: WorldInfo | None = None
    timeout_s: float = 120.0
    cores: Cores | None = None

    def run(self) -> Any:
        """Run the workers and return the result of this node's first rank. Raises WorkersFailedError if a worker fails.

        The engine runs in its own thread. In the main thread, it would replace the signal handlers without restoring
        them, send Ctrl-C to workers that have already received it from the terminal, and kill all workers that are
        still running after 30 seconds, even while they save a checkpoint. Here, each worker receives a signal only
        once, because workers run in their own sessions, which the terminal does not signal. A worker ends by itself
        after it has saved its checkpoint.
        """
        result: dict[str, Any] = {}
        quiet = [logging.getLogger(name) for name in QUIET]
        levels = [logger.level for logger in quiet]
        for logger in quiet:
            logger.setLevel(logging.CRITICAL)
        engine = threading.Thread(target=self._engine, args=(result,), name="workers", daemon=True)
        received: list[int] = []
        before = {
            number: signal.signal(number, lambda number, _: received.append(number))
            for number in FORWARDED
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN  # nohup
        }
        # runs/signals.py records a signal that arrived before these handlers were set
        owners = [getattr(handler, "__self__", None) for handler in before.values()]
        received += [early for owner in owners if (early := getattr(owner, "received", None))][:1]
        try:
            if not [number for number in received if number != signal.SIGUSR2]:
                engine.start()
            while engine.is_alive() or received:
                if engine.is_alive():
                    engine.join(0.1)
                if received:
                    number = received[0]
                    if number == signal.SIGHUP:
                        discard_closed_terminal()
                    result["stopped"] = number
                    if _forward(number):
                        received.pop(0)
                    elif number != signal.SIGUSR2 or not engine.is_alive():
                        # no worker has started, so there is nothing to save. SIGUSR2 requests a requeue, which waits
                        # until this run has made at least one step
                        name = signal.Signals(number).name
                        print(f"Stopped by {name}, with nothing to save yet.", file=sys.stderr)
                        raise WorkersFailedError(128 + number, engine_runs=engine.is_alive())
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for logger, level in zip(quiet, levels, strict=True):
                logger.setLevel(level)
        if "error" in result:
            raise result["error"]
        return result["value"]

    def _engine(self, result: dict[str, Any]) -> None:
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

        # workers start with these signals blocked until they have set their own handlers (see _worker)
        start_resource_tracker(FORWARDED)
        try:
            values = self._launch()
            result["value"] = values[min(values)]
        except ChildFailedError as error:
            # a negative code is the signal that ended the worker. After a failure, the agent ends the other workers
            # with SIGTERM, so any other code is more informative
            codes = [failure.exitcode for failure in error.failures.values()]
            code = next((c for c in codes if c not in (-signal.SIGTERM, 128 + signal.SIGTERM)), codes[0])
            reason = ""
            if "stopped" in result and code == -result["stopped"]:
                code = 128 + result["stopped"]
            elif code < 0:
                # a process that is ended by a signal cannot print the reason itself
                rank = next(rank for rank, failure in error.failures.items() if failure.exitcode == code)
                rank += self.first.rank if self.first else 0
                reason = f"rank {rank} was ended by signal {-code} ({signal.Signals(-code).name})"
                print(reason, file=sys.stderr)
            result["error"] = WorkersFailedError(code if code in (1, 2) or code > 128 else 1, reason)
        except BaseException as error:
            result["error"] = error

    def _launch(self) -> dict[int, Any]:
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        # the engine only starts this node's processes, because the rendezvous has already found the other nodes
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=self.num_local, run_id="imagenet_ddp", rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0", rdzv_configs={"timeout": int(self.timeout_s)}, local_addr="127.0.0.1",
            max_restarts=0, start_method="spawn",
        )  # fmt: skip
        return elastic_launch(config, _worker)(self.worker, self.arguments, self.first, self.cores, os.getpid())


def _forward(number: int) -> int:
    """Send the signal to every worker, and return the number of workers."""
    workers = [process for process in multiprocessing.active_children() if process.pid is not None]
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid or 0, number)
    return len(workers)


def _worker(
    worker: Callable[..., Any], arguments: tuple[Any, ...], first: WorldInfo | None, cores: Cores | None, parent: int
) -> Any:
    """Prepare a worker process and run `worker`, which unblocks the signals once it has set its handlers."""
    os.setsid()  # Ctrl-C in the terminal reaches only the parent, which forwards it
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: the workers end if their parent is killed
        if os.getppid() != parent:
            sys.exit(1)
    local_rank, local_world_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    first = first or WorldInfo(
        world_size=local_world_size,
        local_world_size=local_world_size,
        address=os.environ["MASTER_ADDR"],
        port=int(os.environ["MASTER_PORT"]),
        source="own workers",
    )
    info = replace(first, rank=first.rank + local_rank, local_rank=local_rank, is_worker=True, cores=cores)
    os.environ |= {
        "RANK": str(info.rank),
        "WORLD_SIZE": str(info.world_size),
        "GROUP_RANK": str(info.node_rank),
        "GROUP_WORLD_SIZE": str(info.num_nodes),
        "MASTER_ADDR": str(info.address),
        "MASTER_PORT": str(info.port),
    }
    return worker(info, *arguments)
