"""Read the ranks from a SLURM step, and refuse a batch shell that would use only its own node."""

from collections.abc import Mapping

from imagenet_ddp.distributed.launchers import slurm_env
from imagenet_ddp.distributed.launchers.address import Address
from imagenet_ddp.distributed.launchers.request import LaunchRequest
from imagenet_ddp.distributed.launchers.tasks import LOCALHOST, SCRIPTS_HINT, Tasks, assign_ranks, port_or_default
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import count_noun


def from_step(request: LaunchRequest, environ: Mapping[str, str]) -> LaunchInfo | None:
    step = slurm_env.read_step(environ)
    if step is None:
        return None
    address = request.address(environ)
    if address is None and (step.num_nodes == 1 or step.first_host):
        # on one node no name has to resolve
        host = LOCALHOST if step.num_nodes == 1 else step.first_host
        more = () if environ.get("MASTER_PORT") else step.ports[1:]
        address = Address(host, port_or_default(environ, step.ports[0]), more_ports=more)
    if address is None:
        raise ConfigError(
            f"{step.name} has {step.num_nodes} nodes, but neither SLURM_STEP_NODELIST, cluster.address nor MASTER_ADDR "
            "gives an address. Hint: cluster.address=tcp://<address of the first node>:29500."
        )
    per_node = step.tasks_per_node[0] if len(set(step.tasks_per_node)) == 1 else None
    return assign_ranks(
        request,
        environ,
        Tasks(
            step.name, step.num_tasks, step.num_nodes, step.local_task, step.node, per_node, step.gpus_per_node,
            "SLURM_STEP_NUM_TASKS", "#SBATCH --ntasks-per-node", "#SBATCH --nodes={}", SCRIPTS_HINT,
            address, _job_id(step, environ),
        ),
    )  # fmt: skip


def _job_id(step: slurm_env.Step, environ: Mapping[str, str]) -> str:
    """Name the step, and its restart: the ports of the run before may still be in use."""
    restart = environ.get("SLURM_RESTART_COUNT", "0")
    return f"{step.name}.{step.step_id}" + (f", restart {restart}" if restart != "0" else "")


def refuse_batch_shell(request: LaunchRequest, environ: Mapping[str, str]) -> LaunchInfo | None:
    """Refuse a command of several nodes that srun did not start, since only this node would run it; unless options name
    the node rank or an address: then the other nodes are started in another way."""
    if "SLURM_JOB_ID" not in environ:
        return None
    job_nodes, in_step = slurm_env.num_job_nodes(environ), slurm_env.in_step(environ)
    others_come = request.cluster["address"] or request.cluster["node_rank"] is not None or "NODE_RANK" in environ
    if (request.num_nodes or (1 if in_step else job_nodes)) <= 1 or (others_come and request.num_nodes is not None):
        return None
    job = environ["SLURM_JOB_ID"]
    per_node = f" --ntasks-per-node={request.devices}" if request.devices else ""
    if request.num_nodes is None:
        here, only = "", ", or trainer.num_nodes=1 for this node alone"
    else:
        here, only = f" and trainer.num_nodes is {request.num_nodes}", ""
    if request.num_nodes is not None and request.num_nodes > job_nodes:
        hint = f"`sbatch --nodes={request.num_nodes}`, and in its script `srun{per_node} {request.line}`"
    else:
        nodes = f" --nodes={request.num_nodes}" if in_step else ""
        hint = f"`srun{nodes}{per_node} {request.line}`{only}"
    started = "is the only task of its step" if in_step else "was not started by srun"
    raise ConfigError(
        f"SLURM job {job} has {count_noun(job_nodes, 'node')}{here}, but this command {started}, so it "
        f"runs on one. Hint: {hint}."
    )
