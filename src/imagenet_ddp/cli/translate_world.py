"""Translate what other programs say about machines, processes and devices. No torch.

--world-size counts machines beside --multiprocessing-distributed, and processes without it, so all words of the line
are read together.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_PORT = "29500"


@dataclass
class Word:
    """What was typed, and what it is here. role: its meaning is found once all words are read."""

    typed: str
    options: list[str] = field(default_factory=list)
    note: str = ""
    role: str = ""
    value: str = ""


def translate_world(
    words: Sequence[Word], said: Mapping[str, str], typed: Mapping[str, str], environ: Mapping[str, str]
) -> list[tuple[str, list[str]]]:
    """The ways in which the words on machines and processes can be meant: (which, options). Two where the line does
    not tell whether world size and rank count machines or processes."""
    nodes = parse_number(said.get("num_nodes") or typed.get("trainer.num_nodes"))
    devices = _devices(said.get("devices") or typed.get("trainer.devices", ""))
    size, rank = parse_number(said.get("world_size")), parse_number(said.get("rank"))
    address = _address(said)
    own_rank = parse_number(said.get("node_rank"))
    by_machine = size is None or size <= 1 or "one_per_gpu" in said or size == nodes
    by_machine = by_machine or (devices is not None and devices > 1 and size % devices != 0)  # type: ignore[operator]
    by_process = bool(size and nodes and devices and size == nodes * devices and size != nodes)
    if size is None and (rank or 0) > 0 and "one_per_gpu" not in said and nodes is None:
        by_machine, by_process = False, True
    machines = nodes or size or (2 if (own_rank or rank or 0) > 0 or not _is_here(address) else 1)
    together = [f"cluster.address={address}"] if address else []
    if not together and "cluster.address" not in typed and not environ.get("MASTER_ADDR"):
        together = [f"cluster.address=tcp://HOST:{said.get('master_port', _PORT)}"]
    per_machine: list[str] = []
    if machines > 1:
        number = own_rank if own_rank is not None else rank
        per_machine = [
            *([] if "trainer.num_nodes" in typed else [f"trainer.num_nodes={machines}"]),
            *([] if number is None else [f"cluster.node_rank={number}"]),
            *together,
        ]
    local = _local_rank(said, rank, size, nodes, devices)
    per_process = [
        f"cluster.world_size={'WORLD_SIZE' if size is None else size}",
        f"cluster.rank={'RANK' if rank is None else rank}",
        f"cluster.local_rank={local}",
        *together,
    ]
    ways = [("", per_machine)] if by_machine else [("", per_process)]
    if not by_machine and not by_process:
        ways = [
            ("where the world size counts processes: ", per_process),
            ("where it counts machines: ", per_machine),
        ]
    own = _own_devices(words, processes=not by_machine, several=machines > 1)
    for word in words:
        _describe(word, ways, machines > 1 or not by_machine)
    return [(which, [*([] if way is per_process else own), *way]) for which, way in ways]


def _own_devices(words: Sequence[Word], *, processes: bool, several: bool) -> list[str]:
    """trainer.devices, from a number or a list, or the one GPU."""
    found: list[str] = []
    for word in words:
        value = word.value.strip("[]() ")
        if word.role == "devices":
            if value in ("all", "-1", "auto", "gpu", ""):
                word.note = "so it is by default"
            elif value == "0":
                found = ["trainer.accelerator=cpu"]
            else:
                is_list = "," in value or "[" in word.value
                found = [
                    f"trainer.devices=[{value.replace(' ', '').strip(',')}]" if is_list else f"trainer.devices={value}"
                ]
            word.note = word.note if not found else found[0]
        elif word.role == "gpu" and not processes and not several:
            found = [f"trainer.devices=[{value}]"]
            word.note = found[0]
        elif word.role == "gpu":
            word.note = f"cluster.local_rank={value}" if processes else "each process takes its own"
    return found


def _describe(word: Word, ways: Sequence[tuple[str, list[str]]], several: bool) -> None:
    """The notes of words on machines and processes, and of the backend."""
    keys = {
        "num_nodes": ("trainer.num_nodes",),
        "node_rank": ("cluster.node_rank",),
        "local_rank": ("cluster.local_rank",),
        "world_size": ("trainer.num_nodes", "cluster.world_size"),
        "rank": ("cluster.node_rank", "cluster.rank"),
        "address": ("cluster.address",),
        "master_addr": ("cluster.address",),
        "master_port": ("cluster.address",),
    }
    if word.role in keys:
        meant = [
            option for _, way in ways for option in way if option.partition("=")[0] in keys[word.role] and "=" in option
        ]
        word.note = " or ".join(dict.fromkeys(meant)) or "not needed on one machine"
        if word.role in ("world_size", "rank") and len(ways) > 1:
            word.note += ": machines in some programs, processes in others"
        if word.value.startswith("env"):
            word.note = "MASTER_ADDR, RANK and the like are read by themselves"
    elif word.role == "backend":
        default = word.value == "nccl"
        word.options = [] if default or not word.value else [f"strategy.process_group_backend={word.value}"]
        word.note = "the default on GPUs" if default else ""


def _local_rank(
    said: Mapping[str, str], rank: int | None, size: int | None, nodes: int | None, devices: int | None
) -> str:
    for role in ("local_rank", "gpu"):
        if said.get(role):
            return said[role]
    if devices is None and nodes and size and size % nodes == 0:
        devices = size // nodes
    return "LOCAL_RANK" if rank is None or devices is None else str(rank % devices)


def _address(said: Mapping[str, str]) -> str | None:
    url = said.get("address", "")
    if url and not url.startswith("env"):
        return url
    if host := said.get("master_addr"):
        return f"tcp://{host}:{said.get('master_port', _PORT)}"
    return None


def _is_here(address: str | None) -> bool:
    """None, or this machine's own loopback; a file says nothing of other machines."""
    return address is None or bool(re.match(r"file:|(tcp://)?(127\.|localhost|\[::1\])", address))


def _devices(text: str) -> int | None:
    value = text.strip("[]() ,'\"")
    if "," in value or text.startswith("["):
        return len(value.split(","))
    return parse_number(value)


def parse_number(text: str | None) -> int | None:
    """None also for -1, by which programs say that nothing was set."""
    return int(text) if text is not None and text.isdecimal() else None
