"""cluster.address in all its forms, and MASTER_ADDR with MASTER_PORT."""

import ipaddress

import pytest

from imagenet_ddp.distributed.launchers.address import Address, from_environment, parse, port_of


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://10.1.1.20:23456", Address("10.1.1.20", 23456)),
        ("10.1.1.20:23456", Address("10.1.1.20", 23456)),
        ("node-a", Address("node-a", 29500)),
        ("tcp://node-a", Address("node-a", 29500)),
        ("tcp://node-a:1/", Address("node-a", 1)),
        ("node_a.cluster.local:65535", Address("node_a.cluster.local", 65535)),
        ("tcp://[fd00::20]:77", Address("fd00::20", 77)),
        ("[fe80::1%eth0]", Address("fe80::1%eth0", 29500)),
        ("file:///mnt/nfs/job42", Address(file="/mnt/nfs/job42")),
        ("file:////mnt/nfs//job42", Address(file="/mnt/nfs/job42")),
        ("file:///mnt/my jobs/ä=1", Address(file="/mnt/my jobs/ä=1")),
    ],
)
def test_parse(text: str, address: Address):
    assert parse(text, "cluster.address") == address


def test_what_is_written_is_read_again():
    for host in ("10.0.0.1", "node-a", "fd00::1", "::1"):
        for port in (1, 29500, 65535):
            assert parse(str(Address(host, port)), "k") == Address(host, port)
    for file in ("/a", "/a/b c/d"):
        assert parse(str(Address(file=file)), "k") == Address(file=file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("file://nfs/job42", "HOST (IPv6 in brackets) or file:///PATH, got file://nfs/job42. Hint: k=file:///PATH."),
        ("file:job42", "Hint: k=file:///PATH."),
        ("file:///", "got file:///. Hint: k=file:///PATH."),
        ("file:///mnt/nfs/", "Hint: k=file:///PATH."),
        ("0.0.0.0:1", "got 0.0.0.0, which stands for no machine"),
        ("env://", "Hint: k=tcp://HOST:29500."),
        ("http://a:5", "must be tcp://HOST:PORT, HOST:PORT, HOST (IPv6 in brackets) or file:///PATH, got http://a:5. "
         "Hint: k=tcp://HOST:29500."),
        ("fd00::20", "Hint: k=tcp://HOST:29500."),
        ("a b", "Hint: k=tcp://HOST:29500."),
        ("tcp://", "Hint: k=tcp://HOST:29500."),
        (":29500", "Hint: k=tcp://HOST:29500."),
        ("a/b", "Hint: k=tcp://HOST:29500."),
        ("a:", "the port of k must be from 1 to 65535, got empty. Hint: k=a:29500."),
        ("a:0", "got 0. Hint: k=a:29500."),
        ("a:65536", "got 65536."),
        ("a:b", "got b."),
        ("a:-1", "got -1."),
        ("a:٣", "got ٣."),
        ("[::1]:x", "got x. Hint: k=[::1]:29500."),
    ],
)  # fmt: skip
def test_refused(text: str, said: str):
    with pytest.raises(ValueError, match=r"Hint: ") as caught:
        parse(text, "k")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({}, None),
        ({"MASTER_ADDR": ""}, None),
        ({"MASTER_PORT": "77"}, None),
        ({"MASTER_ADDR": "a"}, Address("a", 29500)),
        ({"MASTER_ADDR": "a", "MASTER_PORT": ""}, Address("a", 29500)),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "77"}, Address("a", 77)),
        ({"MASTER_ADDR": "::1", "MASTER_PORT": "77"}, Address("::1", 77)),
        ({"MASTER_ADDR": "fe80::1%eth0"}, Address("fe80::1%eth0", 29500)),
        ({"MASTER_ADDR": "a:5", "MASTER_PORT": "77"}, Address("a", 5)),
    ],
)
def test_from_environment(environ: dict[str, str], address: Address | None):
    assert from_environment(environ) == address


@pytest.mark.parametrize("port", ["0", "x", "-1", "65536", "1.5"])
def test_a_wrong_master_port(port: str):
    for host in ("a", "10.0.0.1", "::1"):
        with pytest.raises(ValueError, match=rf"MASTER_PORT must be .* got {port}\. Hint: MASTER_PORT=29500"):
            from_environment({"MASTER_ADDR": host, "MASTER_PORT": port})
    with pytest.raises(ValueError, match="MASTER_PORT"):
        parse("a", "cluster.address", port)
    assert parse("a:5", "cluster.address", port).port == 5


def test_every_number_is_an_address():
    for number in range(1, 2**32, 2**27 + 12345):  # 0.0.0.0 and :: are no machine's
        text = str(ipaddress.ip_address(number))
        assert from_environment({"MASTER_ADDR": text}) == parse(text, "k") == Address(text)
        six = str(ipaddress.IPv6Address(number << 64 | number))
        assert from_environment({"MASTER_ADDR": six}) == parse(f"[{six}]", "k") == Address(six)
    assert port_of({}) == 29500
