"""Measure once whether a compiled net trains faster on this machine, and remember the result."""

import copy
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from imagenet_ddp.distributed.devices import describe_hardware
from imagenet_ddp.models.compiled import compile_net
from imagenet_ddp.performance.step_timer import time_steps
from imagenet_ddp.performance.train_step import make_training
from imagenet_ddp.system.atomic_write import atomic_write
from imagenet_ddp.system.mapping_file import read_mapping
from imagenet_ddp.system.paths import cache_dir

LEAST_GAIN = 1.03  # smaller gains are within the variation of repeated measurements
BUDGET_S = 20.0  # time for all steps, without compilation
FILE = "compile.json"


def choose(config: Mapping[str, Any], precision: str, device: torch.device) -> list[str]:
    """Return [default or off, the reason] for compile=auto.

    Compile the net and train it on generated images, unless this combination of machine, net, image size, batch size,
    precision and number of threads has been measured before. Raises ConfigError if a training step does not fit into
    memory.
    """
    path = cache_dir(os.environ) / FILE
    known, key = read_mapping(path), _key(config, precision, device)
    found, when = known.get(key), "measured before on this machine"
    if found is None:
        found, when = _measure(config, precision, device), "measured now"
        if isinstance(found, str):
            return ["off", f"torch.compile fails here: {found.rstrip('.')}"]
        with suppress(OSError):  # if it cannot be stored, the next run measures again
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, json.dumps({**read_mapping(path), key: found}, indent=1))
    images = config["data"]["batch_size"]
    speeds = f"{images / found['compiled_s']:.3g} images/s compiled, {images / found['eager_s']:.3g} eager"
    gain = found["eager_s"] / found["compiled_s"]
    costs = f"; compiling took {found['compile_s']:.0f} s" if gain >= LEAST_GAIN else ""
    return ["default" if gain >= LEAST_GAIN else "off", f"{when}: {speeds}{costs}"]


def _measure(config: Mapping[str, Any], precision: str, device: torch.device) -> dict[str, float] | str:
    """Return the measured seconds, or the reason why this net cannot be compiled on this machine."""
    training = make_training(config, precision, device, classes=1000)
    eager = training.net
    compiled = copy.deepcopy(eager, {id(parameter): parameter for parameter in eager.parameters()})
    compile_net(compiled, "default", regions=config["compile"]["regions"])
    begin = time.perf_counter()
    try:
        training.forward(compiled).backward()
    except Exception as error:  # torch's compilers, and those that they start, raise errors of many kinds
        torch.compiler.reset()
        return " ".join(str(error).split())[:200]
    compile_s = time.perf_counter() - begin
    variants = time_steps(training, [(eager, False), (compiled, False)], budget_s=BUDGET_S)
    torch.compiler.reset()  # the run compiles its own net, from the same cached files
    eager_s, compiled_s = (each.compute_s for each in variants)
    return {"eager_s": eager_s, "compiled_s": compiled_s, "compile_s": compile_s}


def _key(config: Mapping[str, Any], precision: str, device: torch.device) -> str:
    gpus = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
    data = config["data"]
    facts = {
        "machine": describe_hardware(device.type, gpus),
        "torch": torch.__version__,
        "model": {key: value for key, value in config["model"].items() if key not in ("weights", "freeze")},
        "pixels": data["image_size"],
        "images": data["batch_size"],
        "precision": precision,
        "threads": torch.get_num_threads(),
        "regions": config["compile"]["regions"],
        "optimizer": config["optim"]["_target_"] or config["optim"]["name"],
    }
    return json.dumps(facts, sort_keys=True)
