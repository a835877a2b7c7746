"""Parse cluster.address (tcp://HOST:PORT, HOST:PORT, HOST, file:///PATH), MASTER_ADDR and MASTER_PORT. No torch."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

DEFAULT_PORT = 29500  # torchrun's
FORMS = "tcp://HOST:PORT, HOST:PORT, HOST (IPv6 in brackets) or file:///PATH"


@dataclass(frozen=True)
class Address:
    """Where to find the store: at a port of a host, or at the address in a file. One of host and file is None.

    more_ports: used in this order by rank 0 if the port is taken.
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
    """Read MASTER_ADDR and MASTER_PORT as torch does: an IPv6 address needs no brackets. Raises ValueError with a
    complete message."""
    host = environ.get("MASTER_ADDR")
    if not host:
        return None
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return parse(host, "MASTER_ADDR", environ.get("MASTER_PORT"))
    return Address(host, port_of(environ))


def port_of(environ: Mapping[str, str]) -> int:
    """Read MASTER_PORT. Raises ValueError with a complete message."""
    return _number(environ.get("MASTER_PORT") or str(DEFAULT_PORT), "MASTER_PORT", f"MASTER_PORT={DEFAULT_PORT}")


def parse(text: str, key: str, default_port: str | None = None) -> Address:
    """Parse an address. key: its option or variable, for messages. default_port: MASTER_PORT. Raises ValueError with a
    complete message."""
    if text.startswith("file:///") and not text.endswith("/"):
        return Address(file=str(PurePosixPath("/" + text.removeprefix("file://").lstrip("/"))))
    found = re.fullmatch(r"(?!file:)(?:tcp://)?(\[[0-9a-fA-F:.%\w]+\]|[^:/\[\]\s]+)(?::([^:/]*))?/?", text)
    if found is None:
        # file://host/path: torch drops the host and takes /path, which is another file than the one meant
        example = "file:///PATH" if text.startswith("file:") else f"tcp://HOST:{DEFAULT_PORT}"
        raise ValueError(f"{key} must be {FORMS}, got {text}. Hint: {key}={example}.")
    host = found[1].strip("[]")
    if host in ("0.0.0.0", "::"):
        raise ValueError(
            f"{key} must be the address of node 0, got {host}, which names no particular machine. "
            f"Hint: the private address of node 0, such as {key}=tcp://10.0.0.11:{DEFAULT_PORT}."
        )
    if found[2] is None:
        return Address(host, port_of({"MASTER_PORT": default_port or ""}))
    return Address(host, _number(found[2], f"the port of {key}", f"{key}={found[1]}:{DEFAULT_PORT}"))


def _number(port: str, where: str, hint: str) -> int:
    if not (port.isascii() and port.isdecimal()) or not 1 <= int(port) <= 65535:
        raise ValueError(f"{where} must be from 1 to 65535, got {port or 'empty'}. Hint: {hint}.")
    return int(port)
