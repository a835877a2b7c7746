"""List this machine's network interfaces and their addresses, and find the one that leads to another machine.

The host name is not used: it may resolve to 127.0.1.1, or to one of several addresses. An interface's name may be a
label of one address (eth0:1). Only `resolve` may send a packet, to a name server.
"""

import ipaddress
import socket
from dataclasses import dataclass

import psutil

_DISCARD = 9  # a port number for sockets that never send


@dataclass(frozen=True)
class Interface:
    name: str
    addresses: tuple[str, ...]  # numeric, IPv4 first; a link-local IPv6 one with its %name
    is_up: bool  # switched on, and with a carrier: a bridge without members has none
    is_loopback: bool


def interfaces() -> list[Interface]:
    """List them in the system's order."""
    stats, found = psutil.net_if_stats(), []
    for name, entries in psutil.net_if_addrs().items():
        flags = stats[device].flags.split(",") if (device := name.partition(":")[0]) in stats else []
        addresses = [
            each.address for family in (socket.AF_INET, socket.AF_INET6) for each in entries if each.family == family
        ]
        found.append(
            Interface(name, tuple(dict.fromkeys(addresses)), {"up", "running"} <= set(flags), "loopback" in flags)
        )
    return found


def resolve(host: str) -> str:
    """Return one numeric address of a host name or address, IPv4 if possible. Raises OSError (socket.gaierror)."""
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    try:
        found = socket.getaddrinfo(bare, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # "a..b", or a label beyond 63 characters: Python's own codec, before any name server
        raise socket.gaierror(socket.EAI_NONAME, f"not a host name ({error})") from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def is_local(address: str) -> bool:
    """Return whether this machine has this numeric address; False for 0.0.0.0 and ::. Raises ValueError for a name."""
    wanted = _plain(address)
    if wanted.is_loopback:
        return True
    if wanted.is_unspecified:
        return False
    return _owner(wanted, interfaces()) is not None


def is_loopback(host: str) -> bool:
    """Return whether the host name or address is the loopback on this machine."""
    try:
        return _plain(resolve(host)).is_loopback
    except OSError:
        return False  # joining reports a name that does not resolve


def route_to(address: str) -> Interface | None:
    """Return the interface through which a packet to this numeric address leaves; for an address of this machine, the
    interface that has it.

    None if there is no route, or the platform does not show it. Raises ValueError for a name.
    """
    known = interfaces()
    wanted = _plain(address)
    if owner := _owner(wanted, known):
        return owner
    if wanted.is_loopback:  # 127.0.1.1: all of 127/8 is the loopback's, one address is listed
        return next((interface for interface in known if interface.is_loopback and interface.is_up), None)
    source = source_address(address)
    return _owner(_plain(source), known) if source else None


def source_address(address: str) -> str | None:
    """Return this machine's address as seen from this numeric address; None if there is no route to it."""
    _plain(address)
    try:
        family, kind, _, _, target = socket.getaddrinfo(
            address, _DISCARD, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # UDP: picks the route, sends nothing
            source = str(probe.getsockname()[0])
    except OSError:
        return None
    return None if _plain(source).is_unspecified else source


def reachable_addresses() -> list[str]:
    """List the addresses at which another machine may reach this one, IPv4 first.

    Excludes loopback, interfaces that are down, and link-local IPv6, which needs an interface name on the other side.
    """
    found = [
        address
        for interface in interfaces()
        if interface.is_up and not interface.is_loopback
        for address in interface.addresses
        if not (_plain(address).is_link_local and ":" in address) and not _plain(address).is_loopback
    ]
    return sorted(dict.fromkeys(found), key=lambda address: ":" in address)


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an address for comparison: without %scope and brackets, ::ffff:10.0.0.1 as IPv4."""
    number = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    return getattr(number, "ipv4_mapped", None) or number


def _owner(wanted: ipaddress.IPv4Address | ipaddress.IPv6Address, known: list[Interface]) -> Interface | None:
    """Return the interface with this address, preferring one that is up."""
    owners = [one for one in known if any(_plain(address) == wanted for address in one.addresses)]
    return min(owners, key=lambda one: not one.is_up, default=None)
