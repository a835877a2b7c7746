"""Detect the launcher, the rank of this process and the rendezvous address from options and environment variables.

docs/launching.md has a row for each kind of launcher, and the first row that matches applies. table.py lists the
variables of the launchers. This module does not import torch.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from imagenet_ddp.distributed.launchers import ranks, slurm, table
from imagenet_ddp.distributed.launchers.request import LaunchRequest as LaunchRequest
from imagenet_ddp.distributed.launchers.request import requested_address, typed_ranks
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.distributed.secret import read_secret
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, example, must_be, setting, without, without_effect
from imagenet_ddp.system import interfaces


def detect(request: LaunchRequest, environ: Mapping[str, str]) -> Place:
    """Return the place of the first row that matches. Raises ConfigError if the row or the options are refused."""
    found, cluster = _first_row(request, environ), request.cluster
    if request.one_process and not found.is_alone:
        what = f"strategy={request.one_process} runs in one process, but {found.launcher} requests several"
        hint = "start the command once, without a launcher"
        raise ConfigError(Mistake(what, ("strategy",), (setting("strategy=ddp"),), hint))
    secret = None if found.is_alone else read_secret(cluster.secret_file, environ)
    known = {"job_id": cluster.job_id or found.job_id, "run_key": _run_key(environ, found), "secret": secret}
    return replace(found, hosts_move="KUBERNETES_SERVICE_HOST" in environ, **known)


def _first_row(request: LaunchRequest, environ: Mapping[str, str]) -> Place:
    cluster, in_torchrun, has_rank = request.cluster, "TORCHELASTIC_RUN_ID" in environ, "RANK" in environ
    any_launcher = cluster.name != "env"  # which ignores all launchers but torchrun
    row = table.process_launcher(environ) if any_launcher else None
    step = any_launcher and slurm.is_step_of_several(environ)
    assigned_by = row.name if row else slurm.job_name(environ) if step else None
    assigned_by = "torchrun" if in_torchrun else None if has_rank else assigned_by  # RANK: by a person, or a platform
    if assigned_by is None:
        if found := _typed_rank(request, environ):
            return found
    elif given := typed_ranks(cluster):
        keys = tuple(f"cluster.{key}" for key in given)
        raise ConfigError(Mistake(f"{assigned_by} assigns the ranks", keys, (without(*keys),)))
    is_rank = in_torchrun or {"RANK", "LOCAL_RANK"} <= environ.keys() or row or step
    if any_launcher and not is_rank and request.num_nodes != 1 and (found := _machine(request, environ)):
        return found
    # WORLD_SIZE alone may be exported in a batch script
    if (has_rank or not (row or step)) and (found := _rank_in_variables(request, environ)):
        return found
    if row:
        return _process(row, request, environ)
    if step:
        return _step(request, environ)
    if any_launcher:
        slurm.refuse_batch_shell(request, environ)
    found = _typed_node(request, environ)
    if any_launcher and found is None:
        _refuse_unknown_size(request, environ)
    return found or Place(is_node=True)


def _typed_rank(request: LaunchRequest, environ: Mapping[str, str]) -> Place | None:
    """Read cluster.rank, cluster.local_rank and cluster.world_size, which default to RANK, LOCAL_RANK and WORLD_SIZE.
    Return None if none of them is set."""
    values = {key.upper(): str(value) for key, value in typed_ranks(request.cluster).items()}
    typed = {name: value for name, value in values.items() if name in ranks.OPTIONS}
    if not typed:
        return None
    names = {name: option for name, option in ranks.OPTIONS.items() if name in typed or name not in environ}
    return ranks.read_ranks(request, {**environ, **typed}, "cluster.rank", names)


def _rank_in_variables(request: LaunchRequest, environ: Mapping[str, str]) -> Place | None:
    """Return the place of the rank in RANK, WORLD_SIZE, ...; None unless there is one command per process."""
    cluster, in_torchrun = request.cluster, "TORCHELASTIC_RUN_ID" in environ
    by_node = cluster.node_rank is not None or "NODE_RANK" in environ
    if not {"RANK", "WORLD_SIZE"} & environ.keys():
        per_node = by_node or ((request.num_nodes or 1) > 1 and environ.get("MASTER_ADDR"))
        if cluster.name != "env" or per_node:
            return None
    if in_torchrun and cluster.address:
        what = f"torchrun determines the rendezvous address, but cluster.address is {cluster.address}"
        raise ConfigError(Mistake(what, ("cluster.address",), (without("cluster.address"),)))
    if by_node and request.num_nodes is not None and not (in_torchrun or "LOCAL_RANK" in environ):
        counts_machines = environ.get("WORLD_SIZE") == str(request.num_nodes)
        if counts_machines or ("RANK" not in environ and request.num_nodes > 1):
            return None
    return ranks.read_ranks(request, environ, "torchrun" if in_torchrun else "environment variables")


def _process(row: table.ProcessLauncher, request: LaunchRequest, environ: Mapping[str, str]) -> Place:
    """Read the variables of mpirun and its like."""
    number = table.process_numbers(row, environ)
    size, num_nodes = int(number["WORLD_SIZE"]), request.num_nodes
    if num_nodes and size % num_nodes == 0:
        number.setdefault("LOCAL_WORLD_SIZE", str(size // num_nodes))
    is_here = request.num_nodes == 1 or number.get("LOCAL_WORLD_SIZE") == number["WORLD_SIZE"]
    here = {"MASTER_ADDR": "127.0.0.1"} if is_here else {}
    names = {"WORLD_SIZE": row.size, "RANK": row.rank}
    return _launched(row.name, names, {**here, **environ, **number}, request, request.devices)


def _step(request: LaunchRequest, environ: Mapping[str, str]) -> Place:
    """Read the variables of a SLURM step of several tasks."""
    slurm.refuse_shell_of_pty(request, environ)
    devices = request.devices or (None if request.cpu else slurm.gpus_per_node(environ))
    names = {"WORLD_SIZE": "SLURM_STEP_NUM_TASKS"}
    number = slurm.step_numbers(environ)
    found = _launched(slurm.job_name(environ), names, {**environ, **number}, request, devices)
    return replace(found, job_id=slurm.step_id(environ))


def _launched(
    name: str, names: Mapping[str, str], environ: Mapping[str, str], request: LaunchRequest, devices: int | None
) -> Place:
    """Build the place from the variables of a launcher, put into those of torchrun. With one process per node and
    several devices, each command starts the workers of its node. names: the launcher's own names."""
    by_node = environ.get("LOCAL_WORLD_SIZE") == "1" and (devices or 1) > 1
    found = ranks.read_ranks(replace(request, devices=None) if by_node else request, environ, name, names)
    if not by_node:
        return found
    return replace(found, is_node=True, rank=0, local_rank=0, world_size=1, local_world_size=0)


