"""Keep the list of the members that have arrived, and find who is missing and who does not fit. Does not import
torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from imagenet_ddp.system.text import count_noun, shorten_list


@dataclass
class Roster:
    """Members that are expected, and members that have arrived. label: formats a number, for example as "rank 3 (node
    1, local rank 1)". hint: hint for the error after a timeout."""

    size: int
    noun: str  # rank or node
    label: Callable[[int], str]
    hint: str
    job_id: str | None = None
    arrived: dict[int, dict[str, Any]] = field(default_factory=dict)  # by order of arrival

    @property
    def is_complete(self) -> bool:
        return len(self.arrived) >= self.size

    def progress(self, seconds: float) -> str:
        return f"{len(self.arrived)} of {self.size} {self.noun}s joined after {seconds:.0f} s"

    def missing(self) -> str:
        arrived = list(self.arrived.values())
        numbers = {each["number"] for each in arrived}
        if None in numbers:
            more = count_noun(self.size - len(arrived), f"more {self.noun}")
            return f"Joined: {hosts(arrived)}. Missing: {more}."
        labels = [self.label(number) for number in range(self.size) if number not in numbers]
        return f"Missing: {shorten_list(labels, 10)}."

    def conflicts(self) -> list[str]:
        """Return the errors that can be detected before all members have arrived."""
        found, noun, arrived = [], self.noun, list(self.arrived.values())
        job_ids = sorted({str(each["job_id"]) for each in arrived})
        if len(job_ids) > 1:
            found.append(
                f"two jobs use the same address: cluster.job_id is {' and '.join(job_ids)} ({hosts(arrived)}). "
                "Hint: set a different address for each job."
            )
        sizes = sorted({each["size"] for each in arrived})
        if len(sizes) > 1:
            whose = "; ".join(f"{size} on {hosts([e for e in arrived if e['size'] == size])}" for size in sizes)
            found.append(
                f"the number of {noun}s must be the same in all commands, got {whose}. "
                "Hint: set the same trainer.num_nodes and trainer.devices in each command."
            )
        for number in sorted({each["number"] for each in arrived if each["number"] is not None}):
            same = [each for each in arrived if each["number"] == number]
            if len(same) > 1:
                key = "cluster.node_rank or NODE_RANK" if noun == "node" else "RANK or cluster.rank"
                found.append(
                    f"{noun} {number} must be unique, but is claimed by {hosts(same, pids=True)}. "
                    f"Hint: set a different {key} in each command."
                )
        if not found and len(arrived) > self.size:
            found.append(
                f"{len(arrived)} {noun}s joined, but {self.size} are expected: {hosts(arrived, pids=True)}. "
                f"Hint: start one command for each {noun}, or set cluster.job_id if two jobs share an address."
            )
        return found


def hosts(members: Sequence[Mapping[str, Any]], *, pids: bool = False) -> str:
    names = [f"{each['host']} (process {each['pid']})" if pids else each["host"] for each in members]
    return ", ".join(dict.fromkeys(names))
