"""The line of a table of results that names the machine."""

from pathlib import Path

import pytest

from imagenet_ddp.distributed import hardware
from imagenet_ddp.distributed.hardware import describe_hardware
from imagenet_ddp.system import cpu_cores


def test_gpus_are_counted_by_model():
    assert describe_hardware("cuda", ["NVIDIA H200"] * 8, num_nodes=2) == "8 × NVIDIA H200"
    assert describe_hardware("cuda", ["T4", "A100", "T4"]) == "1 × A100 + 2 × T4"


def test_a_cpu_has_model_cores_and_units(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some  CPU @ 2.0GHz\n\nprocessor\t: 1\nmodel name\t: Other\n")
    monkeypatch.setattr(cpu_cores, "CPUINFO", cpuinfo)
    monkeypatch.setattr(hardware, "num_cores", lambda: 2)
    monkeypatch.setattr(hardware, "cpu_has_bf16", lambda: True)
    assert describe_hardware("cpu", []) == "Some CPU @ 2.0GHz, 2 cores, with bf16 units"
    assert describe_hardware("mps", []) == "Some CPU @ 2.0GHz, GPU (mps)"
    monkeypatch.setattr(hardware, "num_cores", lambda: 1)
    monkeypatch.setattr(hardware, "cpu_has_bf16", lambda: False)
    assert describe_hardware("cpu", [], num_nodes=3) == "3 × Some CPU @ 2.0GHz, 1 core, without bf16 units"


def test_a_processor_without_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(cpu_cores, "CPUINFO", tmp_path / "none")
    monkeypatch.setattr(cpu_cores.platform, "processor", lambda: "")
    monkeypatch.setattr(cpu_cores.platform, "machine", lambda: "riscv64")
    assert cpu_cores.cpu_model() == "riscv64"
