import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.forked_commands import start_code
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema.commands import register
from imagenet_ddp.distributed import nccl
from imagenet_ddp.distributed.nccl import configured_variables, interface_variables, nccl_choice, validate
from imagenet_ddp.system.interfaces import Interface, interfaces

MASTER = "10.1.1.9"
LO = Interface("lo", ("127.0.0.1", "::1"), True, True)
ENS3 = Interface("ens3", ("10.1.1.20", "fd00:1::20"), True, False)
ENS3F1 = Interface("ens3f1", ("10.2.2.20",), True, False)
SIX = Interface("six0", ("fd00:6::20",), True, False)
DOWN = Interface("down0", ("10.3.3.20",), False, False)
KNOWN = [LO, SIX, ENS3, ENS3F1, DOWN]


def config(**env: Any) -> dict[str, Any]:
    return env


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Two cards; ens3 leads to MASTER and wherever nothing else does."""

    def route(address: str) -> Interface | None:
        if address.startswith("127.") or address == "::1":
            return LO
        return ENS3F1 if address.startswith("10.2.") else None if address.startswith("10.9.") else ENS3

    monkeypatch.setattr(nccl, "interfaces", lambda: KNOWN)
    monkeypatch.setattr(nccl, "route_to", route)
    names = {"node-a": MASTER, "node-z": "127.0.1.1", "localhost": "127.0.0.1"}
    monkeypatch.setattr(nccl, "resolve", lambda host: names.get(host, host))


# What is set, and what is refused.


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("default", {}),
        ("sockets", {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}),
        ("infiniband", {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "0"}),
        ("efa", {"FI_PROVIDER": "efa"}),
        ("debug", {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET,GRAPH"}),
    ],
)
def test_presets_and_options_on_top(preset: str, expected: dict[str, str]):
    register("train")
    typed = ["nccl.env.NCCL_P2P_DISABLE=true", "nccl.env.NCCL_NTHREADS=64", "nccl.env.NCCL_IB_HCA=null"]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        group: Any = OmegaConf.to_object(compose("train", overrides=[f"nccl={preset}", *typed]).nccl)
    assert group.name == preset and validate(group.env, {}, None) == []
    assert configured_variables(group.env, {}) == {**expected, "NCCL_P2P_DISABLE": "1", "NCCL_NTHREADS": "64"}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"NCCL_NTHREADS": [64]}, "got [64]. Hint: set nccl.env.NCCL_NTHREADS=null."),
        ({"NCCL_SOCKET_IFNAM": "lo"}, "is not a known variable. Hint: did you mean nccl.env.NCCL_SOCKET_IFNAME?"),
        ({"LD_PRELOAD": "x"}, "nccl.env.LD_PRELOAD must be a variable of NCCL, Gloo or libfabric (NCCL_..., "),
    ],
)
def test_values_and_names_that_cannot_work(env: dict[str, Any], message: str):
    (mistake,) = validate(config(**env), {}, None)
    assert message in str(mistake) and mistake.keys == tuple(f"nccl.env.{name}" for name in env)


def test_a_conflict_is_named_and_nothing_overridden(machine: None):
    environ = {"NCCL_P2P_DISABLE": "1"}
    (mistake,) = validate(config(NCCL_P2P_DISABLE=False), environ, MASTER)
    assert str(mistake).startswith(
        "nccl.env.NCCL_P2P_DISABLE must equal NCCL_P2P_DISABLE in the environment (1), got false."
    )
    assert configured_variables(config(NCCL_P2P_DISABLE=False), environ) == {}


# Which interface.


@pytest.mark.parametrize(
    ("variable", "value", "address", "said"),
    [
        ("GLOO", "typo", None, "(lo 127.0.0.1, ::1, six0 fd00:6::20, ens3 10.1.1.20, fd00:1::20, ens3f1 10.2.2.20), "
         "got typo. Hint: run `unset GLOO_SOCKET_IFNAME`, or set GLOO_SOCKET_IFNAME=ens3 (used to reach other"),
        ("GLOO", "ens", None, "whole names"),  # Gloo takes no prefix
        ("GLOO", "ens3,typo", None, "got ens3,typo."),
        ("GLOO", "down0", None, "got down0."),
        ("GLOO", "lo", MASTER, "must name an interface that reaches 10.1.1.9, got lo, which selects lo."),
        ("NCCL", "=ens", None, "must match an interface"),
        ("NCCL", "^docker", MASTER, "got ^docker, which selects lo."),
        ("NCCL", "^docker", "node-z", "(used to reach other machines; on this machine, node-z is a loopback address)"),
        ("GLOO", "lo", "127.0.0.1", None),
        ("NCCL", "ens", MASTER, None),
        ("NCCL", "=ens3,typo", MASTER, None),  # one list for machines whose cards are named differently
        ("NCCL", "^lo,docker", MASTER, None),
    ],
)  # fmt: skip
def test_names_that_work_and_those_that_cannot(
    machine: None, variable: str, value: str, address: str | None, said: str | None
):
    found = validate(config(), {f"{variable}_SOCKET_IFNAME": value}, address)
    assert (said is None and not found) or (said and said in str(found[0])), found


def test_one_machine_needs_the_loopback_only(machine: None):
    found, said = interface_variables(None, True, config(), {})
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    assert found == loopback
    why = "all processes are on this machine"
    assert said == [f'NCCL_SOCKET_IFNAME="=lo": {why}', f"GLOO_SOCKET_IFNAME=lo: {why}"]
    # Several "nodes" in several terminals of one machine.
    assert interface_variables("127.0.0.1", False, config(), {})[0] == loopback


def test_what_is_named_stays(machine: None):
    gloo, both = {"GLOO_SOCKET_IFNAME": "ens3"}, {"GLOO_SOCKET_IFNAME": "x", "NCCL_SOCKET_IFNAME": "y"}
    assert interface_variables(MASTER, False, config(NCCL_SOCKET_IFNAME="ens3f1"), {})[0] == gloo
    assert interface_variables(MASTER, False, config(), {"NCCL_SOCKET_IFNAME": "ens3f1"})[0] == gloo
    assert interface_variables(MASTER, False, config(), both) == ({}, [])
    assert interface_variables(None, True, config(), both) == ({}, [])


def test_the_interface_of_nccls_own_file_stays(machine: None, tmp_path: Path):
    (tmp_path / ".nccl.conf").write_text("# ours\nNCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME==ens3f1\n")
    for environ in ({"HOME": str(tmp_path)}, {"NCCL_CONF_FILE": str(tmp_path / ".nccl.conf")}):
        assert interface_variables(MASTER, False, config(), environ)[0] == {"GLOO_SOCKET_IFNAME": "ens3"}


def test_the_default_of_torchruns_agent_is_no_choice_of_the_user():
    name, options = "TORCH_NCCL_ASYNC_ERROR_HANDLING", config(TORCH_NCCL_ASYNC_ERROR_HANDLING=3)
    of_worker = {name: "1", "TORCHELASTIC_RUN_ID": "none"}
    assert validate(options, of_worker, None) == []
    assert configured_variables(options, of_worker) == {name: "3"}
    assert validate(options, {name: "1"}, None)


# Against the libraries themselves.


def libnccl() -> Path:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in Path(folder).glob("nccl/lib/libnccl.so*"):
            return path
    pytest.skip("no NCCL beside torch")


OWN = next((one.name for one in interfaces() if one.is_up and not one.is_loopback and one.addresses), "lo")
PATTERNS = ["=lo", "^lo", OWN[:-1], f"={OWN[:-1]}", "^docker", f"{OWN},typo", f" {OWN}", f"={OWN}:1", f"^lo,{OWN}"]


@pytest.mark.parametrize("value", PATTERNS)
def test_nccl_listens_where_we_say(value: str):
    script = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).ncclGetUniqueId(ctypes.create_string_buffer(128)))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", script, str(libnccl())],
        env=dict(os.environ, NCCL_SOCKET_IFNAME=value, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="ALL"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    listens = re.search(r"Bootstrap: Using (\S+):\S+<0>", done.stdout)
    chosen = nccl_choice(value, interfaces())
    assert (listens and listens[1]) == (chosen[0].name if chosen else None), done.stdout
    assert (validate(config(), {"NCCL_SOCKET_IFNAME": value}, None) == []) == (done.returncode == 0)


def test_gloo_takes_the_names_we_take():
    script = """
import torch.distributed as dist
works = {}
for value in args[0]:
    os.environ["GLOO_SOCKET_IFNAME"] = value
    store = dist.HashStore()
    try:
        dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=20))
        dist.destroy_process_group()
        works[value] = True
    except RuntimeError:
        works[value] = False
json.dump(works, sys.stdout)
"""
    bare = [one.name for one in interfaces() if not one.addresses][:1]
    values = [OWN, f"{OWN},lo", f"{OWN}, lo", f"={OWN}", f"^{OWN}", OWN[:-1], f"typo,{OWN}", *bare]
    done = start_code(script, values)
    assert done.wait(120) == 0, done.err
    ours = {value: validate(config(), {"GLOO_SOCKET_IFNAME": value}, None) == [] for value in values}
    assert ours == json.loads(done.out)
