"""One process of a run, from its first line to its exit code: meet the others, do the job, say what went wrong."""

import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from imagenet_ddp.distributed.rendezvous import Place, launched_place
from imagenet_ddp.run.signals import Signals, exit_on_signal
from imagenet_ddp.schema import ConfigError


def train(config: dict[str, Any], run_dir: str, checkpoint: str | None, said: list[str], command: str) -> float | None:
    """In every process of a run. config: resolved, plain; said: lines from before, for the head of the log.

    The highest val/top1, a fraction; None without validation. Leaves by SystemExit with the project's exit codes.
    """
    signals = Signals().hold()

    def job() -> float | None:
        from imagenet_ddp import training  # torch from here on

        return training.run(config, _world(config), Path(run_dir), checkpoint, said, command, signals)

    return _as_process(job)


def evaluate(config: dict[str, Any], run_dir: str, checkpoint: str, command: str) -> float:
    """In every process of an evaluation; the top-1, a fraction."""
    exit_on_signal()

    def job() -> float:
        from imagenet_ddp import evaluation  # torch from here on

        return evaluation.run(config, _world(config), Path(run_dir), Path(checkpoint), command)

    return _as_process(job)


def _as_process(job: Callable[[], Any]) -> Any:
    from imagenet_ddp.run.stop import Stopped

    place = launched_place(os.environ) or Place()
    try:
        return job()
    except ConfigError as error:
        if place.world_size == 1:
            raise
        for mistake in error.mistakes:
            print(f"rank {place.rank}: {mistake}", file=sys.stderr, flush=True)
        sys.exit(2)
    except Stopped as stop:
        sys.exit(128 + stop.signal_number)
    except Exception:
        # shown here and whole: Hydra would cut the traceback down to its last line
        if place.world_size == 1:
            traceback.print_exc()
            sys.exit(1)
        _explain_failure(place)
        # at once: threads of Gloo and of other ranks' stores may hold up an orderly end
        sys.stderr.flush()
        os._exit(1)


def _explain_failure(place: Place) -> None:
    """This rank's own error as the thing shown; one line where it only follows another rank's."""
    try:
        from imagenet_ddp.distributed.store import connect

        store = connect(place, 2.0)
        first = int(store.add("failed/count", 1)) == 1
        if first:
            store.set("failed/first", str(place.rank))
        elif store.wait(["failed/first"], timedelta(seconds=2)) is None:
            cause = store.get("failed/first").decode()
            print(f"rank {place.rank} ends because rank {cause} failed", file=sys.stderr)
            return
    except Exception:  # the store's server may be gone already
        pass
    print(f"rank {place.rank} failed:\n{traceback.format_exc()}", file=sys.stderr)


def _world(config: dict[str, Any]) -> Any:
    from imagenet_ddp.build import World
    from imagenet_ddp.distributed.store import connect, meet

    place = launched_place(os.environ) or Place()
    if place.world_size == 1:
        return World(place)
    timeout_s = config["cluster"]["timeout_s"]
    store = connect(place, timeout_s)
    meet(store, place, timeout_s)
    return World(place, store, lambda: connect(place, timeout_s))
