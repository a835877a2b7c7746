"""List this machine's network interfaces and their addresses, and find the one that leads to another machine.

The host name is not used: it may stand for 127.0.1.1, or for one of several addresses. `getifaddrs` of the C library
(Linux, macOS) through ctypes gives the list that NCCL and Gloo use; its names may be labels of one address (eth0:1).
Only `resolve` may send a packet, to a name server.
"""

import ctypes
import ipaddress
import socket
import sys
from dataclasses import dataclass

_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40  # <net/if.h>, the same on Linux and macOS
_FAMILIES = {int(socket.AF_INET): (socket.AF_INET, 4, 4), int(socket.AF_INET6): (socket.AF_INET6, 8, 16)}
_DISCARD = 9  # a port number for sockets that never send


class _Ifaddrs(ctypes.Structure):
    pass


# The fields up to address are the same on Linux and macOS; those behind it are not read.
_Ifaddrs._fields_ = [
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


@dataclass(frozen=True)
class Interface:
    name: str
    addresses: tuple[str, ...]  # numeric, IPv4 first; a link-local IPv6 one with its %name
    is_up: bool  # switched on, and with a carrier: a bridge without members has none
    is_loopback: bool


def interfaces() -> list[Interface]:
    """List them in the system's order; [] where the platform has no such list."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        getifaddrs, freeifaddrs = libc.getifaddrs, libc.freeifaddrs
    except (OSError, TypeError, AttributeError):
        return []
    freeifaddrs.argtypes = [ctypes.c_void_p]
    freeifaddrs.restype = None
    first = ctypes.POINTER(_Ifaddrs)()
    if getifaddrs(ctypes.byref(first)) != 0:
        return []
    flags: dict[str, int] = {}
    addresses: dict[str, list[str]] = {}
    try:
        entry = first
        while entry:
            item = entry.contents
            name = item.name.decode(errors="surrogateescape")
            flags[name] = flags.get(name, 0) | item.flags
            numeric = _numeric(item.address, name) if item.address else None
            addresses.setdefault(name, []).extend([numeric] if numeric else [])
            entry = item.next
    finally:
        freeifaddrs(first)
    return [
        Interface(
            name,
            tuple(sorted(dict.fromkeys(found), key=lambda address: ":" in address)),
            is_up=flags[name] & (_UP | _RUNNING) == _UP | _RUNNING,
            is_loopback=bool(flags[name] & _LOOPBACK),
        )
        for name, found in addresses.items()
    ]


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
    """Return whether this machine has this numeric address; never 0.0.0.0 and ::. Raises ValueError for a name."""
    wanted = _plain(address)
    if wanted.is_loopback:
        return True
    if wanted.is_unspecified:
        return False
    known = interfaces()
    if known:
        return _owner(wanted, known) is not None
    return _can_bind(address)


def route_to(address: str) -> Interface | None:
    """Return the interface through which a packet to this numeric address leaves; of an own address, its owner.

    None where there is no route, or the platform does not tell. Raises ValueError for a name.
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
    """Return this machine's address as seen from this numeric address; None where there is no route to it."""
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

    Without loopback, interfaces that are down, and link-local IPv6 (it needs an interface's name on the other side).
    """
    found = [
        address
        for interface in interfaces()
        if interface.is_up and not interface.is_loopback
        for address in interface.addresses
        if not (_plain(address).is_link_local and ":" in address) and not _plain(address).is_loopback
    ]
    return sorted(dict.fromkeys(found), key=lambda address: ":" in address)


def _numeric(sockaddr: int, name: str) -> str | None:
    """Return the address in a struct sockaddr; None for neither IPv4 nor IPv6 (a hardware address)."""
    head = ctypes.string_at(sockaddr, 2)
    # BSDs keep length and family in a byte each, Linux the family in both.
    family = head[1] if hasattr(socket, "AF_LINK") else int.from_bytes(head, sys.byteorder)
    if family not in _FAMILIES:
        return None
    number, offset, length = _FAMILIES[family]
    packed = ctypes.string_at(sockaddr + offset, length)
    if length == 16 and packed[0] == 0xFE and packed[1] & 0xC0 == 0x80:
        # Some BSDs keep the interface's number in bytes 2 and 3 of a link-local address.
        return socket.inet_ntop(number, packed[:2] + b"\0\0" + packed[4:]) + f"%{name}"
    return socket.inet_ntop(number, packed)


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse for comparison: without %scope and brackets, ::ffff:10.0.0.1 as IPv4."""
    number = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    return getattr(number, "ipv4_mapped", None) or number


def _owner(wanted: ipaddress.IPv4Address | ipaddress.IPv6Address, known: list[Interface]) -> Interface | None:
    """Return the interface with this address; one that is up rather than one that is down."""
    owners = [one for one in known if any(_plain(address) == wanted for address in one.addresses)]
    return min(owners, key=lambda one: not one.is_up, default=None)


def _can_bind(address: str) -> bool:
    """Return whether a socket can be bound to it, which is possible for this machine's own addresses only."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(
            address, 0, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind) as probe:
            probe.bind(target)
    except OSError:
        return False
    return True
