"""Run this node's workers in a training whose nodes may come and go, with torchrun's agent and c10d rendezvous."""

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

STORE_S = 30  # for answers of the store, and for the other nodes at the end
LAST_CALL_S = 10  # for further nodes, once there are enough
HEARTBEAT_S, LOST_HEARTBEATS = 5, 3  # a node without them is out


class _Agent(LocalElasticAgent):
    """Reports what it waits for, and does not restart workers that were stopped, or refused twice: a single refusal may
    be due to a node that was lost during the rendezvous."""

    def __init__(self, nodes: ElasticNodes, state: dict[str, Any], wait_s: int, spec: WorkerSpec):
        # wait_s: workers that are stopped because a node has joined save first
        super().__init__(spec, DefaultLogsSpecs(), exit_barrier_timeout=STORE_S, shutdown_timeout=wait_s)
        self._nodes, self._state, self._wait_s, self._num_refused = nodes, state, wait_s, 0

    def _rendezvous(self, worker_group: WorkerGroup) -> None:  # type: ignore[override]
        nodes = self._nodes
        self._state["alive_s"] = time.monotonic()
        _say(f"Waiting for {nodes.range} at {nodes.host}:{nodes.port}, at most {self._wait_s} s.")
        super()._rendezvous(worker_group)  # type: ignore[call-arg]
        size = worker_group.group_world_size
        _say(f"{count_noun(size or 0, 'node')} of {nodes.most}; this is node {worker_group.group_rank}.")

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
    """Return what the last workers of this node return, by rank. Raises ChildFailedError if they failed, were refused
    or were stopped, and RendezvousError if the node that must stay cannot be reached.

    state: "stopped" is read: the signal by which the workers are stopped. "alive_s" is written: when the agent last
    made progress, by time.monotonic(); its store may not answer for as long as TCP keeps trying.
    """
    # each round has a store of its own, which rank 0 serves: with the agents' shared one, an agent keeps the address of
    # a round's first node although another one is the first of the next
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
        raise ChildFailedError("train", found.failures)  # the rendezvous stays open: the other nodes go on
    with contextlib.suppress(Exception):  # the node that stays may have left already
        handler.shutdown()
    return found.return_values


def _say(text: str) -> None:
    console.print_message(text, sys.stdout)
