"""Resolve NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to interfaces of this machine, and find the right one.

The libraries read the values differently. NCCL expects a list of prefixes. A leading = turns all of them into whole
names, and a leading ^ excludes the interfaces that match. Gloo expects a list of whole names without spaces, each of
which must exist. Neither library accepts an interface without an address, and NCCL does not accept an interface without
a carrier. NCCL listens on the first interface that matches, so ^docker alone selects lo.
"""

import ipaddress
from collections.abc import Sequence
from contextlib import suppress

from imagenet_ddp.distributed.network.interfaces import Interface, interfaces, resolve, route_to

SHOWN = 8  # maximum number of interfaces in a message, because a container host has dozens
_LOCAL_NAMES = {"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"}
_ELSEWHERE = ("203.0.113.1", "2001:db8::1")  # reserved for documentation: only the default route leads there


def nccl_choice(value: str, known: Sequence[Interface]) -> list[Interface]:
    """List the interfaces that NCCL uses for this value. NCCL listens on the first of them."""
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


def mistake(where: str, variable: str, value: str, address: str | None) -> list[str]:
    """Return an error message if this value cannot work on this machine, otherwise [].

    where: the option or variable to name in the message. variable: NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME. address:
    the rendezvous address.
    """
    known = interfaces()
    if not known:
        return []  # this platform cannot list interfaces
    if variable.startswith("GLOO"):
        taken, fault = _gloo_choice(value, known)
        expected = "be the whole name of an interface of this machine"
    else:
        taken = nccl_choice(value, known)[:1]
        fault = "" if taken else f"{value}, which leaves no interface" if value.startswith("^") else value
        expected = "match an interface of this machine"
    only_here = next((one.name for one in taken if one.is_loopback), None)
    if fault:
        text = f"{where} must {expected} ({listing(known)}), got {fault}."
    elif only_here and address and not _is_loopback(address):
        how = "" if only_here == value.removeprefix("=") else f", which matches {only_here} first"
        text = (
            f"{where} must name an interface that other machines can reach, because the rendezvous address is "
            f"{address}, got {value}{how}."
        )
    else:
        return []
    right, why = toward(address)
    or_set = f", or set {where}={right.name} ({why})" if right else ""
    return [f"{text} Hint: {f'run `unset {where}`' if where == variable else f'set {where}=null'}{or_set}."]


def toward(address: str | None) -> tuple[Interface | None, str]:
    """Return the interface used to reach the rendezvous address, and the reason for the choice.

    The interface is None if there is no such interface. For a host name that resolves to 127.0.1.1 on its own machine
    (Debian), return the interface of the default route.
    """
    route = None
    if address:
        with suppress(OSError):
            route = route_to(resolve(address))
    if route and address and (not route.is_loopback or _is_loopback(address)):
        return route, f"used to reach {address}"
    why = f"; on this machine, {address} is a loopback address" if route else ""
    return _outward(), f"used to reach other machines{why}"


def loopback() -> Interface | None:
    return next((one for one in interfaces() if one.is_loopback and one.is_up and one.addresses), None)


def listing(known: Sequence[Interface]) -> str:
    """Format names and addresses for a message, such as "eth0 10.0.0.5; lo 127.0.0.1"."""
    rows = []
    for one in known:
        addresses = [address for address in one.addresses if "%" not in address]
        if addresses:
            rows.append(f"{one.name} {', '.join(addresses)}" + ("" if one.is_up else " (down)"))
    more = [f"and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
    return "; ".join(rows[:SHOWN] + more) or "no interface has an address"


def _outward() -> Interface | None:
    for elsewhere in _ELSEWHERE:
        route = route_to(elsewhere)
        if route and not route.is_loopback:
            return route
    return next((one for one in interfaces() if one.is_up and one.addresses and not one.is_loopback), None)


def _gloo_choice(value: str, known: Sequence[Interface]) -> tuple[list[Interface], str]:
    """Return the interfaces that Gloo uses for this value, and the mistake in the value; "" if there is none.

    The description of the mistake completes a sentence with "got ...".
    """
    names = value.split(",")
    missing = [name for name in names if not any(one.name == name and one.addresses for one in known)]
    taken = [one for one in known if one.name in names]
    down = [one.name for one in taken if not one.is_up]
    if missing:
        return taken, f"{value}, where {', '.join(missing)} is missing" if len(names) > 1 else value
    return taken, f"{value}, where {', '.join(down)} is down" if down else ""


def _is_loopback(address: str) -> bool:
    """Return whether the address is a loopback address or one of its usual names.

    A host name that merely resolves to a loopback address does not count.
    """
    try:
        return ipaddress.ip_address(address.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return address.lower() in _LOCAL_NAMES
