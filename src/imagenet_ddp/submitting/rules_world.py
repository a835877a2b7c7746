"""Nodes, tasks, GPUs and CPUs: is the step the world that the config wants?"""

from collections.abc import Iterator

from imagenet_ddp.submitting.case import Case, Finding


def nodes(case: Case) -> Iterator[Finding]:
    asked, there = case.wanted.num_nodes, case.nodes
    if asked is not None and there is not None and asked != there:
        line = case.line if case.launch.asked("nodes") else case.script.line_of("nodes")
        what = f"the step has {_many(there, 'node')}, but trainer.num_nodes is {asked}."
        yield Finding(line, what, f"#SBATCH --nodes={asked}, or leave trainer.num_nodes out.")
    option, tasks = case.script.option("nodes"), case.script.option("ntasks")
    if option is None and tasks and tasks.value != "1" and not case.launch.asked("nodes"):
        what = f"without --nodes, SLURM spreads {tasks.text} over as many nodes as it likes."
        yield Finding(tasks.line, what, f"#SBATCH --nodes={asked or 1}")


def started(case: Case) -> Iterator[Finding]:
    """Without srun there is one process, on the first node."""
    if case.launch.srun is not None:
        return
    tasks, many = case.script.allocation.num_tasks or 1, (case.nodes or 1) > 1
    what = "torchrun" if case.launch.torchrun is not None else "python"
    if not many and tasks <= 1:
        return
    where = f"{case.nodes} nodes" if many else f"{tasks} tasks"
    hint = f"srun {_step(case)} {what} ..." if case.launch.torchrun is None else _per_node(case, what)
    yield Finding(case.line, f"{what} is started without srun: once, on the first node, in a job of {where}.", hint)