def _machine(request: LaunchRequest, environ: Mapping[str, str]) -> Place | None:
    """Return the place of this machine if it is one of several that a platform has started, otherwise None.

    Raises ConfigError if the options contradict the platform, or if the other machines do not run the command.
    """
    found = table.machines(environ)
    if found is None:
        return None
    row, num, given = found
    started = f"{row.name} has {num} machines ({row.num})"
    only_here = "set trainer.num_nodes=1 to train on this machine only"
    if request.num_nodes not in (None, num):
        what, keys = f"{started}, but trainer.num_nodes is {request.num_nodes}", ("trainer.num_nodes",)
        raise ConfigError(Mistake(what, keys, (without("trainer.num_nodes"),), only_here))
    if not row.is_started:
        if request.num_nodes is not None:
            return None
        raise ConfigError(
            f"{started}, but starts a batch script only on the first of them. Hint: start the command with mpiexec, or "
            f"on each machine with trainer.num_nodes={num} cluster.address=tcp://{given['MASTER_ADDR']}:29500, or "
            f"{only_here}."
        )
    try:
        node = _typed_node(replace(request, num_nodes=num), {**environ, **given})
    except ConfigError as error:
        found = [replace(mistake, what=f"{started}: {mistake.what}") for mistake in error.mistakes]
        raise ConfigError(found) from error
    assert node is not None
    return replace(node, launcher=row.name)


