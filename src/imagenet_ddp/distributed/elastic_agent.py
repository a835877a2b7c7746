"""Run this node's workers in an elastic run, whose nodes may leave and rejoin, with torchrun's agent and its c10d
rendezvous."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousParameters, registry

from imagenet_ddp.distributed.elastic_nodes import ElasticNodes
from imagenet_ddp.system import console
from imagenet_ddp.system.text import count_noun

STORE_S = 30  # longest wait for an answer from the store, and for the other nodes at the end
LAST_CALL_S = 10  # how long further nodes may join after the minimum number of nodes has joined
HEARTBEAT_S, LOST_HEARTBEATS = 5, 3  # a node that misses this many heartbeats is removed


class _Agent(LocalElasticAgent):
    """Agent that logs what it is waiting for, and does not restart workers that were stopped or were refused twice.

    After a single refusal, the workers are restarted, because a node may have been lost during the rendezvous.
    """

    def __init__(self, nodes: ElasticNodes, state: dict[str, Any], wait_s: int, spec: WorkerSpec):
        # workers that are stopped because a node joins may need up to wait_s to save a checkpoint
        super().__init__(spec, DefaultLogsSpecs(), exit_barrier_timeout=STORE_S, shutdown_timeout=wait_s)
        self._nodes, self._state, self._wait_s, self._num_refused = nodes, state, wait_s, 0

    def _rendezvous(self, worker_group: WorkerGroup) -> None:  # type: ignore[override]
        nodes = self._nodes
        self._state["alive_s"] = time.monotonic()
        _say(f"Waiting for {nodes.range} at {nodes.host}:{nodes.port}, at most {self._wait_s} s.")
        super()._rendezvous(worker_group)  # type: ignore[call-arg]
        size = worker_group.group_world_size
        _say(f"{count_noun(size or 0, 'node')} of at most {nodes.most} joined. This is node {worker_group.group_rank}.")

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:  # type: ignore[override]
        found: Any = super()._monitor_workers(worker_group)  # type: ignore[call-arg]
        self._state["alive_s"] = time.monotonic()
        codes = [failure.exitcode for failure in found.failures.values()]
        if codes:
            self._num_refused = self._num_refused + 1 if 2 in codes else 0
        is_stopped = self._state.get("stopped", signal.SIGUSR1) != signal.SIGUSR1
        if codes and (is_stopped or self._num_refused == 2):
            self._remaining_restarts = 0
        elif codes and self._remaining_restarts:
            _say(f"A process ended with exit code {codes[0]}. Restarts left: {self._remaining_restarts - 1}.")
        return found


def run(
    worker: Callable[..., Any],
    arguments: tuple,
    nodes: ElasticNodes,
    num_local: int,
    timeout_s: float,
    state: dict[str, Any],
) -> dict[int, Any]:
    """Run this node's workers, and return the results of the last ones, by rank.

    state: this function reads "stopped", the signal that stops the workers, and writes "alive_s", the value of
    time.monotonic() when the agent last made progress. The agent's store may block for as long as TCP keeps retrying.

    Raises ChildFailedError if the workers failed, were refused or were stopped, and RendezvousError if the node that
    serves the rendezvous cannot be reached.
    """
    # each rendezvous round gets its own store, which rank 0 serves. With the store that agents share, an agent would
    # keep the address of a round's first node although a different node is the first of the next round
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    wait_s = int(timeout_s)
    handler = registry.get_rendezvous_handler(
        RendezvousParameters(
            "c10d", f"{nodes.host}:{nodes.port}", "imagenet_ddp", nodes.least, nodes.most, nodes.here,
            is_host=nodes.is_host, timeout=wait_s, last_call_timeout=LAST_CALL_S, read_timeout=STORE_S,
            keep_alive_interval=HEARTBEAT_S, keep_alive_max_attempt=LOST_HEARTBEATS,
        )
    )  # fmt: skip
    spec = WorkerSpec(
        "train", num_local, handler, entrypoint=worker, args=arguments, max_restarts=nodes.max_restarts,
        local_addr=nodes.here,
    )  # fmt: skip
    found: Any = _Agent(nodes, state, wait_s, spec).run()
    if found.is_failed():
        raise ChildFailedError("train", found.failures)  # the rendezvous stays open, because the other nodes continue
    with contextlib.suppress(Exception):  # the node that serves the rendezvous may have left already
        handler.shutdown()
    return found.return_values


def _say(text: str) -> None:
    console.print_message(text, sys.stdout)
