"""Make plans from typed options, by default for this machine's CPU."""

from collections.abc import Mapping
from typing import Any

from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.config.schema.run import RunConfig
from imagenet_ddp.config.section import typed_config
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.launch.devices import use_device
from imagenet_ddp.launch.plan import Plan, make_plan


def plan_of(
    *options: str, place: Place | None = None, environ: Mapping[str, str] | None = None, **resumed: Any
) -> Plan:
    """Return the plan of `train` with these options, which must pass its checks. resumed: additional arguments of
    make_plan."""
    kind = [] if any(each.startswith("trainer.accelerator=") for each in options) else ["trainer.accelerator=cpu"]
    request = command_line("train", [*kind, *options], environ or {})
    config, here = typed_config(request.config, RunConfig), place or Place()
    return make_plan(config, here, use_device(config.trainer, here.local_rank), **resumed)