def tasks(case: Case) -> Iterator[Finding]:
    """One task per device, or one per node that starts its workers."""
    if case.launch.srun is None or case.launch.torchrun is not None or case.num_tasks is None or not case.nodes:
        return
    total, count, each = case.num_tasks, case.nodes, case.wanted.num_tasks_per_node
    option = case.launch.asked("ntasks") or case.script.option("ntasks")
    srun_each = case.launch.asked("ntasks-per-node")
    line = (
        case.line
        if case.launch.srun and case.launch.asked("ntasks")
        else case.script.line_of("ntasks", "ntasks-per-node")
    )
    if case.wanted.one_process and total > 1:
        yield Finding(line, f"the step has {total} tasks, but the strategy runs in one process.", "srun --ntasks=1 ...")
        return
    if (
        srun_each
        and not case.launch.asked("ntasks")
        and srun_each.value.isdecimal()
        and total != count * int(srun_each.value)
    ):
        what = f"srun {srun_each.text} alone changes nothing: the number of tasks is still the job's, {total}."
        yield Finding(case.line, what, f"srun --ntasks={count * int(srun_each.value)} {srun_each.text} ...")
        return
    if option and count > 1 and total != count and case.per_node_asked is None:
        what = f"{option.text} without --ntasks-per-node: SLURM need not put as many on each of {count} nodes."
        yield Finding(line, what, _number(case, each or max(1, total // count)))
    elif total % count or (each is not None and total not in (count, count * each)):
        if each is None:
            what, each = f"{total} tasks cannot be the same number on each of {count} nodes.", -(-total // count)
        else:
            expected = f"{count * each} (one per device)" + (f" or {count} (one per node)" if each > 1 else "")
            what = (
                f"the step has {_many(total, 'task')} on {_many(count, 'node')}, but trainer.devices is {each}: "
                f"expected are {expected}."
            )
        yield Finding(line, what, f"{_number(case, each)}, or leave trainer.devices out.")


def gpus(case: Case) -> Iterator[Finding]:
    there, accelerator = case.gpus_per_node, case.wanted.accelerator
    option = case.option("gpus-per-node", "gres", "gpus", "gpus-per-task")
    if there is None:
        return
    if accelerator == "cpu":
        if there:
            what = f"{option.text if option else 'the step'} asks for GPUs, but trainer.accelerator is cpu."
            yield Finding(option.line if option else case.line, what, "remove it.", is_mistake=False)
        return
    each = case.wanted.devices or (case.tasks_per_node or 1)
    if there == 0:
        explicit = accelerator in ("gpu", "cuda")
        what = "no line asks for GPUs" + ("." if explicit else ": without them, the run is one of CPUs.")
        hint = f"#SBATCH --gpus-per-node={each}, or trainer.accelerator=cpu."
        yield Finding(case.script.line_of("nodes"), what, hint, is_mistake=explicit)
    elif there < each:
        what = f"a node of the job has {_many(there, 'GPU')}, but {each} devices are needed."
        yield Finding(option.line if option else case.line, what, f"#SBATCH --gpus-per-node={each}")
    elif there > each and (case.wanted.devices is not None or each > 1):
        what = f"a node of the job has {there} GPUs, but {each} of them are used."
        hint = f"#SBATCH --gpus-per-node={each}, or trainer.devices={there} and as many tasks."
        yield Finding(option.line if option else case.line, what, hint, is_mistake=False)


def binding(case: Case) -> Iterator[Finding]:
    """Each task takes the GPU of its local rank, so it must see those of its node."""
    if case.tasks_per_node == 1 or case.wanted.accelerator == "cpu":
        return
    hint = f"#SBATCH --gpus-per-node={case.wanted.devices or case.tasks_per_node or 'N'}, and no {{}}."
    for name in ("gpus-per-task", "ntasks-per-gpu"):
        if option := case.option(name):
            what = f"{option.text} binds each task to GPUs of its own, but each rank must see all GPUs of its node."
            yield Finding(_line(case, option.name), what, hint.format(f"--{name}"))
    for option in (case.option("gpu-bind"), case.option("tres-bind"), case.option("tres-per-task")):
        if option is None or (option.name != "gpu-bind" and "gpu" not in option.value):
            continue
        if option.value.endswith("none"):
            what = f"{option.text} unsets CUDA_VISIBLE_DEVICES: on a shared node the ranks see the GPUs of other jobs."
        else:
            what = f"{option.text} binds each task to a part of the GPUs, but each rank must see all of its node."
        yield Finding(_line(case, option.name), what, hint.format(f"--{option.name}"))


def cpus(case: Case) -> Iterator[Finding]:
    job, of_job = case.script.allocation, case.script.option("cpus-per-task")
    if case.launch.srun is None:
        return
    of_step = case.launch.asked("cpus-per-task")
    exported = case.launch.command.variables.get("SRUN_CPUS_PER_TASK")
    each = case.tasks_per_node or 1
    if of_job and of_step is None and exported is None and job.cpus != 1:
        share = 'cpus-per-task="$SLURM_CPUS_PER_TASK"'
        if job.cpus and (job.num_tasks or job.nodes) == job.nodes and each > 1:
            share = f"cpus-per-task={max(1, job.cpus // each)}"
        what = f"srun does not take over {of_job.text} since SLURM 22.05: each task gets one CPU."
        yield Finding(case.line, what, f"srun --{share} ...")
    if not (job.cpus and of_step and of_step.value.isdecimal()) or job.exclusive or case.option("overcommit"):
        return
    there, needed = _cpus_per_node(case), each * int(of_step.value)
    if there is not None and needed > there:
        what = f"the step needs {needed} CPUs per node, but the job has {there}: srun refuses it."
        yield Finding(case.line, what, f"srun --cpus-per-task={max(1, there // each)} ...")


def exported(case: Case) -> Iterator[Finding]:
    if case.launch.srun is None:
        return
    option = case.launch.asked("export") or case.script.option("export")
    if option and option.value.upper() in ("NONE", "NIL"):
        what = (
            f"{option.text}: the tasks get none of the script's variables, PATH and the environment's python included."
        )
        yield Finding(_line(case, "export"), what, "srun --export=ALL ...")


def own_number(case: Case) -> Iterator[Finding]:
    """Variables of a task, put in by the batch script."""
    for word in case.launch.command.words:
        for name in ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"):
            if not word.known and name in word.text:
                what = f"${name} is put in by the batch script, where it is 0, and not by each task."
                yield Finding(word.line or case.line, what, "leave it out: the place of each task is read from SLURM.")


def _cpus_per_node(case: Case) -> int | None:
    job = case.script.allocation
    if job.cpus is None or not job.nodes:
        return None
    if job.num_tasks is not None and job.num_tasks % job.nodes:
        return None
    return job.cpus * max(1, (job.num_tasks or job.nodes) // job.nodes)


def _line(case: Case, name: str) -> int:
    return case.line if case.launch.asked(name) else case.script.line_of(name)


def _number(case: Case, each: int) -> str:
    """The line that gives each node so many tasks, where the wrong number stands."""
    if case.launch.asked("ntasks") or case.launch.asked("ntasks-per-node"):
        return f"srun --ntasks={(case.nodes or 1) * each} --ntasks-per-node={each} ..."
    without = " without --ntasks" if case.script.option("ntasks") else ""
    return f"#SBATCH --ntasks-per-node={each}{without}"


def _step(case: Case) -> str:
    each = case.wanted.num_tasks_per_node or case.gpus_per_node or 1
    return f"--ntasks={(case.nodes or 1) * each} --ntasks-per-node={each}"


def _per_node(case: Case, what: str) -> str:
    return f"srun --ntasks={case.nodes or 1} --ntasks-per-node=1 {what} ..."


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


RULES = (nodes, started, tasks, gpus, binding, cpus, exported, own_number)
