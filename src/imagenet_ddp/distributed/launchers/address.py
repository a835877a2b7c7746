"""Parse cluster.address (tcp://HOST:PORT, HOST:PORT, HOST, file:///PATH), MASTER_ADDR, MASTER_PORT. No torch here."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

DEFAULT_PORT = 29500  # torchrun's
FORMS = "tcp://HOST:PORT, HOST:PORT, HOST or file:///PATH"


@dataclass(frozen=True)
class Address:
    """Where the store is: at a port of a host, or at the address in a file. One of host and file is None.

    more_ports: rank 0 uses the first of these that is free where the port is in use.
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
    """Read MASTER_ADDR and MASTER_PORT as torch does: an IPv6 address needs no brackets. Raises ValueError with a full
    message."""
    host = environ.get("MASTER_ADDR")
    if not host:
        return None
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return parse(host, "MASTER_ADDR", environ.get("MASTER_PORT"))
    return Address(host, port_of(environ))


def port_of(environ: Mapping[str, str]) -> int:
    """Read MASTER_PORT. Raises ValueError with a full message."""
    return _number(environ.get("MASTER_PORT") or str(DEFAULT_PORT), "MASTER_PORT", f"MASTER_PORT={DEFAULT_PORT}")


def parse(text: str, key: str, default_port: str | None = None) -> Address:
    """Parse an address. key: its option or variable, for messages. default_port: MASTER_PORT. Raises ValueError with a
    full message."""
    if re.match(r"file:/*(?!/)", text) and not text.startswith("file://"):
        text = text.replace("file:", "file://", 1)
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "tcp", text
    if scheme == "file":
        return Address(file=_file(rest, key, text))
    if scheme == "env":
        raise ValueError(
            f"{key}={text}: the environment is read without it. Hint: leave {key} out, and set MASTER_ADDR=HOST."
        )
    if scheme != "tcp":
        raise ValueError(f"{key} must be {FORMS}, got {text}. Hint: {key}=tcp://{rest or 'HOST:29500'}.")
    found = re.fullmatch(r"(\[[0-9a-fA-F:.%\w]+\]|[^:/\[\]\s]+)(?::([^:]*))?", rest.rstrip("/"))
    if found is None:
        if rest.count(":") > 1 and "[" not in rest:
            hint = f"an IPv6 address stands in brackets: {_quoted(key, f'tcp://[{rest}]:{DEFAULT_PORT}')}"
        else:
            hint = f"{key}=tcp://HOST:{DEFAULT_PORT}"
        raise ValueError(f"{key} must be {FORMS}, got {text}. Hint: {hint}.")
    host = found[1].strip("[]")
    if host in ("0.0.0.0", "::"):
        raise ValueError(
            f"{key} must be the address of node 0, got {host}, which stands for no machine. "
            f"Hint: the private address of node 0, such as {key}=tcp://10.0.0.11:{DEFAULT_PORT}."
        )
    if found[2] is None:
        return Address(host, port_of({"MASTER_PORT": default_port or ""}))
    return Address(host, _number(found[2], f"the port of {key}", f"{key}={found[1]}:{DEFAULT_PORT}"))


def _quoted(key: str, value: str) -> str:
    """Quote an option, whose brackets mean something to Hydra and to the shell; not a variable."""
    return f"{key}={value}" if key != "cluster.address" else f"`'{key}=\"{value}\"'`"


def _number(port: str, where: str, hint: str) -> int:
    if not (port.isascii() and port.isdecimal()) or not 1 <= int(port) <= 65535:
        raise ValueError(f"{where} must be from 1 to 65535, got {port or 'empty'}. Hint: {hint}.")
    return int(port)


def _file(rest: str, key: str, text: str) -> str:
    if not rest.startswith("/"):
        # file://host/path: torch drops the host and takes /path, which is another file than the one meant
        raise ValueError(
            f"{key} must have three slashes before the path, got {text}, which would be a host's name "
            f"and a path. Hint: {key}=file:///{rest}."
        )
    path = "/" + rest.lstrip("/")
    if path == "/" or path.endswith("/"):
        raise ValueError(f"{key} must name a file, but {text} is a folder. Hint: {key}=file://{path.rstrip('/')}/job1.")
    return str(PurePosixPath(path))
