import socket

import pytest
from helpers.private_network import TWO_CARDS, in_own_network

from imagenet_ddp.system.interfaces import (
    interfaces,
    reachable_addresses,
    resolve,
    route_to,
    source_address,
)


def test_two_cards_with_several_addresses():
    out = in_own_network(
        TWO_CARDS,
        """
for attempt in range(50):  # the system may take a second to see that the other end is off
    known = {one.name: one for one in i.interfaces()}
    if not known["loose0"].is_up:
        break
    time.sleep(0.1)
out["addresses"] = {name: one.addresses for name, one in known.items()}
out["up"] = sorted(name for name, one in known.items() if one.is_up)
own = ["10.1.1.20", "10.1.1.21", "10.1.7.20", "10.2.2.20", "fd00:2::20", "10.3.3.20", "127.0.1.1", "::ffff:10.1.1.20"]
others = ["10.1.1.22", "10.9.9.9", "fd00:2::21", "0.0.0.0"]
out["own"] = [address for address in own if not i.is_local(address)]
out["others"] = [address for address in others if i.is_local(address)]
name = lambda one: one and one.name
to = ["10.1.1.99", "10.1.7.99", "10.2.2.99", "fd00:2::99", "10.9.9.9", "10.2.2.20", "10.1.1.21", "127.0.1.1"]
out["route"] = {address: name(i.route_to(address)) for address in to}
out["source"] = {address: i.source_address(address) for address in to}
out["reachable"] = i.reachable_addresses()
out["hostname"] = i.resolve("node-z")
""",
    )
    addresses, source = out["addresses"], out["source"]
    assert addresses["ens3"][:2] == ["10.1.1.20", "10.1.7.20"] and addresses["ens3:1"] == ["10.1.1.21"]
    assert addresses["ens4"][:2] == ["10.2.2.20", "fd00:2::20"] and addresses["ens4"][2].endswith("%ens4")
    assert addresses["far3"][0].startswith("fe80::")
    # The other end of loose0 is switched off, off0 itself is.
    assert out["up"] == ["ens3", "ens3:1", "ens4", "far3", "far4", "lo"]
    assert out["own"] == [] and out["others"] == []
    assert out["hostname"] == "127.0.1.1"  # and yet 10.1.1.20 is known to be this machine's
    assert out["route"] == {
        "10.1.1.99": "ens3",
        "10.1.7.99": "ens3",
        "10.2.2.99": "ens4",
        "fd00:2::99": "ens4",
        "10.9.9.9": None,
        "10.2.2.20": "ens4",  # the system sends this through lo; others reach it at ens4
        "10.1.1.21": "ens3:1",
        "127.0.1.1": "lo",
    }
    assert (source["10.1.1.99"], source["10.1.7.99"], source["fd00:2::99"]) == ("10.1.1.20", "10.1.7.20", "fd00:2::20")
    assert source["10.9.9.9"] is None
    assert sorted(out["reachable"][:4]) == ["10.1.1.20", "10.1.1.21", "10.1.7.20", "10.2.2.20"]
    assert out["reachable"][4:] == ["fd00:2::20"]


def test_loopback():
    (first,) = [one for one in interfaces() if "127.0.0.1" in one.addresses]
    assert first.is_loopback and first.is_up
    assert first.addresses[0] == "127.0.0.1"
    assert route_to("127.0.0.1") == route_to("127.0.1.1") == first
    assert source_address("127.0.0.1") == "127.0.0.1"
    assert not any(address.startswith("127.") for address in reachable_addresses())


def test_resolve():
    assert resolve("localhost") == "127.0.0.1"
    assert resolve("10.1.1.20") == "10.1.1.20"
    assert resolve("[::1]") == resolve("::1") == "::1"
    with pytest.raises(socket.gaierror):
        resolve("x" * 64)
