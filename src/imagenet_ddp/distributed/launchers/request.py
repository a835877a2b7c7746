"""Read what is requested of a launcher: numbers of nodes and devices, and the address at which the processes of a run
meet. Does not import torch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from imagenet_ddp.distributed.place import DEFAULT_PORT, Address
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, must_be, setting, without

EXAMPLES = {"tcp": f"tcp://HOST:{DEFAULT_PORT}", "file": "file:///PATH"}  # by cluster.name


class Cluster(Protocol):
    """The keys of cluster.* that say where a process is, and what distinguishes and signs its run."""

    name: str
    address: str | None
    node_rank: int | None
    rank: int | None
    local_rank: int | None
    world_size: int | None
    job_id: str | None
    secret_file: str | None


@dataclass(frozen=True)
class LaunchRequest:
    """Requested number of nodes and devices, and requested address. A value that is not set is None."""

    num_nodes: int | None
    devices: int | None  # processes per node
    cluster: Cluster
    line: str  # the command as typed, for hints
    cpu: bool  # whether there is no GPU, or none is requested
    one_process: str | None = None  # strategy that runs in one process: dp or balanced_dp


def typed_ranks(cluster: Cluster) -> dict[str, int]:
    """Return the keys of cluster that number this process and are set."""
    keys = {"rank": cluster.rank, "local_rank": cluster.local_rank, "world_size": cluster.world_size}
    return {key: value for key, value in {**keys, "node_rank": cluster.node_rank}.items() if value is not None}


def requested_address(cluster: Cluster, environ: Mapping[str, str]) -> Address | None:
    """Return the address from cluster.address, else from MASTER_ADDR and MASTER_PORT, else None.

    Raises ConfigError if the address is invalid or does not match cluster.name.
    """
    name, text = cluster.name, cluster.address
    if name == "env" and text is not None:
        what = f"cluster=env reads the address from MASTER_ADDR, but cluster.address is {text}"
        raise ConfigError(Mistake(what, ("cluster", "cluster.address"), (without("cluster=env"),)))
    address = None if text is None else parse(text, "cluster.address", environ.get("MASTER_PORT"))
    if name in EXAMPLES and (address is None or (name == "file") != (address.file is not None)):
        example = f"cluster.address={EXAMPLES[name]}"
        what = f"cluster={name} needs {example}, got {text or 'no address'}"
        raise ConfigError(Mistake(what, ("cluster", "cluster.address"), (setting(example), without(f"cluster={name}"))))
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
        allowed = "tcp://HOST:PORT, HOST:PORT, HOST (IPv6 in brackets) or file:///PATH"
        raise ConfigError(must_be(key, allowed, text, setting(f"{key}={example}")))
    host = found[1].strip("[]")
    port, where = found[2], f"the port of {key}"
    if port is None:
        port, where = default_port or str(DEFAULT_PORT), "MASTER_PORT"
    if not (port.isascii() and port.isdecimal()) or not 1 <= int(port) <= 65535:
        raise ConfigError(
            f"{where} must be from 1 to 65535, got {port or 'an empty value'}. Hint: use {DEFAULT_PORT} if it is free."
        )
    return Address(host, int(port))
