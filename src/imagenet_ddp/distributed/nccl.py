"""Set the environment variables of NCCL, Gloo and libfabric, and check them against this machine.

nccl.env contains the variables under their own names. A variable that is already set in the environment is never
overridden: a different value in nccl.env is refused. If neither nccl.env nor the environment names a network interface,
the interface used to reach the rendezvous address is chosen. The libraries read the variables once, when the process
group is created. docs/nccl.md describes the important variables.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from imagenet_ddp.mistakes import Fix, Mistake, must_be, setting, without
from imagenet_ddp.system.interfaces import Interface, interfaces, names_loopback, resolve, route_to
from imagenet_ddp.system.text import shorten_list, shown

PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "FI_", "OFI_NCCL_")
# The names in docs/nccl.md, against which the spelling is checked. Other names are set unchanged.
_EXPLAINED = """
    NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME NCCL_NET NCCL_IB_DISABLE NCCL_IB_HCA NCCL_IB_GID_INDEX
    NCCL_NET_GDR_LEVEL NCCL_P2P_DISABLE NCCL_SHM_DISABLE NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_DEBUG_FILE
    TORCH_NCCL_ASYNC_ERROR_HANDLING FI_PROVIDER
"""
KNOWN_NAMES = frozenset(_EXPLAINED.split())
_NEAR = 0.91  # above the similarity of NCCL_NVB_DISABLE and NCCL_IB_DISABLE (0.90), which are different variables
INTERFACE_NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_ELSEWHERE = ("203.0.113.1", "2001:db8::1")  # reserved for documentation: only the default route leads there


def configured_variables(env: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of nccl.env to set, which are those that are not null and do not conflict with the
    environment."""
    return {
        name: _as_text(value)
        for name, value in env.items()
        if value is not None and not _conflicts(name, value, environ)
    }


def interface_variables(
    address: str | None, one_machine: bool, env: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Choose the network interfaces that nccl.env and the environment do not name.

    Return the variables to set, and a log line for each of them. address: the rendezvous address of several machines,
    as a host name or an IP address without a port. one_machine: whether all processes run on this machine, so that Gloo
    needs only the loopback interface.
    """
    missing = [name for name in INTERFACE_NAMES if _source(name, env, environ) is None and not _in_file(name, environ)]
    if one_machine:
        interface = next((one for one in interfaces() if one.is_loopback and one.is_up and one.addresses), None)
        reason = "all processes are on this machine"
    elif address is None or not missing:
        return {}, []
    else:
        interface, reason = toward(address)
        if interface is None:
            return {}, [f"no interface of this machine reaches {address}, so NCCL and Gloo choose the interfaces"]
    variables, lines = dict[str, str](), list[str]()
    # NCCL takes the loopback where nothing else is up, but never its IPv6 address
    if interface and "NCCL_SOCKET_IFNAME" in missing and {*interface.addresses} - {"::1"}:
        # "=" requires the whole name, because "ens3" would also match ens3f1. NCCL does not support a label (eth0:1).
        name = interface.name.partition(":")[0]
        variables["NCCL_SOCKET_IFNAME"] = f"={name}"
        lines.append(f'NCCL_SOCKET_IFNAME="={name}": {reason}')
    if interface and "GLOO_SOCKET_IFNAME" in missing:
        variables["GLOO_SOCKET_IFNAME"] = interface.name
        lines.append(f"GLOO_SOCKET_IFNAME={interface.name}: {reason}")
    return variables, lines


def toward(address: str | None) -> tuple[Interface | None, str]:
    """Return the interface used to reach the rendezvous address, and the reason for the choice.

    The interface is None if there is no such interface. For a host name that resolves to 127.0.1.1 on its own machine
    (Debian), return the interface of the default route.
    """
    route = None
    if address:
        with suppress(OSError):
            route = route_to(resolve(address))
    if route and address and (not route.is_loopback or names_loopback(address)):
        return route, f"used to reach {address}"
    why = f"; on this machine, {address} is a loopback address" if route else ""
    routes = [route for route in map(route_to, _ELSEWHERE) if route] + [each for each in interfaces() if each.is_up]
    outward = next((each for each in routes if each.addresses and not each.is_loopback), None)
    return outward, f"used to reach other machines{why}"


def validate(env: Mapping[str, Any], environ: Mapping[str, str], address: str | None) -> list[Mistake]:
    """Return the mistakes in nccl.env, and in the interfaces named by nccl.env or the environment.

    address: the rendezvous address of several machines, without a port; None on one machine.
    """
    errors = validate_names(env, environ)
    for name in () if errors else INTERFACE_NAMES:
        if source := _source(name, env, environ):
            errors += _interface_mistake(source[1], name, source[0], address)
    return errors


def validate_names(env: Mapping[str, Any], environ: Mapping[str, str]) -> list[Mistake]:
    """Return the mistakes in nccl.env that do not depend on this machine's interfaces."""
    errors: list[Mistake] = []
    for name, value in env.items():
        key, found = f"nccl.env.{name}", _validate_name(name)
        if not found and not isinstance(value, str | int | float | None):
            kinds = "null or text, a number, true or false"
            found = [must_be(key, kinds, shown(value), setting(f"{key}=null"))]
        if not found and value is not None and _conflicts(name, value, environ):
            ways = Fix(run=f"unset {name}"), setting(f"{key}=null", aim="to use the value in the environment")
            what = f"{key} must equal {name} in the environment ({environ[name]}), got {shown(value)}"
            found = [Mistake(what, (key, name), ways)]
        errors += found
    return errors


def _validate_name(name: str) -> list[Mistake]:
    """Return the mistake if the name belongs to another library or looks like a misspelling of a known name."""
    key = f"nccl.env.{name}"
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name) or not name.startswith(PREFIXES):
        known = ", ".join(f"{prefix}..." for prefix in PREFIXES)
        what = f"{key} must be a variable of NCCL, Gloo or libfabric ({known})"
        return [Mistake(what, (key,), (without(key),), "export the variable before the command")]
    near = [] if name in KNOWN_NAMES else get_close_matches(name, KNOWN_NAMES, 1, _NEAR)
    return [
        Mistake(
            f"{key} is not a known variable",
            (key,),
            hint=f"did you mean nccl.env.{known}? If {name} is correct, export this variable before the command",
        )
        for known in near
    ]


