"""The nccl= group: keys for the environment variables of NCCL, Gloo and libfabric, held against this machine.

What stands in the environment is never overridden: a key that differs from it is a mistake that is named. Where
neither names an interface, the one that leads to the nodes' meeting place is chosen. The libraries read these
variables once, when the process group is made. docs/nccl.md says what each key means.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_ddp.config.keys import validate_group
from imagenet_ddp.config.validators import shown
from imagenet_ddp.distributed.network import nccl_interfaces
from imagenet_ddp.distributed.network.interfaces import interfaces, resolve, source_address

NVIDIA = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
TORCH = "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html"
GLOO = "https://docs.pytorch.org/docs/stable/distributed.html"
LIBFABRIC = "https://ofiwg.github.io/libfabric/main/man/fabric.7.html"
EFA = "https://ofiwg.github.io/libfabric/main/man/fi_efa.7.html"


@dataclass(frozen=True)
class Key:
    variable: str
    source: str  # address of the documentation that defines the variable
    old_names: tuple[str, ...] = ()  # of the variable; still read, the new name wins


KEYS: dict[str, Key] = {
    "socket_ifname": Key("NCCL_SOCKET_IFNAME", NVIDIA),
    "gloo_socket_ifname": Key("GLOO_SOCKET_IFNAME", GLOO),
    "socket_family": Key("NCCL_SOCKET_FAMILY", NVIDIA),
    "net": Key("NCCL_NET", NVIDIA),
    "ib_disable": Key("NCCL_IB_DISABLE", NVIDIA),
    "ib_hca": Key("NCCL_IB_HCA", NVIDIA),
    "ib_gid_index": Key("NCCL_IB_GID_INDEX", NVIDIA),
    "net_gdr_level": Key("NCCL_NET_GDR_LEVEL", NVIDIA),
    "p2p_disable": Key("NCCL_P2P_DISABLE", NVIDIA),
    "shm_disable": Key("NCCL_SHM_DISABLE", NVIDIA),
    "debug": Key("NCCL_DEBUG", NVIDIA),
    "debug_subsys": Key("NCCL_DEBUG_SUBSYS", NVIDIA),
    "debug_file": Key("NCCL_DEBUG_FILE", NVIDIA),
    "async_error_handling": Key("TORCH_NCCL_ASYNC_ERROR_HANDLING", TORCH, ("NCCL_ASYNC_ERROR_HANDLING",)),
    "blocking_wait": Key("TORCH_NCCL_BLOCKING_WAIT", TORCH, ("NCCL_BLOCKING_WAIT",)),
    "fi_provider": Key("FI_PROVIDER", LIBFABRIC),
    "fi_efa_use_device_rdma": Key("FI_EFA_USE_DEVICE_RDMA", EFA),
}
_IFNAMES = ("socket_ifname", "gloo_socket_ifname")
# Written differently, the same to the libraries.
_SAME = {
    **dict.fromkeys(("1", "true", "yes", "on", "y", "t"), "1"),
    **dict.fromkeys(("0", "false", "no", "off", "n", "f"), "0"),
    **{word.lower(): word for word in ("VERSION", "WARN", "INFO", "TRACE", "LOC", "PIX", "PXB", "PHB", "SYS")},
}
# What NVIDIA calls for debugging only, and what its makers advise against.
_LEFT_OVER = {
    **dict.fromkeys(("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"), "a brake that NVIDIA means for tests"),
    "RDMAV_FORK_SAFE": "advised against by the makers of the EFA plugin",
}


def variables(nccl: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """What to set in each worker before the process group: the keys that are not null. A variable that the person set
    to something else is left out: `mistakes` names it."""
    return {
        key.variable: _text(nccl[name])
        for name, key in KEYS.items()
        if nccl.get(name) is not None and _conflict(name, nccl[name], environ) is None
    }


def network_variables(
    address: str | None, one_machine: bool, nccl: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The interface variables that nobody named, and for each a sentence for the log. address: where several machines
    meet, a name or a number without port; one_machine: all processes are here, so Gloo needs the loopback only."""
    free = [name for name in _IFNAMES if _named(name, nccl, environ) is None]
    if one_machine:
        here = nccl_interfaces.loopback()
        if here is None or "gloo_socket_ifname" not in free:
            return {}, []
        return {"GLOO_SOCKET_IFNAME": here.name}, [f"GLOO_SOCKET_IFNAME={here.name}: all processes are on this machine"]
    if address is None or not free:
        return {}, []
    right, why = nccl_interfaces.toward(address)
    if right is None:
        return {}, [f"no interface of this machine leads to {address}: NCCL and Gloo choose by themselves"]
    found, said = {}, []
    if "socket_ifname" in free and not right.is_loopback:
        # = for the whole name: ens3 alone would also fit ens3f1. What follows a colon is a label NCCL does not know.
        found["NCCL_SOCKET_IFNAME"] = "=" + right.name.partition(":")[0]
    if "gloo_socket_ifname" in free:
        found["GLOO_SOCKET_IFNAME"] = right.name
        said += _other_address(right.addresses[0] if right.addresses else None, right.name, address)
    return found, [f"{name}={_quoted(value)}: {why}" for name, value in found.items()] + said


