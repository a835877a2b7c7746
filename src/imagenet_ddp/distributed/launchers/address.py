"""Parse cluster.address (tcp://HOST:PORT, HOST:PORT, HOST, file:///PATH), MASTER_ADDR and MASTER_PORT.

This module does not import torch.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from imagenet_ddp.errors import ConfigError

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


def requested_address(cluster: Mapping[str, Any], environ: Mapping[str, str]) -> Address | None:
    """Return the address from cluster.address, else from MASTER_ADDR and MASTER_PORT, else None.

    Raises ConfigError if the address is invalid or does not match cluster.name.
    """
    name, text = cluster["name"], cluster["address"]
    if name == "env" and text is not None:
        raise ConfigError(
            f"cluster=env reads the address from MASTER_ADDR, but cluster.address is {text}. "
            "Hint: leave cluster=env out."
        )
    if text is None:
        if name in EXAMPLES:
            raise ConfigError(f"cluster={name} needs an address. Hint: set cluster.address={EXAMPLES[name]}.")
        return from_environment(environ)
    address = parse(text, "cluster.address", environ.get("MASTER_PORT"))
    if name in EXAMPLES and (name == "file") != (address.file is not None):
        raise ConfigError(
            f"cluster={name} does not match cluster.address={text}. Hint: leave cluster={name} out, because the "
            "address determines the kind of rendezvous."
        )
    return address


def from_environment(environ: Mapping[str, str]) -> Address | None:
    """Read MASTER_ADDR and MASTER_PORT as torch does: an IPv6 address needs no brackets. Return None if MASTER_ADDR is
    not set."""
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if not host:
        return None
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return parse(host, "MASTER_ADDR", port)
    return Address(host, _master_port(port))


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
    if host in ("0.0.0.0", "::"):
        raise ConfigError(
            f"{key} must be the address of node 0, got {host}, which does not identify a machine. "
            f"Hint: set the private address of node 0, such as {key}=tcp://10.0.0.11:{DEFAULT_PORT}."
        )
    if found[2] is None:
        return Address(host, _master_port(default_port))
    return Address(host, _port(found[2], f"the port of {key}", f"{key}={found[1]}:{DEFAULT_PORT}"))


def _master_port(text: str | None) -> int:
    return _port(text or str(DEFAULT_PORT), "MASTER_PORT", f"MASTER_PORT={DEFAULT_PORT}")


def _port(text: str, where: str, hint: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= 65535:
        raise ConfigError(f"{where} must be from 1 to 65535, got {text or 'an empty value'}. Hint: set {hint}.")
    return int(text)
