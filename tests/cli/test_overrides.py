"""What is typed, laid over a checkpoint's config."""

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from imagenet_ddp.cli.check_config import check
from imagenet_ddp.cli.overrides import merge_overrides
from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.errors import ConfigError

pytestmark = pytest.mark.usefixtures("here")


def composed(*typed: str, verb: str) -> DictConfig:
    return command_line(verb, list(typed), {"HOME": "/home/ann"}).config


def stored(**changed: Any) -> dict[str, Any]:
    plain: Any = OmegaConf.to_container(composed("data=imagefolder", "data.root=pets", verb="train"), resolve=True)
    return plain | {"name": "old"} | changed


def merged(*typed: str, verb: str = "evaluate", base: dict[str, Any] | None = None, **afresh: Any) -> DictConfig:
    fresh = composed(*typed, *(["checkpoint=x.ckpt"] if verb == "evaluate" else []), verb=verb)
    before = OmegaConf.to_yaml(fresh)
    config = merge_overrides(stored() if base is None else base, fresh, list(typed), **afresh)
    assert OmegaConf.to_yaml(fresh) == before and OmegaConf.is_struct(config)
    return config


def test_it_starts_from_the_checkpoint_and_takes_what_is_typed():
    config = merged("data.batch_size=7", "trainer.limit_val_batches=2")
    assert (config.data.name, config.data.root, config.data.image_size) == ("imagefolder", "pets", 224)
    assert (config.data.batch_size, config.trainer.limit_val_batches) == (7, 2)
    assert (config.name, config.trainer.max_epochs, config.checkpoint) == ("old", 30, "x.ckpt")
    assert check(config, {}, "evaluate", [])[0] == []
    (text,) = check(merged("data.root=gone"), {}, "evaluate", [])[0]
    assert str(text).startswith("data.root must be a folder, but gone (")


def test_it_takes_a_group_with_its_subtree_and_all_of_an_experiment_but_the_name():
    config = merged("data=stl10", "data.batch_size=9")
    assert (config.data.name, config.data.root, config.data.batch_size) == ("stl10", "./data", 9)
    assert config.optim.weight_decay == 1e-4  # the checkpoint's, not the recipe's that came along
    config = merged("experiment=aws_stl10", "optim.lr=0.3", verb="train")
    assert (config.data.name, config.trainer.max_epochs, config.optim.lr, config.name) == ("stl10", 2, 0.3, "old")
    assert merged("name=new", "experiment=quick", verb="train").name == "new"


def test_a_resume_changes_what_only_the_stored_run_has():
    """A callback's argument, and the callback; the command's own defaults do not know them."""
    early = {"_target_": "lightning.pytorch.callbacks.EarlyStopping", "monitor": "val/top1", "patience": 1}
    base = stored(callbacks={"early_stopping": early})
    for typed, expected in (
        ("callbacks.early_stopping.patience=3", early | {"patience": 3}),
        ("+callbacks.early_stopping.min_delta=0.1", early | {"min_delta": 0.1}),
        ("~callbacks.early_stopping", None),
    ):
        config = merged("resume=x.ckpt", typed, verb="train", base=base)
        assert config.callbacks.get("early_stopping") == expected
        assert check(config, {}, "train", [])[0] == []
    config = merged("resume=x.ckpt", "callbacks.other.patience=3", verb="train", base=base)
    (text,) = check(config, {}, "train", [])[0]
    assert str(text).startswith("callbacks.other must name its class")
    for alone in ((), ("resume=auto",)):
        with pytest.raises(ConfigError, match=r"callbacks.early_stopping.patience does not exist"):
            composed(*alone, "callbacks.early_stopping.patience=3", verb="train")


@pytest.mark.parametrize(
    ("typed", "size"),
    [
        (["data=stl10"], 512),
        (["experiment=quick", "trainer.batch_finder=true"], 512),
        (["data=stl10", "data.batch_size=9"], 9),
        (["data=stl10", "trainer.batch_finder=false"], 128),
    ],
)
def test_it_keeps_the_batch_that_was_found(typed: list[str], size: int):
    """A job that is started again has the options of the first time, where no batch stands."""
    base = stored()
    base = {**base, "data": {**base["data"], "batch_size": 512}, "trainer": {**base["trainer"], "batch_finder": True}}
    assert merged(*typed, base=base).data.batch_size == size
    assert merged("data=stl10", base={**base, "trainer": stored()["trainer"]}).data.batch_size == 128


def test_it_ignores_what_another_version_wrote():
    base = stored(bogus=1, seed="no number")
    base["data"], base["trainer"] = {**base["data"], "gone": 3}, {**base["trainer"], "strategy": "ddp"}
    del base["data"]["flip"], base["loss"]
    base["schedule"] = {**base["schedule"], "warmup_epochs": 0.0}  # a number in older checkpoints, not auto
    config = merged(base=base)
    assert "bogus" not in config and "gone" not in config.data and "strategy" not in config.trainer
    assert (config.seed, config.data.flip, config.loss.name) == (0, 0.5, "cross_entropy")
    assert config.schedule.warmup_epochs == 0.0


def test_it_copies_free_keys_and_can_take_keys_afresh():
    base = stored(callbacks={"early_stopping": {"_target_": "lightning.x", "patience": 3}})
    base["model"] = {**base["model"], "args": {"dropout": 0.1}}
    base["trainer"] = {**base["trainer"], "devices": 8, "num_nodes": 2}
    config = merged("+model.args.width=2", "+optim.args={eps: 1}", base=base)
    assert (config.model.args, config.optim.args) == ({"dropout": 0.1, "width": 2}, {"eps": 1})
    assert (config.callbacks.early_stopping.patience, config.trainer.devices) == (3, 8)
    assert merged("callbacks=none", base=base).callbacks == {}
    config = merged(base=base, afresh=["trainer.devices", "trainer.num_nodes", "cluster"])
    assert (config.trainer.devices, config.trainer.num_nodes) == ("auto", "auto")
