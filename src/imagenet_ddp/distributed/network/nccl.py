"""Set the environment variables of NCCL, Gloo and libfabric, and check them against this machine.

nccl.env contains the variables under their own names. A variable that is already set in the environment is never
overridden: a different value in nccl.env is refused. If neither nccl.env nor the environment names a network interface,
the interface used to reach the rendezvous address is chosen. The libraries read the variables once, when the process
group is created. docs/nccl.md describes the important variables.
"""

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from imagenet_ddp.config.validators import NULL, Kind, choice, expect, kind, matching, shown
from imagenet_ddp.distributed.network import nccl_interfaces

PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "FI_", "OFI_NCCL_")
# The names in docs/nccl.md, against which the spelling is checked. Other names are set unchanged.
_EXPLAINED = """
    NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME NCCL_SOCKET_FAMILY NCCL_NET NCCL_IB_DISABLE NCCL_IB_HCA NCCL_IB_GID_INDEX
    NCCL_NET_GDR_LEVEL NCCL_P2P_DISABLE NCCL_SHM_DISABLE NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_DEBUG_FILE
    TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_BLOCKING_WAIT FI_PROVIDER FI_EFA_USE_DEVICE_RDMA
"""
KNOWN_NAMES = frozenset(_EXPLAINED.split())
_NEAR = 0.91  # above the similarity of NCCL_NVB_DISABLE and NCCL_IB_DISABLE (0.90), which are different variables
INTERFACE_NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_INTERFACES = r"[^\s,=^]+(,[^\s,=^]+)*"
_PLAIN = NULL | kind("text, a number, true or false", lambda value: isinstance(value, str | int | float))
# Allowed values of variables that affect how a run behaves. Other values would be ignored or would end the process.
_VALUES: dict[str, tuple[Kind, str]] = {
    "NCCL_SOCKET_IFNAME": (matching(rf"\^?=?{_INTERFACES}", "text such as eth0, =eth0,eth1 or ^lo,docker"), "eth0"),
    "GLOO_SOCKET_IFNAME": (matching(_INTERFACES, "whole interface names such as eth0 or eth0,eth1"), "eth0"),
    "NCCL_SOCKET_FAMILY": (choice("AF_INET", "AF_INET6"), "AF_INET"),
    "NCCL_DEBUG": (choice("VERSION", "WARN", "INFO", "TRACE"), "INFO"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": (choice("0", "1", "2", "3"), "3"),
}
# Different spellings of the same value.
_SAME = {
    **dict.fromkeys(("1", "true", "yes", "on", "y", "t"), "1"),
    **dict.fromkeys(("0", "false", "no", "off", "n", "f"), "0"),
}


def configured_variables(nccl: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set before the process group is created.

    These are the variables of nccl.env that are not null and do not conflict with the environment.
    """
    return {
        name: _as_text(value)
        for name, value in nccl["env"].items()
        if value is not None and not _conflicts(name, value, environ)
    }


def interface_variables(
    address: str | None, one_machine: bool, nccl: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Choose the network interfaces that nccl.env and the environment do not name.

    Return the variables to set, and a log line for each of them. address: the rendezvous address of several machines,
    as a host name or an IP address without a port. one_machine: whether all processes run on this machine, so that Gloo
    needs only the loopback interface.
    """
    missing = [name for name in INTERFACE_NAMES if _source(name, nccl, environ) is None and not _in_file(name, environ)]
    if one_machine:
        loopback = nccl_interfaces.loopback()
        if loopback is None or "GLOO_SOCKET_IFNAME" not in missing:
            return {}, []
        name = loopback.name
        return {"GLOO_SOCKET_IFNAME": name}, [f"GLOO_SOCKET_IFNAME={name}: all processes are on this machine"]
    if address is None or not missing:
        return {}, []
    interface, reason = nccl_interfaces.toward(address)
    if interface is None:
        return {}, [f"no interface of this machine reaches {address}, so NCCL and Gloo choose the interfaces"]
    variables, lines = {}, []
    if "NCCL_SOCKET_IFNAME" in missing and not interface.is_loopback:
        # "=" requires the whole name, because "ens3" would also match ens3f1. NCCL does not support a label (eth0:1).
        name = interface.name.partition(":")[0]
        variables["NCCL_SOCKET_IFNAME"] = f"={name}"
        lines.append(f'NCCL_SOCKET_IFNAME="={name}": {reason}')
    if "GLOO_SOCKET_IFNAME" in missing:
        variables["GLOO_SOCKET_IFNAME"] = interface.name
        lines.append(f"GLOO_SOCKET_IFNAME={interface.name}: {reason}")
    return variables, lines


def validate(
    nccl: Mapping[str, Any], environ: Mapping[str, str], address: str | None, *, elsewhere: bool = False
) -> list[str]:
    """List the errors in nccl.env, and in the interfaces named by nccl.env or the environment.

    address: the rendezvous address of several machines, without a port; None on one machine. elsewhere: whether the run
    takes place on other machines, whose interfaces are not known here.
    """
    env, errors, wrong = nccl["env"], list[str](), set[str]()
    for name, value in env.items():
        found = _validate_name(name) or _validate_value(name, value)
        if not found and value is not None and _conflicts(name, value, environ):
            found = [
                f"nccl.env.{name} must equal {name} in the environment ({environ[name]}), got {shown(value)}. "
                f"Hint: run `unset {name}`, or set nccl.env.{name}=null to use the value in the environment."
            ]
        errors += found
        wrong |= {name} if found else set()
    for name in () if elsewhere else INTERFACE_NAMES:
        if name not in wrong and (source := _source(name, nccl, environ)):
            value, key = source
            errors += nccl_interfaces.mistake(key, name, value, address)
    return errors


def _validate_name(name: str) -> list[str]:
    """Return the errors if the name belongs to another library or looks like a misspelling of a known name."""
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name) or not name.startswith(PREFIXES):
        known = ", ".join(f"{prefix}..." for prefix in PREFIXES)
        return [
            f"nccl.env.{name} must be a variable of NCCL, Gloo or libfabric ({known}). "
            "Hint: leave this key out, and export the variable instead."
        ]
    near = [] if name in KNOWN_NAMES else get_close_matches(name, KNOWN_NAMES, 1, _NEAR)
    return [
        f"nccl.env.{name} is not a known variable. Hint: did you mean nccl.env.{known}? "
        f"If {name} is correct, export this variable before the command."
        for known in near
    ]


def _validate_value(name: str, value: Any) -> list[str]:
    allowed, example = _VALUES.get(name, (_PLAIN, "1"))
    if name in _VALUES and _PLAIN.accepts(value):
        allowed |= NULL
        if value is not None and allowed.accepts(_as_text(value)):
            return []
    return expect(f"nccl.env.{name}", value, allowed, f"nccl.env.{name}={example}")


def _source(name: str, nccl: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return (value, name of the option or variable) for an interface variable; None if the variable is not set."""
    if nccl["env"].get(name) is not None:
        return str(nccl["env"][name]), f"nccl.env.{name}"
    return (environ[name], name) if environ.get(name) else None


def _in_file(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether a configuration file of NCCL sets this variable.

    NCCL reads these files for variables that are missing from the environment.
    """
    own = environ.get("NCCL_CONF_FILE") or f"{environ.get('HOME', '')}/.nccl.conf"
    paths = [path for path in map(Path, (own, "/etc/nccl.conf")) if os.access(path, os.R_OK) and path.is_file()]
    lines = [line for path in paths for line in path.read_text(errors="replace").splitlines()]
    return name.startswith("NCCL") and any(line.startswith(f"{name}=") for line in lines)


def _conflicts(name: str, value: Any, environ: Mapping[str, str]) -> bool:
    """Return whether the environment sets the variable to a different value."""
    other = environ.get(name, "")
    if name == "TORCH_NCCL_ASYNC_ERROR_HANDLING" and other == "1" and "TORCHELASTIC_RUN_ID" in environ:
        return False  # this is torchrun's default for its workers, which the user did not set
    return bool(other) and _plain(other) != _plain(_as_text(value))


def _as_text(value: Any) -> str:
    """Format a value as the libraries read it: 1 and 0 for true and false."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _plain(text: str) -> str:
    text = text.strip().lower()
    return _SAME.get(text, text)
