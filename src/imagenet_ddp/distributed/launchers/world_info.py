"""Define the ranks of a process, the role of a command in a run, and the address at which the commands meet. Does not
import torch."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, cast

from imagenet_ddp.config.schema.distributed import ClusterConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.idle_cores import Cores

DEFAULT_PORT = 29500  # also torchrun's default
EXAMPLES = {"tcp": f"tcp://HOST:{DEFAULT_PORT}", "file": "file:///PATH"}  # by cluster.name


@dataclass(frozen=True)
class Address:
    """Location of the rendezvous store: a port of a host, or a file that contains the address. One of host and file is
    None."""

    host: str | None = None
    port: int = DEFAULT_PORT
    file: str | None = None

    def __str__(self) -> str:
        if self.file is not None:
            return f"file://{self.file}"
        host = f"[{self.host}]" if self.host and ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class WorldInfo:
    """Ranks of one process.

    address, port: address of the rendezvous store; None if there are no other processes. local_world_size: number of
    processes per node; 0 until all ranks have joined, if the launcher does not provide the number.
    """

    rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    num_nodes: int = 1
    address: str | None = None
    port: int | None = None
    store_is_served: bool = True  # whether the launcher serves the store; otherwise rank 0 must serve it
    source: str = "one process"
    attempt: int = 0  # number of restarts: torchrun --max-restarts restarts all workers with the same store
    is_worker: bool = False  # whether spawn.py started this process for the command that was typed
    cores: Cores | None = None  # for this machine's processes, if that command has counted them
    secret: bytes | None = field(default=None, repr=False)  # signs the messages between the processes

    def label(self, rank: int) -> str:
        """Return the name of a rank of this run, with its node if there are several."""
        local = self.local_world_size
        place = f" (node {rank // local}, local rank {rank % local})" if local and self.num_nodes > 1 else ""
        return f"rank {rank}{place}"

    def sentence(self) -> str:
        """Return the log line that describes the rendezvous."""
        if self.world_size == 1:
            return "Rendezvous: none needed for one process."
        return (
            f"Rendezvous: {self.source} at {self.address}:{self.port}, rank {self.rank} of {self.world_size}, "
            f"local rank {self.local_rank} of {self.local_world_size}, node {self.node_rank} of {self.num_nodes}."
        )


@dataclass(frozen=True)
class LaunchInfo:
    """Role of this command in the run: one rank (world_info), or a node that starts its own workers."""

    source: str = "one process"
    address: Address | None = None  # None if no other command takes part
    world_info: WorldInfo | None = None
    num_nodes: int = 1
    node_rank: int | None = 0  # None if the rendezvous assigns it
    manual: bool = False  # whether a person typed each command, so that each command prints its own mistakes
    job_id: str | None = None
    secret: bytes | None = field(default=None, repr=False)  # signs the messages between the commands
    run_key: str | None = None  # name for the run folder, which is the same after the launcher restarts the job

    @property
    def standalone(self) -> bool:
        return self.address is None

    @property
    def host(self) -> str | None:
        """Return the host name or IP address of the rendezvous; None for a file, or if no other command takes part."""
        return self.address.host if self.address else None

    @property
    def noun(self) -> str:
        """Return "node" if nodes join the rendezvous, and "rank" if ranks join it."""
        return "node" if self.world_info is None else "rank"

    def label(self, number: int) -> str:
        return self.world_info.label(number) if self.world_info else f"node {number}"

    @property
    def number(self) -> int | None:
        """Return the rank or node rank of this command."""
        return self.node_rank if self.world_info is None else self.world_info.rank

    @property
    def size(self) -> int:
        """Return the number of ranks or nodes that join the rendezvous."""
        return self.num_nodes if self.world_info is None else self.world_info.world_size

    @property
    def others_wait(self) -> bool:
        """Return whether other commands wait for this one, so that it must tell them of its own refusal. Otherwise, the
        launcher ends them, or the first process of this node tells them."""
        if self.standalone or self.size < 2:
            return False
        is_first = self.world_info is None or self.world_info.local_rank == 0
        return self.manual or (self.num_nodes > 1 and is_first)


@dataclass(frozen=True)
class LaunchRequest:
    """Requested number of nodes and devices, and requested address. A value that is not set is None."""

    num_nodes: int | None
    devices: int | None  # processes per node
    cluster: ClusterConfig
    line: str  # the command as typed, for hints
    cpu: bool  # whether there is no GPU, or none is requested


def num_devices(devices: Any) -> int | None:
    """Return the number of devices per node; None if trainer.devices does not determine the number."""
    if isinstance(devices, str) and devices not in ("auto", "-1"):
        return len(devices.strip(",").split(",")) if "," in devices else int(devices) if devices.isdecimal() else None
    if isinstance(devices, int) and not isinstance(devices, bool):
        return devices if devices >= 1 else None
    return (
        len(cast("Sequence[Any]", devices)) if isinstance(devices, Sequence) and not isinstance(devices, str) else None
    )


def typed_ranks(cluster: ClusterConfig) -> dict[str, int]:
    """Return the keys of cluster that number this process and are set."""
    keys = {"rank": cluster.rank, "local_rank": cluster.local_rank, "world_size": cluster.world_size}
    return {key: value for key, value in {**keys, "node_rank": cluster.node_rank}.items() if value is not None}


def requested_address(cluster: ClusterConfig, environ: Mapping[str, str]) -> Address | None:
    """Return the address from cluster.address, else from MASTER_ADDR and MASTER_PORT, else None.

    Raises ConfigError if the address is invalid or does not match cluster.name.
    """
    name, text = cluster.name, cluster.address
    if name == "env" and text is not None:
        raise ConfigError(
            f"cluster=env reads the address from MASTER_ADDR, but cluster.address is {text}. "
            "Hint: leave cluster=env out."
        )
    address = None if text is None else parse(text, "cluster.address", environ.get("MASTER_PORT"))
    if name in EXAMPLES and (address is None or (name == "file") != (address.file is not None)):
        raise ConfigError(
            f"cluster={name} needs cluster.address={EXAMPLES[name]}, got {text or 'no address'}. Hint: set this "
            f"address, or leave cluster={name} out."
        )
    return address or from_environment(environ)


def from_environment(environ: Mapping[str, str]) -> Address | None:
    """Read MASTER_ADDR and MASTER_PORT as torch does: an IPv6 address needs no brackets. Return None if MASTER_ADDR is
    not set."""
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if not host:
        return None
    is_bare = host.count(":") > 1 and "/" not in host and host[0] != "["
    return parse(f"[{host}]" if is_bare else host, "MASTER_ADDR", port)


def parse(text: str, key: str, default_port: str | None = None) -> Address:
    """Parse an address.

    key: option or variable that contains the address, for messages. default_port: value of MASTER_PORT, used for an
    address without a port.
    """
    if text.startswith("file:///") and not text.endswith("/"):
        return Address(file=str(PurePosixPath("/" + text.removeprefix("file://").lstrip("/"))))
    found = re.fullmatch(r"(?!file:)(?:tcp://)?(\[[0-9a-fA-F:.%\w]+\]|[^:/\[\]\s]+)(?::([^:/]*))?/?", text)
    if found is None:
        # torch would drop the host of file://host/path and use /path, which is a different file
        example = EXAMPLES["file" if text.startswith("file:") else "tcp"]
        raise ConfigError(
            f"{key} must be tcp://HOST:PORT, HOST:PORT, HOST (IPv6 in brackets) or file:///PATH, got {text}. "
            f"Hint: set {key}={example}."
        )
    host = found[1].strip("[]")
    port, where = found[2], f"the port of {key}"
    if port is None:
        port, where = default_port or str(DEFAULT_PORT), "MASTER_PORT"
    if not (port.isascii() and port.isdecimal()) or not 1 <= int(port) <= 65535:
        raise ConfigError(
            f"{where} must be from 1 to 65535, got {port or 'an empty value'}. Hint: use {DEFAULT_PORT} if it is free."
        )
    return Address(host, int(port))