def _interface_mistake(key: str, name: str, value: str, address: str | None) -> list[Mistake]:
    """Return the mistake if the interfaces in this value cannot work on this machine, otherwise [].

    key: the option or variable to name in the message. name: NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME.
    """
    if not (known := interfaces()):
        return []  # this platform cannot list interfaces
    is_gloo = name.startswith("GLOO")
    chosen = _gloo_choice(value, known) if is_gloo else nccl_choice(value, known)[:1]
    if not chosen or re.search(r"\s", value):  # a blank belongs to the name
        listed = shorten_list([f"{one.name} {', '.join(one.addresses)}" for one in known if one.is_up], 8)
        what = "list whole names of interfaces that are up" if is_gloo else "match an interface that is up"
        text = f"{key} must {what} ({listed}), got {value}"
    elif any(one.is_loopback for one in chosen) and address and not names_loopback(address):
        text = f"{key} must name an interface that reaches {address}, got {value}, which selects {chosen[0].name}"
    else:
        return []
    right, why = toward(address)
    ways = [Fix(run=f"unset {key}") if key == name else setting(f"{key}=null")]
    if right:  # of an environment variable, too
        ways.append(
            setting(f"{key}={right.name}", aim=f"({why})")
            if key != name
            else Fix(run=f"export {key}={right.name}", said=f"set {key}={right.name} ({why})")
        )
    return [Mistake(text, (key,), tuple(ways))]


def nccl_choice(value: str, known: Sequence[Interface]) -> list[Interface]:
    """List the interfaces that NCCL uses for this value. NCCL listens on the first of them.

    The value is a list of prefixes. A leading = turns all of them into whole names, and a leading ^ excludes the
    interfaces that match, so that ^docker alone selects lo.
    """
    rest = value.removeprefix("^")
    names = [name.partition(":")[0] for name in rest.removeprefix("=").split(",") if name]
    exact, exclude = rest.startswith("="), value.startswith("^")

    def fits(interface: Interface) -> bool:
        return not names or any(interface.name == name if exact else interface.name.startswith(name) for name in names)

    addresses = {one.name: [address for address in one.addresses if address != "::1"] for one in known}
    usable = [one for one in known if one.is_up and addresses[one.name]]
    # getifaddrs lists the IPv4 addresses of all interfaces before the first IPv6 one.
    usable.sort(key=lambda one: ":" in addresses[one.name][0])
    return [one for one in usable if fits(one) != exclude]


def _gloo_choice(value: str, known: Sequence[Interface]) -> list[Interface]:
    """List the interfaces that Gloo uses: whole names without spaces, each of which must exist and have an address."""
    usable = {one.name: one for one in known if one.is_up and one.addresses}
    names = value.split(",")
    return [usable[name] for name in names] if usable.keys() >= {*names} else []


def _source(name: str, env: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return (value, name of the option or variable) for an interface variable; None if the variable is not set."""
    if env.get(name) not in (None, ""):
        return str(env[name]), f"nccl.env.{name}"
    return (environ[name], name) if environ.get(name) else None


def _in_file(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether one of NCCL's own files, over which the environment would win, sets this variable."""
    own = environ.get("NCCL_CONF_FILE") or f"{environ.get('HOME', '')}/.nccl.conf"
    paths = [path for path in (Path(own), Path("/etc/nccl.conf")) if os.access(path, os.R_OK) and path.is_file()]
    lines = [line for path in paths for line in path.read_text(errors="replace").splitlines()]
    return any(line.startswith(f"{name}=") for line in lines)


def _conflicts(name: str, value: Any, environ: Mapping[str, str]) -> bool:
    """Return whether the environment sets the variable to a different value."""
    other = environ.get(name, "")
    if name == "TORCH_NCCL_ASYNC_ERROR_HANDLING" and other == "1" and "TORCHELASTIC_RUN_ID" in environ:
        return False  # torchrun's agent, which also starts our own workers, sets 1 in every worker
    return bool(other) and other != _as_text(value)


def _as_text(value: Any) -> str:
    """Format a value as the libraries read it: 1 and 0 for true and false."""
    return str(int(value)) if isinstance(value, bool) else str(value)
