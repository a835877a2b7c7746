"""Train on nodes that may leave and come back (trainer.num_nodes=LEAST:MOST). The command on each node starts ranks as
torchrun would, and restarts them from the run's last checkpoint when nodes leave or join. Importing this module does
not import torch."""

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from imagenet_ddp.cli import parse
from imagenet_ddp.cli.overrides import in_folder, plain, typed_value
from imagenet_ddp.config.keys import key_of
from imagenet_ddp.distributed.elastic_nodes import ElasticNodes, node_range
from imagenet_ddp.distributed.launchers.request import requested_address
from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.distributed.spawn import Workers
from imagenet_ddp.errors import RunError
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.signals import raise_on_signal
from imagenet_ddp.system import console
from imagenet_ddp.system.text import first_line

OF_THE_COMMAND = ("cluster", "cluster.address", "cluster.max_restarts", "resume")  # not passed on to its ranks
PAUSE_S, ANSWER_S = 1.0, 5.0


def run(request: parse.Request, train: Callable[[], Any]) -> float | None:
    """Run this node's ranks until the training has ended, and return the best val/top1, a fraction. train: main
    function of a rank. Raises WorkersFailedError if ranks fail, and RunError if the nodes do not meet or the node that
    must stay is gone."""
    with raise_on_signal():
        config = plain(request.configs[0])
        from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousError

        from imagenet_ddp.distributed import devices
        from imagenet_ddp.distributed.rendezvous.store import resolve

        num_local = devices.num_local_processes(config)
        address = requested_address(config["cluster"], os.environ)
        assert address is not None and address.host is not None
        host = resolve(address.host)
    is_host = interfaces.is_local(host)
    least, most = node_range(config["trainer"]["num_nodes"]) or (1, 1)
    here = host if is_host else interfaces.source_address(host) or host
    nodes = ElasticNodes(least, most, host, address.port, here, is_host, config["cluster"]["max_restarts"])
    run_dir = Path(typed_value(request, "hydra.run.dir") or "").resolve()
    options = [option for option in request.argv if key_of(option) not in OF_THE_COMMAND]
    argv = in_folder([*options, "resume=auto"], "hydra.run.dir", run_dir)
    timeout_s = config["cluster"]["timeout_s"]
    started_s = time.time()
    while True:
        try:
            return Workers(_rank, (train, argv), num_local, timeout_s=timeout_s, elastic=nodes).run()
        except RendezvousError as error:
            problem = RunError(
                f"{nodes.range} must meet at {host}:{address.port} within {timeout_s:g} s (cluster.timeout_s), but did"
                f" not: {first_line(error.__cause__ or error).rstrip('.')}. Hint: run the same command on each node to"
                " continue the run, or set another port in cluster.address."
            )
            if not is_host and isinstance(error, RendezvousConnectionError):
                try:
                    with raise_on_signal():
                        _wait_for(host, address.port, timeout_s)
                    continue
                except RunError as silent:
                    problem = silent
        ended = run_dir / "summary.json"
        if folder.finished_epochs(run_dir) is None or ended.stat().st_mtime < started_s:  # else other nodes finished it
            raise problem
        console.print_message(f"{run_dir} is finished.", sys.stdout)
        return folder.summary(run_dir).get("best/val/top1")


def _rank(train: Callable[[], Any], argv: list[str]) -> Any:
    sys.argv = ["imagenet_ddp.train", *argv]
    try:
        return train()
    except Exception:  # torch writes it to a file that is not shown
        console.print_message(traceback.format_exc())
        sys.exit(1)


def _wait_for(host: str, port: int, timeout_s: float) -> None:
    """Wait until the node that must stay answers. Raises RunError after timeout_s."""
    print(f"The node at {host}:{port} does not answer. Waiting for it for at most {timeout_s:g} s.", flush=True)
    end = time.monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection((host, port), ANSWER_S):
                return
        except OSError as error:
            if time.monotonic() > end:
                raise RunError(
                    f"the node at {host}:{port} has not answered for {timeout_s:g} s (cluster.timeout_s), last error:"
                    f" {error.strerror or error}. Hint: run the same command on both nodes to continue the run."
                ) from error
        time.sleep(PAUSE_S)