def _typed_node(request: LaunchRequest, environ: Mapping[str, str]) -> Place | None:
    """Return the place of this node if trainer.num_nodes > 1, with one command typed per node; otherwise None.

    Raises ConfigError if the node rank, the address and trainer.num_nodes do not match.
    """
    cluster, num_nodes = request.cluster, request.num_nodes
    given = {name: environ[name] for name in ("NODE_RANK", "GROUP_RANK") if name in environ}
    if cluster.node_rank is not None:
        given = {"cluster.node_rank": str(cluster.node_rank)}
    key, node_rank = next(iter(given.items()), ("", None))
    # an option is deliberate, but a variable may be left over from another program
    deliberate = key == "cluster.node_rank" or cluster.name == "env"
    if node_rank is not None and num_nodes is None and (deliberate or node_rank != "0"):
        what = f"{key}={node_rank} means that there are several nodes, but trainer.num_nodes is not set"
        hint = (
            "set trainer.num_nodes=<number of nodes> and cluster.address=tcp://HOST:29500 on every node, or remove "
            f"{key} if it is left over"
        )
        raise ConfigError(Mistake(what, (key, "trainer.num_nodes"), hint=hint))
    is_valid = node_rank is None or (node_rank.isdecimal() and int(node_rank) < (num_nodes or 1))
    if num_nodes is not None and not is_valid and (num_nodes > 1 or deliberate):
        allowed = f"from 0 to {num_nodes - 1} (trainer.num_nodes={num_nodes})"
        hint = "set cluster.node_rank, which numbers the nodes from 0"
        raise ConfigError(must_be(key, allowed, node_rank or "an empty value", hint=hint))
    address = requested_address(cluster, environ)  # which also refuses cluster=tcp and cluster=file without an address
    if num_nodes is None or num_nodes == 1:
        if cluster.address is not None:
            what = (
                f"cluster.address={cluster.address} is for runs on several nodes, but trainer.num_nodes is "
                f"{num_nodes or 'not set'}"
            )
            ways = without_effect("cluster.address"), example("trainer.num_nodes=2")
            keys = ("cluster.address", "trainer.num_nodes")
            raise ConfigError(Mistake(what, keys, ways if num_nodes == 1 else ways[::-1]))
        # a batch script may export the address for any number of nodes, which SLURM knows
        if (
            num_nodes is None
            and address
            and not ("SLURM_JOB_ID" in environ or interfaces.names_loopback(str(address.host)))
        ):
            what = (
                f"MASTER_ADDR={address.host} means that several nodes take part, but trainer.num_nodes is not set, so "
                "that each of them would train alone"
            )
            ways = (
                example("trainer.num_nodes=2", aim="if there are two"),
                setting("trainer.num_nodes=1", aim="to use this machine only"),
            )
            raise ConfigError(Mistake(what, ("MASTER_ADDR", "trainer.num_nodes"), ways))
        return None
    if address is None:
        what = (
            f"trainer.num_nodes={num_nodes} needs a rendezvous address, but cluster.address and MASTER_ADDR are not set"
        )
        hint = f"on every node, type `MASTER_ADDR=<address of node 0> {request.line}`"
        raise ConfigError(Mistake(what, ("trainer.num_nodes", "cluster.address"), hint=hint))
    source = "MASTER_ADDR" if cluster.address is None else "cluster.address"
    number = None if node_rank is None else int(node_rank)
    return Place(
        node_rank=number, local_world_size=0, num_nodes=num_nodes, address=address, launcher=source, is_node=True,
        is_typed=True,
    )  # fmt: skip


def _refuse_unknown_size(request: LaunchRequest, environ: Mapping[str, str]) -> None:
    """Raise ConfigError if a launcher or platform has numbered this process or machine above 0, but no variable says
    how many there are."""
    if slurm.in_step(environ):
        return
    names = [*table.RANKS, *([] if request.num_nodes == 1 else table.NODE_RANKS)]
    for name in names:
        if environ.get(name, "").isdecimal() and int(environ[name]) > 0:
            raise ConfigError(
                f"{name}={environ[name]} means that this is one of several commands, but no variable contains their "
                "number. Hint: start the command with torchrun; or set trainer.num_nodes=NODES and "
                "cluster.address=tcp://HOST:29500, with cluster.rank and cluster.world_size if there are several "
                f"commands per node; or run `unset {name}` if the variable is left over."
            )


def _run_key(environ: Mapping[str, str], found: Place) -> str | None:
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    # torch generates a new ID at each start if none is set
    made_up = re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", run_id)
    if run_id != "none" and not made_up and not found.is_node:
        return "torchrun_" + re.sub(r"[^\w.-]", "_", run_id)
    return slurm.run_key(environ)


def with_known_host(found: Place, environ: Mapping[str, str]) -> Place:
    """Replace a host name that does not resolve with the address that SLURM has for that node."""
    if found.address is None or found.host is None or "SLURM_JOB_ID" not in environ:
        return found
    try:
        interfaces.resolve(found.host)
    except OSError:
        if host := slurm.node_address(found.host):
            return replace(found, address=replace(found.address, host=host))
    return found


def restarts_left(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun --max-restarts starts this job again after a failure."""
    done, most = (environ.get(f"TORCHELASTIC_{name}", "0") for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return done.isdecimal() and most.isdecimal() and int(done) < int(most)


def restarted(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun --max-restarts or a SLURM requeue has restarted this job."""
    names = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    return any(environ.get(name, "0").isdecimal() and int(environ.get(name, "0")) > 0 for name in names)
