"""A misspelt _target_ is found from the files alone, with what is meant; what the files cannot tell is left to the
import."""

from pathlib import Path

import pytest

from imagenet_ddp.config.own_code import digests, validate
from imagenet_ddp.config.section import OF_ENTRIES, WITH_ARGS

MODULE = "from torch import nn\nfrom torch.nn import Identity\nclass Small(nn.Module):\n    pass\ndef pairs(): ...\n"


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mymodule.py").write_text(MODULE)
    (tmp_path / "dynamic.py").write_text("globals()['Made'] = int\n")
    (tmp_path / "broken.py").write_text("class Small(\n")
    (tmp_path / "package/inner").mkdir(parents=True)
    (tmp_path / "package/__init__.py").write_text("__getattr__ = None\n")
    (tmp_path / "package/inner/__init__.py").write_text("from mymodule import Small\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("target", "meant"),
    [
        ("mymodule.Smal", "mymodule.Small"),
        ("mymodule.Identiti", "mymodule.Identity"),
        ("mymodul.Small", "mymodule.Small"),
        ("pairs", "mymodule.pairs"),
        ("package.iner.Small", "package.inner.Small"),
        ("package.inner.Smal", "package.inner.Small"),
        ("torch.optim.Adamm", "torch.optim.Adam"),
        ("torch.optm.Adam", "torch.optim.Adam"),
        ("lightning.pytorch.callbacks.EarlyStoping", "lightning.pytorch.callbacks.EarlyStopping"),
    ],
)
def test_a_misspelt_name_is_found_with_its_correction(target: str, meant: str) -> None:
    (mistake,) = validate("model._target_", target)
    assert (mistake.keys, mistake.fixes[0].options) == (("model._target_",), (f"model._target_={meant}",))


def test_what_does_not_exist_nearby_gets_advice() -> None:
    (no_module,), (no_name,) = validate("k", "xqzw.Small"), validate("k", "mymodule.Xylophone")
    assert not no_module.fixes and "put xqzw.py into the current folder" in no_module.hint
    assert not no_name.fixes and no_name.hint == "correct the name in mymodule, which has Small, pairs"


@pytest.mark.parametrize(
    "target",
    ["mymodule.Small", "mymodule.nn.Linear", "dynamic.Made", "broken.Small", "package.anything", "torch.optim.Adam",
     "torchvision.models.resnet18", "timm.create_model", "datetime.datetime.now", "os.path.join", "math.sin",
     "builtins.print", "lightning.pytorch.callbacks.EarlyStopping"],
)  # fmt: skip
def test_what_exists_or_may_exist_is_accepted(target: str) -> None:
    assert validate("k", target) == []


def test_the_own_code_of_a_config_is_hashed_with_what_it_imports(tmp_path: Path) -> None:
    """To the last import; what is installed, and what runs on this machine only, is not a part of it."""
    (tmp_path / "package/inner/__init__.py").write_text("from .. import other\nfrom ..layers import Layer\n")
    (tmp_path / "package/other.py").write_text("import mymodule, numpy\n")
    (tmp_path / "package/layers.py").write_text("")
    (tmp_path / "unused.py").write_text("")
    targets = {"model": "package.inner.Net", "loss": "torch.nn.MSELoss", "optim": None}
    config: dict[str, dict[str, object]] = {group: {"_target_": targets.get(group)} for group in WITH_ARGS}
    config |= {group: {} for group in OF_ENTRIES}
    config["callbacks"]["mine"] = {"_target_": "broken.Small"}
    first = digests(config)
    own = "package", "package.inner", "package.other", "package.layers", "mymodule", "broken"
    assert first.keys() == {f"the code of {module}" for module in own}
    (tmp_path / "mymodule.py").write_text("changed = True\n")
    now = digests(config)
    assert [key for key in first if now[key] != first[key]] == ["the code of mymodule"]
