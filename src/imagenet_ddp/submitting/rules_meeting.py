"""Where the processes meet, torchrun's numbers, and sweeps."""

import re
from collections.abc import Iterator

from imagenet_ddp.submitting.case import Case, Finding
from imagenet_ddp.submitting.expansion import Word

_HERE = r"localhost|127(\.\d+){3}|\[?::1\]?"


def addresses(case: Case) -> Iterator[Finding]:
    variables, several = case.launch.command.variables, (case.nodes or 1) > 1
    endpoint = _endpoint(case)
    places = [("MASTER_ADDR", variables.get("MASTER_ADDR"))]
    if case.launch.torchrun is not None:
        places += [("the meeting point of torchrun", endpoint)]
    for what, word in places:
        if several and word and word.known and re.match(rf"({_HERE})(:|$)", word.text):
            text = f"{what} is {word.text}: on each of {case.nodes} nodes that is another machine."
            yield Finding(
                word.line or case.line,
                text,
                'the first node: $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            )
    if not case.in_array:
        return
    port = variables.get("MASTER_PORT")
    fixed = [("MASTER_PORT", port)] if port and port.known and port.text.isdecimal() else []
    if endpoint and (found := re.search(r":(\d+)$", endpoint.text)):
        fixed.append(("torchrun's port", Word(found[1], True, endpoint.line)))
    for what, word in fixed:
        text = f"{what} is {word.text} in all tasks of the array: two on one node would meet each other."
        hint = (
            "leave it out."
            if what == "MASTER_PORT" and case.launch.torchrun is None
            else "$((29500 + SLURM_JOB_ID % 1000))"
        )
        yield Finding(word.line or case.line, text, hint)


def torchrun(case: Case) -> Iterator[Finding]:
    if case.launch.torchrun is None:
        return
    each, nodes = case.tasks_per_node, case.nodes
    if case.launch.srun is not None and nodes and (each or 0) > 1:
        what = f"torchrun starts the processes of a node, but the step has {each} tasks on each."
        yield Finding(case.line, what, f"srun --ntasks={nodes} --ntasks-per-node=1 torchrun ...")
    asked = case.launch.torchrun_value("nnodes")
    if asked and asked.known and asked.text.isdecimal() and nodes and int(asked.text) != nodes:
        what = f"torchrun waits for --nnodes={asked.text}, but the job has {nodes}."
        yield Finding(asked.line or case.line, what, 'torchrun --nnodes="$SLURM_JOB_NUM_NODES" ...')
    elif asked is None and (nodes or 1) > 1:
        what = f"torchrun without --nnodes starts a world of its own on each of {nodes} nodes."
        yield Finding(case.line, what, 'torchrun --nnodes="$SLURM_JOB_NUM_NODES" ...')
    count = case.launch.torchrun_value("nproc-per-node")
    if count and count.known and count.text.isdecimal():
        number = int(count.text)
    else:
        number = None if count else 1
    if number and case.wanted.devices is not None and number != case.wanted.devices:
        what = f"torchrun starts {number} on each node, but trainer.devices is {case.wanted.devices}."
        hint = f"torchrun --nproc-per-node={case.wanted.devices} ..."
        yield Finding(count.line if count and count.line else case.line, what, hint)
    elif (
        number
        and case.wanted.devices is None
        and case.wanted.accelerator != "cpu"
        and 0 < (case.gpus_per_node or 0) < number
    ):
        what = f"torchrun starts {number} on each node, but a node of the job has {case.gpus_per_node} GPUs."
        yield Finding(case.line, what, f"#SBATCH --gpus-per-node={number}")


def sweeps(case: Case) -> Iterator[Finding]:
    array = case.script.option("array")
    if array and any(word.text.startswith("hydra/launcher=submitit") for word in case.typed):
        what = (
            f"{array.text}, and hydra/launcher=submitit_slurm makes a job array too: each task would submit all jobs."
        )
        yield Finding(array.line, what, "leave one of them out.")
        return
    if case.wanted.launcher or case.launch.verb != "train":
        return
    if case.sweeps and array is None and (case.num_tasks or 1) > 1 and case.launch.srun is not None:
        last = (case.wanted.num_jobs or 1) - 1
        what = f"-m runs its jobs one after the other by itself, but the step has {case.num_tasks} tasks."
        yield Finding(
            case.line,
            what,
            f"#SBATCH --array=0{f'-{last}' if last else ''}, a task for each job; or scripts/sweep.sbatch",
        )
    if not array:
        return
    given = re.fullmatch(r"([\d,-]+)(%\d+)?", array.value)
    numbers = [number for part in given[1].split(",") for number in _span(part)] if given else None
    jobs = case.wanted.num_jobs
    if case.sweeps and jobs and numbers is not None and sorted(numbers) != list(range(jobs)):
        # a part of them may be meant, a number that is no job cannot
        wrong = max(numbers) >= jobs
        what = f"{array.text} does not fit the {jobs} jobs of -m, 0 to {jobs - 1}" + (
            "." if wrong else ": some are not run."
        )
        limit = given[2] or "" if given else ""
        yield Finding(
            array.line, what, f"#SBATCH --array=0{f'-{jobs - 1}' if jobs > 1 else ''}{limit}", is_mistake=wrong
        )
    elif not case.sweeps and not any("SLURM_ARRAY" in word.text for word in case.launch.command.words):
        what = f"each task of {array.text} runs the same: there is no -m, and no SLURM_ARRAY_TASK_ID in the options."
        yield Finding(array.line, what, "python -m imagenet_ddp.train -m seed=0,1,2", is_mistake=False)


def _endpoint(case: Case) -> Word | None:
    found = case.launch.torchrun_value("rdzv-endpoint")
    if found is None and (address := case.launch.torchrun_value("master-addr")):
        port = case.launch.torchrun_value("master-port") or Word("29500")
        found = Word(f"{address.text}:{port.text}", address.known and port.known, address.line)
    return found


def _span(part: str) -> list[int]:
    first, _, last = part.partition("-")
    return list(range(int(first), int(last or first) + 1)) if first.isdecimal() and (last or first).isdecimal() else []


RULES = (addresses, torchrun, sweeps)
