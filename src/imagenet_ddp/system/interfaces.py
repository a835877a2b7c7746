"""List this machine's network interfaces and their addresses, and find the interface used to reach another machine.

The host name of this machine is not used, because it may resolve to 127.0.1.1 or to any one of several addresses. The
name of an interface may be the label of a single address (eth0:1). Only `resolve` may send a packet, to a name server.
"""

import ipaddress
import socket
from dataclasses import dataclass

import psutil

_LOCAL_NAMES = {"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"}
_DISCARD = 9  # port number for sockets that never send


@dataclass(frozen=True)
class Interface:
    name: str
    addresses: tuple[str, ...]  # numeric, IPv4 first; a link-local IPv6 address includes its %name
    is_up: bool  # enabled and with a carrier, which a bridge without members does not have
    is_loopback: bool


def interfaces() -> list[Interface]:
    """List this machine's network interfaces in the system's order."""
    stats, found = psutil.net_if_stats(), list[Interface]()
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
    except UnicodeError as error:  # Python's codec rejects names such as "a..b", and labels beyond 63 characters
        raise socket.gaierror(socket.EAI_NONAME, f"not a host name ({error})") from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def is_local(address: str) -> bool:
    """Return whether this machine has this numeric address; False for 0.0.0.0 and ::.

    Raises ValueError for a host name.
    """
    wanted = _plain(address)
    if wanted.is_loopback:
        return True
    if wanted.is_unspecified:
        return False
    return _owner(wanted, interfaces()) is not None


def is_loopback(host: str) -> bool:
    """Return whether the host name or address is a loopback address on this machine."""
    try:
        return _plain(resolve(host)).is_loopback
    except OSError:
        return False  # a name that does not resolve is reported later, when this process meets the others


def names_loopback(host: str) -> bool:
    """Return whether this is a loopback address or one of its usual names, which mean the same on every machine.

    A host name that merely resolves to a loopback address does not count: elsewhere, it may resolve to another address.
    """
    try:
        return _plain(host).is_loopback
    except ValueError:
        return host.lower() in _LOCAL_NAMES


def route_to(address: str) -> Interface | None:
    """Return the interface through which packets to this numeric address leave this machine.

    For an address of this machine, return the interface that has this address. Return None if there is no route, or if
    the platform does not show the route. Raises ValueError for a host name.
    """
    known = interfaces()
    wanted = _plain(address)
    if owner := _owner(wanted, known):
        return owner
    if wanted.is_loopback:  # such as 127.0.1.1: the loopback interface has all of 127/8, but lists only one address
        return next((interface for interface in known if interface.is_loopback and interface.is_up), None)
    source = source_address(address)
    return _owner(_plain(source), known) if source else None


def source_address(address: str) -> str | None:
    """Return the address from which this machine sends packets to this numeric address; None if there is no route.

    Raises ValueError for a host name.
    """
    _plain(address)
    try:
        family, kind, _, _, target = socket.getaddrinfo(
            address, _DISCARD, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # connecting a UDP socket chooses the route and sends nothing
            source = str(probe.getsockname()[0])
    except OSError:
        return None
    return None if _plain(source).is_unspecified else source


def reachable_addresses() -> list[str]:
    """List the addresses at which another machine may reach this machine, IPv4 first.

    The list excludes loopback addresses, interfaces that are down, and link-local IPv6 addresses, for which the other
    machine would need an interface name.
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
    """Parse an address for comparison: drop %scope and brackets, and convert ::ffff:10.0.0.1 to IPv4."""
    number = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    return getattr(number, "ipv4_mapped", None) or number


def _owner(wanted: ipaddress.IPv4Address | ipaddress.IPv6Address, known: list[Interface]) -> Interface | None:
    """Return the interface with this address; if there are several, one that is up."""
    owners = [one for one in known if any(_plain(address) == wanted for address in one.addresses)]
    return min(owners, key=lambda one: not one.is_up, default=None)
