"""What a script asks of SLURM, and how it starts the command: numbers, where they can be known. No torch."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from imagenet_ddp.submitting import expansion
from imagenet_ddp.submitting.directives import Directives, Option, take
from imagenet_ddp.submitting.expansion import Command, Word

OTHER_LAUNCHERS = ("mpirun", "mpiexec", "accelerate", "pdsh", "ssh")
TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")


class Allocation:
    """The job's own numbers; None: not said, or not to be known."""

    def __init__(self, directives: Directives):
        self.directives = directives
        self.nodes = _nodes(directives.last("nodes"))
        self.ntasks = _count(directives.last("ntasks"))
        self.per_node = _count(directives.last("ntasks-per-node"))
        self.cpus = _count(directives.last("cpus-per-task"))
        self.gpus_per_node = gpus_per_node(directives.options, self.nodes, self.num_tasks)
        self.exclusive = directives.last("exclusive") is not None

    @property
    def num_tasks(self) -> int | None:
        """SLURM_NTASKS, which srun takes where it is not told otherwise. Not set where no line says it."""
        if self.ntasks is not None or self.nodes is None or self.per_node is None:
            return self.ntasks
        return self.nodes * self.per_node

    @property
    def environ(self) -> dict[str, str | None]:
        """What the batch script finds, of that which follows from the lines."""
        tasks = None if self.num_tasks is None else str(self.num_tasks)
        found: dict[str, str | None] = {"SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks}
        found["SLURM_NTASKS_PER_NODE"] = None if self.per_node is None else str(self.per_node)
        found["SLURM_CPUS_PER_TASK"] = None if self.cpus is None else str(self.cpus)
        if self.gpus_per_node is not None:
            found["SLURM_GPUS_ON_NODE"] = str(self.gpus_per_node) if self.gpus_per_node else None
        if self.nodes is not None:
            found |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(self.nodes))
        return found


@dataclass
class Launch:
    """A line that starts one of this project's commands."""

    command: Command
    verb: str  # train, doctor, ...
    words: list[Word]  # the command's options
    srun: list[Option] | None = None  # None: without srun
    torchrun: list[Word] | None = None  # its words, without the options of the command
    inner: list[Command] = field(default_factory=list)  # of bash -c '...'
    unclear: list[Word] = field(default_factory=list)  # words before the command that may be any options

    @property
    def line(self) -> int:
        return self.command.line

    def asked(self, *names: str) -> Option | None:
        """srun's option that wins."""
        return next((option for option in reversed(self.srun or []) if option.name in names), None)

    def torchrun_value(self, *names: str) -> Word | None:
        """Of --nnodes=2, --nnodes 2 or --nnodes=1:2, with - or _."""
        words = self.torchrun or []
        for number, word in enumerate(words):
            name, equals, value = word.text.partition("=")
            if name.startswith("--") and name[2:].replace("_", "-") in names:
                return Word(value, word.known) if equals else next(iter(words[number + 1 :]), None)
        return None


def launches(text: str, allocation: Allocation) -> tuple[list[Launch], list[Command]]:
    """(the lines that start a command of this project, all commands)."""
    commands = expansion.run(text, allocation.environ)
    return [launch for command in commands if (launch := _launch(command, allocation))], commands


def _launch(command: Command, allocation: Allocation) -> Launch | None:
    words = command.words
    if not words or words[0].text in ("echo", "printf", "[[", "[", "for", "case", "trap"):
        return None
    words, inner = _unwrapped(words, allocation)
    texts = [word.text for word in words]
    module = next((n for n, text in enumerate(texts) if text.startswith("imagenet_ddp.") and texts[n - 1] == "-m"), 0)
    if not module:
        return None
    before = words[: module - 1]
    launch = Launch(command, texts[module].partition(".")[2], words[module + 1 :], inner=inner)
    names = [PurePath(word.text).name for word in before]
    launch.unclear = [word for word in before if not word.known and word.text[0] in "$`"]
    launch.unclear += [word for word in before if word.text in OTHER_LAUNCHERS]
    if "srun" in names:
        place = names.index("srun")
        options = take([word.text for word in before[place + 1 :]], command.line, to_command=True)[0]
        # a part that is not known must not pass for a number
        unknown = {word.text for word in before if not word.known}
        launch.srun = [option for option in options if not any(option.text in text for text in unknown)]
        before, names = before[place + 1 :], names[place + 1 :]
    starts = [n for n, name in enumerate(names) if name == "torchrun" or (name in TORCHRUN and names[n - 1] == "-m")]
    if starts:
        launch.torchrun = before[starts[-1] + 1 :]
    return launch


def _unwrapped(words: Sequence[Word], allocation: Allocation) -> tuple[list[Word], list[Command]]:
    """bash -c 'string' arguments... with the string's words in its place, and its commands."""
    texts = [PurePath(word.text).name for word in words]
    for number, text in enumerate(texts[:-2]):
        if text in ("bash", "sh") and re.fullmatch(r"-[a-z]*c", texts[number + 1]):
            string, arguments = words[number + 2], words[number + 4 :]
            inner = expansion.run(string.text, allocation.environ, first_line=string.line, arguments=arguments)
            starts = [each for each in inner if any(word.text.startswith("imagenet_ddp.") for word in each.words)]
            return [*words[:number], *(starts[0].words if starts else [])], inner
    return list(words), []


def gpus_per_node(options: Sequence[Option], nodes: int | None, num_tasks: int | None) -> int | None:
    """0 where no option asks for GPUs, None where it cannot be known."""
    for option in reversed(options):
        counts = list(_gpu_counts(option))
        if option.name in ("gpus-per-node", "gpus", "gpus-per-task") or (option.name == "gres" and counts):
            if not counts or None in counts:
                return None
            count = sum(number for number in counts if number is not None)
            if option.name == "gpus":
                return None if nodes is None else count // nodes
            if option.name == "gpus-per-task":
                return None if nodes is None else count * max(1, (num_tasks or nodes) // nodes)
            return count
    return 0


def _gpu_counts(option: Option) -> Iterator[int | None]:
    """--gres=gpu:a100:4,shm:1 -> 4; --gpus-per-node=a100:4 -> 4."""
    for part in option.value.split(","):
        pieces = part.split("(")[0].replace("=", ":").split(":")
        if option.name == "gres":
            if pieces[0] not in ("gpu", "gres/gpu"):
                continue
            pieces = pieces[1:] or ["1"]
        if pieces[-1].isdecimal():
            yield int(pieces[-1])
        else:
            yield 1 if option.name == "gres" and len(pieces) == 1 and pieces[0].isidentifier() else None


def _count(option: Option | None) -> int | None:
    return int(option.value) if option and option.value.isdecimal() else None


def _nodes(option: Option | None) -> int | None:
    """A span such as 2-4 leaves it open; without the option SLURM gives as few as the tasks need, here taken for 1."""
    if option is None:
        return 1
    first, _, last = option.value.partition("-")
    return int(first) if first.isdecimal() and last in ("", first) else None


def seconds(text: str) -> float | None:
    """SLURM's times: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes[:seconds]."""
    if text.upper() in ("UNLIMITED", "INFINITE", "0", "-1"):
        return float("inf")
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not found:
        return None
    days, *rest = found.groups()
    numbers = [int(number) for number in rest if number is not None]
    if days is not None:
        hours, minutes, secs = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, secs = numbers
    else:
        hours, minutes, secs = 0, *(*numbers, 0)[:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + secs
