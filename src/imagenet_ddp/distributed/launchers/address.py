"""Parse cluster.address (tcp://HOST:PORT, HOST:PORT, HOST, file:///PATH), MASTER_ADDR and MASTER_PORT.

This module does not import torch.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

DEFAULT_PORT = 29500  # also torchrun's default
FORMS = "tcp://HOST:PORT, HOST:PORT, HOST (IPv6 in brackets) or file:///PATH"


@dataclass(frozen=True)
class Address:
    """Location of the rendezvous store: a port of a host, or a file that contains the address.

    One of host and file is None. more_ports: ports that rank 0 tries, in this order, if the first port is in use.
    """

    host: str | None = None
    port: int = DEFAULT_PORT
    file: str | None = None
    more_ports: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.file is not None:
            return f"file://{self.file}"
        host = f"[{self.host}]" if self.host and ":" in self.host else self.host
        return f"{host}:{self.port}"


def from_environment(environ: Mapping[str, str]) -> Address | None:
    """Read MASTER_ADDR and MASTER_PORT as torch does: an IPv6 address needs no brackets.

    Return None if MASTER_ADDR is not set. Raises ValueError with a message for the user.
    """
    host = environ.get("MASTER_ADDR")
    if not host:
        return None
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return parse(host, "MASTER_ADDR", environ.get("MASTER_PORT"))
    return Address(host, port_of(environ))


def port_of(environ: Mapping[str, str]) -> int:
    """Read MASTER_PORT. Raises ValueError with a message for the user."""
    return _number(environ.get("MASTER_PORT") or str(DEFAULT_PORT), "MASTER_PORT", f"MASTER_PORT={DEFAULT_PORT}")


def parse(text: str, key: str, default_port: str | None = None) -> Address:
    """Parse an address.

    key: option or variable that contains the address, for messages. default_port: value of MASTER_PORT, used for an
    address without a port. Raises ValueError with a message for the user.
    """
    if text.startswith("file:///") and not text.endswith("/"):
        return Address(file=str(PurePosixPath("/" + text.removeprefix("file://").lstrip("/"))))
    found = re.fullmatch(r"(?!file:)(?:tcp://)?(\[[0-9a-fA-F:.%\w]+\]|[^:/\[\]\s]+)(?::([^:/]*))?/?", text)
    if found is None:
        # torch would drop the host of file://host/path and use /path, which is a different file
        example = "file:///PATH" if text.startswith("file:") else f"tcp://HOST:{DEFAULT_PORT}"
        raise ValueError(f"{key} must be {FORMS}, got {text}. Hint: set {key}={example}.")
    host = found[1].strip("[]")
    if host in ("0.0.0.0", "::"):
        raise ValueError(
            f"{key} must be the address of node 0, got {host}, which does not identify a machine. "
            f"Hint: set the private address of node 0, such as {key}=tcp://10.0.0.11:{DEFAULT_PORT}."
        )
    if found[2] is None:
        return Address(host, port_of({"MASTER_PORT": default_port or ""}))
    return Address(host, _number(found[2], f"the port of {key}", f"{key}={found[1]}:{DEFAULT_PORT}"))


def _number(port: str, where: str, hint: str) -> int:
    if not (port.isascii() and port.isdecimal()) or not 1 <= int(port) <= 65535:
        raise ValueError(f"{where} must be from 1 to 65535, got {port or 'an empty value'}. Hint: set {hint}.")
    return int(port)
