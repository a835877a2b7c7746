"""Detect the launcher, the rank of this process and the rendezvous address from options and environment variables.

    options and environment                           this process is
    ------------------------------------------------  --------------------------------------------------
    cluster.rank, cluster.world_size                  that rank (one command per process)
    a platform's number of machines above 1           a node: it starts its local workers
    RANK and WORLD_SIZE: torchrun, launch, manual     that rank
    the variables of mpirun, jsrun, flux, ...         that rank
    the same, one process per node, devices > 1       a node: it starts its local workers
    a SLURM step of nodes × devices tasks             the rank of its task
    a SLURM step of one task per node, devices > 1    a node: it starts its local workers
    a SLURM step of any other number of tasks         refused
    a SLURM batch shell, or salloc without srun       a single node; refused if the job has several nodes
    trainer.num_nodes > 1 and an address              a node: it starts its local workers
    none of these                                     a single node: it starts its local workers

The first row that matches applies. However, torchrun, mpirun and a SLURM step assign the ranks themselves: options
that contradict them are refused, including those of the first row. known_launchers.py lists the variables,
docs/launching.md explains each row, and tests/distributed/launchers/ tests it. This module does not import torch.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from imagenet_ddp.distributed.launchers import manual, platforms, ranks, scontrol, slurm, slurm_env
from imagenet_ddp.distributed.launchers.request import LaunchRequest, num_devices
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.distributed.nvidia_gpus import no_gpu_reason
from imagenet_ddp.distributed.strategies import batch_split
from imagenet_ddp.errors import ConfigError

RESTART_COUNT = "IMAGENET_DDP_RESTART_COUNT"  # variable that counts this command's restarts by cluster.max_restarts


def detect(
    config: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    verb: str = "train",
    typed: Sequence[str] = (),
) -> LaunchInfo:
    """Return the launch info of the first row that matches. Raises ConfigError if the row or the options are refused.

    config: the resolved config, whose types have been checked. verb: name of the command. typed: the options as typed.
    """
    cluster, trainer = config["cluster"], config["trainer"]
    one_process = config["strategy"]["name"] in batch_split.DATA_PARALLEL
    num_nodes = trainer.get("num_nodes")
    line = f"python -m imagenet_ddp.{verb} {shlex.join(typed) or f'trainer.num_nodes={num_nodes}'}"
    request = LaunchRequest(
        num_nodes if isinstance(num_nodes, int) else None,
        None if one_process else num_devices(trainer.get("devices")),
        cluster,
        line,
        no_gpu_reason(trainer) is not None,
    )
    by_tasks = cluster["name"] != "env"
    launcher = ranks.launcher_name(environ, by_tasks=by_tasks)
    detectors = [ranks.from_options] if launcher is None else []
    detectors += [platforms.one_per_machine] if by_tasks else []
    detectors += [ranks.from_env_vars]
    if by_tasks:
        detectors += [ranks.from_process_launcher, slurm.from_step, slurm.refuse_batch_shell]
    detectors += [manual.one_per_node]
    if by_tasks:
        detectors += [ranks.refuse_unknown_size]
    found = next((found for detector in detectors if (found := detector(request, environ)) is not None), LaunchInfo())
    ranks.refuse_unreadable(environ)
    if one_process and not found.standalone:
        raise ConfigError(
            f"strategy={config['strategy']['name']} runs in one process, but {found.source} requests several. "
            "Hint: set strategy=ddp, or start the command once, without a launcher."
        )
    if launcher is not None:
        _refuse_contradictions(cluster, launcher, found)
    return replace(found, job_id=cluster["job_id"] or found.job_id, run_key=_run_key(environ, found))


def with_known_host(found: LaunchInfo, environ: Mapping[str, str]) -> LaunchInfo:
    """Replace a host name that does not resolve with the address that SLURM has for that node."""
    if found.address is None or found.host is None or "SLURM_JOB_ID" not in environ:
        return found
    try:
        interfaces.resolve(found.host)
    except OSError:
        if host := scontrol.node_address(found.host):
            world_info = replace(found.world_info, address=host) if found.world_info else None
            return replace(found, address=replace(found.address, host=host), world_info=world_info)
    return found


def _refuse_contradictions(cluster: Mapping[str, Any], launcher: str, found: LaunchInfo) -> None:
    launched: dict[str, int | None] = {"node_rank": found.node_rank}
    if found.world_info is not None:
        launched |= {key: getattr(found.world_info, key) for key in ("rank", "local_rank", "world_size", "node_rank")}
    given = {key: cluster[key] for key in ("rank", "local_rank", "world_size", "node_rank") if cluster[key] is not None}
    differing = [
        f"cluster.{key}={value} "
        f"({f'{launcher} assigns {launched[key]}' if key in launched else 'each task starts its own workers'})"
        for key, value in given.items()
        if launched.get(key) != value
    ]
    if differing:
        raise ConfigError(
            f"{launcher} assigns the ranks, but these options differ: {', '.join(differing)}. "
            f"Hint: leave {', '.join(f'cluster.{key}' for key in given)} out."
        )


def _run_key(environ: Mapping[str, str], found: LaunchInfo) -> str | None:
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    # torch generates a new ID at each start if none is set
    made_up = re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", run_id)
    if run_id != "none" and not made_up and found.world_info is not None:
        return "torchrun_" + "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in run_id)
    return slurm_env.run_key(environ)


def restarted(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun --max-restarts, a SLURM requeue or cluster.max_restarts has restarted this job."""
    names = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", RESTART_COUNT)
    return any(environ.get(name, "0").isdecimal() and int(environ.get(name, "0")) > 0 for name in names)
