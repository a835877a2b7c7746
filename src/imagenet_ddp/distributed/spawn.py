"""Start this node's worker processes with torchrun's engine, stand by them, and end as they end."""

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any, NoReturn

from imagenet_ddp.distributed.launchers.world_info import OWN_RUN_ID, WorldInfo

# Loggers of the engine, whose own warnings and tracebacks say less than the worker's.
QUIET = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing.spawn")
FORWARDED = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)


class WorkersFailedError(Exception):
    """A worker ended otherwise than with 0. exit_code: 2 refused, 128 + n stopped by signal n, 1 all else. The worker
    has already said why, on its own standard error. is_requeued: SLURM will start the job anew."""

    def __init__(self, exit_code: int, *, engine_runs: bool = False):
        super().__init__(f"a worker ended with exit code {exit_code}")
        self.exit_code = exit_code
        self.is_requeued = False
        self._engine_runs = engine_runs

    def exit(self) -> NoReturn:
        """End this process with the exit code: at once where the engine's thread still runs, because an orderly end
        aborts where that thread is in C++."""
        if self._engine_runs:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.exit_code)
        sys.exit(self.exit_code)


@dataclass
class Workers:
    """What the workers of this node run: worker(*arguments), in num_local processes, each with the variables torchrun
    sets. first: the place of this node's first worker among the workers of several nodes, which have met already; None
    where this node is alone."""

    worker: Callable[..., Any]
    arguments: tuple
    num_local: int
    first: WorldInfo | None = None
    timeout_s: float = 120.0

    def run(self) -> Any:
        """Rank 0's return value (this node's first rank's on other nodes). Raises WorkersFailedError.

        The engine runs in a thread of its own. In the main thread it would take over the signal handlers, not give
        them back, send Ctrl-C to workers that the terminal has already told, and kill what has not ended after 30
        seconds, also in the middle of a save. Here a signal is passed on once to each worker (they are in sessions of
        their own, out of the terminal's reach), and the workers end by themselves when they have saved.
        """
        result: dict[str, Any] = {}
        quiet = [logging.getLogger(name) for name in QUIET]
        levels = [logger.level for logger in quiet]
        for logger in quiet:
            logger.setLevel(logging.CRITICAL)
        engine = threading.Thread(target=self._engine, args=(result,), name="workers", daemon=True)
        asked: list[int] = []
        before = {number: signal.signal(number, lambda number, _: asked.append(number)) for number in FORWARDED}
        # one that came before these handlers is remembered by runs/signals.py
        asked += [early for handler in before.values() if (early := getattr(_owner(handler), "received", None))][:1]
        try:
            if not [number for number in asked if number != signal.SIGUSR2]:
                engine.start()
            while engine.is_alive() or asked:
                if engine.is_alive():
                    engine.join(0.1)
                if asked:
                    number = asked[0]
                    result["stopped"] = number
                    if _pass_on(number):
                        asked.pop(0)
                    elif number != signal.SIGUSR2 or not engine.is_alive():
                        # nobody is there yet: there is nothing to save. SIGUSR2 asks for another turn, and waits
                        # until this one has got on by a step
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
        from torch.distributed.launcher.api import elastic_launch

        # workers start with these signals held back, and take them once they have their own handlers (see _worker);
        # the tracker comes first, because its start lets two of them through again. It is deaf to the others for good:
        # SLURM sends SIGUSR2 to every process of a step
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        try:
            values = elastic_launch(self._config(), _worker)(self.worker, self.arguments, self.first, os.getpid())
            result["value"] = values[min(values)]
        except ChildFailedError as error:
            # negative: ended by that signal; the agent ends the survivors of a failure by SIGTERM, so any other code
            # says more
            codes = [failure.exitcode for failure in error.failures.values()]
            code = next((c for c in codes if c not in (-signal.SIGTERM, 128 + signal.SIGTERM)), codes[0])
            if "stopped" in result and code == -result["stopped"]:
                code = 128 + result["stopped"]
            elif code < 0:
                # nobody else can say it: the process is gone
                rank = next(rank for rank, failure in error.failures.items() if failure.exitcode == code)
                rank += self.first.rank if self.first else 0
                print(f"rank {rank} was ended by signal {-code} ({signal.Signals(-code).name})", file=sys.stderr)
            result["error"] = WorkersFailedError(code if code in (1, 2) or code > 128 else 1)
        except BaseException as error:
            result["error"] = error

    def _config(self) -> Any:
        from torch.distributed.launcher.api import LaunchConfig

        # the engine only starts this node's processes, and knows of no other node: who is node 0, who is missing and
        # which interface leads there has been settled before, with sentences where it could not be
        return LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self.num_local,
            run_id=OWN_RUN_ID,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            rdzv_configs={"timeout": int(self.timeout_s)},
            local_addr="127.0.0.1",
            max_restarts=0,
            start_method="spawn",
        )


def _owner(handler: object) -> object:
    return getattr(handler, "__self__", None)


def _pass_on(number: int) -> int:
    """Send the signal to every worker; how many there are."""
    workers = [process for process in multiprocessing.active_children() if process.pid is not None]
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid or 0, number)
    return len(workers)


def _worker(worker: Callable[..., Any], arguments: tuple, first: WorldInfo | None, parent: int) -> Any:
    """First lines of each worker process. Signals that came while it was starting are delivered by `worker`, which
    unblocks them when its handlers are set."""
    os.setsid()  # Ctrl-C in the terminal reaches the parent alone, which passes it on
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: a parent that is killed takes its workers along
        if os.getppid() != parent:
            sys.exit(1)
    os.environ["IMAGENET_DDP_SOURCE"] = "own workers"
    if first is not None:
        local_rank = int(os.environ["LOCAL_RANK"])
        os.environ |= {
            "RANK": str(first.rank + local_rank),
            "WORLD_SIZE": str(first.world_size),
            "GROUP_RANK": str(first.node_rank),
            "GROUP_WORLD_SIZE": str(first.num_nodes),
            "MASTER_ADDR": str(first.address),
            "MASTER_PORT": str(first.port),
            "IMAGENET_DDP_SOURCE": first.source,
        }
    return worker(*arguments)
