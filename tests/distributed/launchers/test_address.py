"""cluster.address in all its forms, and MASTER_ADDR with MASTER_PORT."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_ddp.distributed.launchers.request import from_environment, parse
from imagenet_ddp.distributed.place import Address
from imagenet_ddp.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://10.1.1.20:23456", Address("10.1.1.20", 23456)),
        ("node_a.cluster.local", Address("node_a.cluster.local", 29500)),
        ("[fe80::1%eth0]", Address("fe80::1%eth0", 29500)),
        ("file:////mnt/my jobs//ä=1", Address(file="/mnt/my jobs/ä=1")),
    ],
)
def test_parse(text: str, address: Address):
    assert parse(text, "cluster.address") == address


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # torch would take /job42 instead
        (
            "file://nfs/job42",
            "must be tcp://HOST:PORT, HOST:PORT, HOST (IPv6 in brackets) or file:///PATH, got file://nfs",
        ),
        ("file:///mnt/nfs/", "Hint: set k=file:///PATH."),
        ("http://a:5", "got http://a:5. Hint: set k=tcp://HOST:29500."),
        ("fd00::20", "Hint: set k=tcp://HOST:29500."),
        ("a:", "the port of k must be from 1 to 65535, got an empty value. Hint: use 29500 if it is free."),
        ("a:65536", "got 65536."),
        ("a:٣", "got ٣."),
    ],
)
def test_refused(text: str, said: str):
    with pytest.raises(ConfigError, match=r"Hint: ") as caught:
        parse(text, "k")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({"MASTER_PORT": "77"}, None),
        ({"MASTER_ADDR": "::1", "MASTER_PORT": "77"}, Address("::1", 77)),
        ({"MASTER_ADDR": "fe80::1%eth0"}, Address("fe80::1%eth0", 29500)),
        ({"MASTER_ADDR": "a:5", "MASTER_PORT": "77"}, Address("a", 5)),
    ],
)
def test_from_environment(environ: dict[str, str], address: Address | None):
    assert from_environment(environ) == address


@pytest.mark.parametrize("port", ["0", "x"])
def test_a_wrong_master_port(port: str):
    for host in ("a", "10.0.0.1", "::1"):
        with pytest.raises(ConfigError, match=rf"MASTER_PORT must be .* got {port}\. Hint: use 29500"):
            from_environment({"MASTER_ADDR": host, "MASTER_PORT": port})


HOSTS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,30}", fullmatch=True)
IPS = st.ip_addresses().map(str)


@given(HOSTS | IPS, st.integers(1, 65535))
def test_what_is_written_is_read_again(host: str, port: int):
    text = str(Address(host, port))
    for form in (text, f"tcp://{text}", f"tcp://{text}/"):
        assert parse(form, "k") == Address(host, port)
    assert from_environment({"MASTER_ADDR": host, "MASTER_PORT": str(port)}) == Address(host, port)
