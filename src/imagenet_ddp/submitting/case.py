"""What the rules look at, and what they find. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from imagenet_ddp.submitting.directives import Directives, Option
from imagenet_ddp.submitting.expansion import Command, Word
from imagenet_ddp.submitting.job import Allocation, Launch, gpus_per_node
from imagenet_ddp.submitting.wanted import Wanted

# Commands whose processes are one world; tune starts steps of its own.
OF_A_WORLD = ("train", "doctor", "evaluate", "predict")


@dataclass(frozen=True)
class Finding:
    line: int
    what: str
    hint: str
    is_mistake: bool = True


@dataclass
class Script:
    text: str
    directives: Directives
    allocation: Allocation
    launches: list[Launch]
    commands: list[Command]

    def option(self, *names: str) -> Option | None:
        return self.directives.last(*names)

    def line_of(self, *names: str) -> int:
        """Of the #SBATCH line that says it, else the first #SBATCH line."""
        option = self.option(*names)
        return option.line if option else min((each.line for each in self.directives.options), default=1)

    def traps(self, commands: Sequence[Command]) -> bool:
        return any(
            command.words[0].text == "trap" and {"USR2", "SIGUSR2", "12"} & {word.text for word in command.words[2:]}
            for command in commands
            if command.words
        )


@dataclass
class Case:
    """One line that starts a command, with what its options want and the numbers of its step."""

    script: Script
    launch: Launch
    wanted: Wanted
    typed: list[Word] = field(default_factory=list)  # the command's options

    @property
    def line(self) -> int:
        return self.launch.line

    def option(self, *names: str) -> Option | None:
        """Of srun, else of #SBATCH."""
        return self.launch.asked(*names) or self.script.option(*names)

    @property
    def nodes(self) -> int | None:
        asked = self.launch.asked("nodes")
        if asked is None:
            return self.script.allocation.nodes
        return _number(asked)

    @property
    def per_node_asked(self) -> int | None:
        asked = self.launch.asked("ntasks-per-node")
        if asked is None:
            return self.script.allocation.per_node
        return _number(asked)

    @property
    def num_tasks(self) -> int | None:
        """Of the step. srun's --ntasks-per-node counts only where neither it nor the job says --ntasks."""
        asked, job = self.launch.asked("ntasks"), self.script.allocation
        if asked is not None:
            return _number(asked)
        if job.num_tasks is not None or self.script.option("ntasks"):
            return job.num_tasks
        if self.launch.asked("ntasks-per-node"):
            return None if self.nodes is None or self.per_node_asked is None else self.nodes * self.per_node_asked
        return self.nodes

    @property
    def tasks_per_node(self) -> int | None:
        if not self.nodes or self.num_tasks is None or self.num_tasks % self.nodes:
            return None
        return self.num_tasks // self.nodes

    @property
    def gpus_per_node(self) -> int | None:
        of_step = gpus_per_node(self.launch.srun or [], self.nodes, self.num_tasks)
        return self.script.allocation.gpus_per_node if of_step == 0 else of_step

    @property
    def in_array(self) -> bool:
        return self.script.option("array") is not None

    @property
    def sweeps(self) -> bool:
        """-m, and not one job of it alone."""
        texts = [word.text for word in self.typed]
        one = any(text.startswith("sweep.job=") and text not in ("sweep.job=auto", "sweep.job=all") for text in texts)
        flags = {"-m", "--multirun"} & set(texts) or any(text.startswith("sweep.resume=") for text in texts)
        return bool(flags) and not one


def _number(option: Option) -> int | None:
    """None: only the job knows."""
    return int(option.value) if option.value.isdecimal() else None