def _quoted(value: str) -> str:
    return f'"{value}"' if value.startswith("=") else value  # NAME==ens3 reads like a typing mistake


def mistakes(
    nccl: Mapping[str, Any], environ: Mapping[str, str], address: str | None, *, elsewhere: bool = False
) -> list[str]:
    """Sentences, none where all is well. address: where several machines meet, a name or a number without port; None
    on one machine. elsewhere: the interfaces are another machine's, and not looked for."""
    found: list[str] = []
    good = set()
    for name in KEYS:
        wrong = validate_group("nccl", {name: nccl.get(name)})
        other = _conflict(name, nccl[name], environ) if not wrong and nccl.get(name) is not None else None
        if other:
            wrong = [
                f"nccl.{name} must equal {other} in the environment ({environ[other]}), got "
                f"{shown(nccl[name])}. Hint: `unset {other}`, or set nccl.{name}=null to keep it."
            ]
        found += wrong
        good |= set() if wrong else {name}
    for name in () if elsewhere else _IFNAMES:
        named = _named(name, nccl, environ) if name in good else None
        if named:
            value, where, origin = named
            family = nccl.get("socket_family") or environ.get("NCCL_SOCKET_FAMILY")
            found += nccl_interfaces.mistake(where, KEYS[name].variable, value, origin, address, family)
    return found


def notes(environ: Mapping[str, str], nccl: Mapping[str, Any] | None = None, address: str | None = None) -> list[str]:
    """What works, but is worth knowing: old names, brakes left over from a search, an interface that is not the one
    that leads to where the nodes meet."""
    nccl, found = nccl or {}, []
    for key in KEYS.values():
        for old in key.old_names:
            if old in environ:
                found.append(
                    f"{old} is the old name of {key.variable}: still read, but torchrun sets the new one, which wins. "
                    f"Hint: `unset {old}`, export {key.variable}={environ[old]}."
                )
    for variable, what in _LEFT_OVER.items():
        if _plain(environ.get(variable, "0")) != "0":
            found.append(f"{variable}={environ[variable]} is {what}. Hint: `unset {variable}` once it works without.")
    right, why = nccl_interfaces.toward(address) if address else (None, "")
    for name in _IFNAMES if right else ():
        named = _named(name, nccl, environ)
        if (
            named is None
            or right is None
            or nccl_interfaces.mistake(named[1], KEYS[name].variable, named[0], "", address)
        ):
            continue
        taken = nccl_interfaces.nccl_choice(named[0], interfaces()) if name == "socket_ifname" else named[0].split(",")
        if right.name not in [one if isinstance(one, str) else one.name for one in taken]:
            found.append(f"{named[1]} is {named[0]}{named[2]}; {right.name} would be expected: {why}.")
    return found


def file_variables(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Variable -> its value and the file: what NCCL reads from its own files where the environment says nothing."""
    try:
        own = environ.get("NCCL_CONF_FILE") or str(Path("~/.nccl.conf").expanduser())
    except RuntimeError:  # a container's user without a home
        own = ""
    found: dict[str, tuple[str, str]] = {}
    for path in (own, "/etc/nccl.conf"):
        try:
            lines = Path(path).read_text(errors="replace").splitlines() if path else []
        except OSError:
            continue
        for line in lines:
            variable, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                found.setdefault(variable.strip(), (value.strip(), path))
    return found


def _named(name: str, nccl: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Value, what names it and where it came from, of an interface variable; None where nobody names one."""
    variable = KEYS[name].variable
    if nccl.get(name) is not None:
        return str(nccl[name]), f"nccl.{name}", ""
    if environ.get(variable):
        return environ[variable], variable, " (environment)"
    value, path = file_variables(environ).get(variable, ("", "")) if variable.startswith("NCCL") else ("", "")
    return (value, variable, f" ({path})") if value else None


def _conflict(name: str, value: Any, environ: Mapping[str, str]) -> str | None:
    """The variable of the environment that says something else than this key; None where there is none."""
    key = KEYS[name]
    for variable in (key.variable, *key.old_names):
        other = environ.get(variable, "")
        if not other or _plain(other) == _plain(_text(value)):
            continue
        if variable == "TORCH_NCCL_ASYNC_ERROR_HANDLING" and other == "1" and "TORCHELASTIC_RUN_ID" in environ:
            continue  # torchrun's own default for its workers, not a person's choice
        return variable
    return None


def _other_address(first: str | None, name: str, address: str) -> list[str]:
    """Gloo offers the first address of its interface, whichever the route uses."""
    try:
        ours = source_address(resolve(address))
    except OSError:
        return []
    if first is None or ours is None or ours == first or ours.startswith("127."):
        return []
    return [f"Gloo offers {first}, the first address of {name}; the route to {address} uses {ours}"]


def _text(value: Any) -> str:
    """As the libraries read it: 1 and 0 for true and false."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _plain(text: str) -> str:
    return _SAME.get(text.strip().lower(), text.strip())
