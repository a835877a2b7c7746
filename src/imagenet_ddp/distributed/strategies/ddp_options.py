"""Check DistributedDataParallel's options before torch is imported: values, combinations that do not work, and
arguments that are no keys here."""

from collections.abc import Mapping
from typing import Any

from imagenet_ddp.config.keys import validate_group
from imagenet_ddp.config.validators import integer

# Argument of DistributedDataParallel, or what Lightning's DDPStrategy calls it -> why strategy.<it> is no key, and what
# to type. A test holds it against the signatures.
DDP_ANSWERS: dict[str, str] = {
    "module": "the net is model.name. Hint: leave it out.",
    "device_ids": "Lightning gives each process one device. Hint: trainer.devices=2, or 'trainer.devices=[0,3]'.",
    "output_device": "outputs stay on the process's own device. Hint: leave it out; trainer.devices chooses devices.",
    "dim": "batches are split before DistributedDataParallel sees them, always along the first dimension. "
    "Hint: leave it out.",
    "broadcast_buffers": "torch renamed it, and False does not mean the same: broadcast_buffers=False also left the "
    "buffers out of the synchronisation at the start, forward_sync_buffers=False does not. "
    "Hint: strategy.forward_sync_buffers=false.",
    "process_group": "one group holds all processes. Hint: strategy.process_group_backend and strategy.timeout_s "
    "set how it is made.",
    "check_reduction": "it no longer does anything in torch. Hint: leave it out; "
    "strategy.find_unused_parameters=true where parameters get no gradient.",
    "mixed_precision": "computing in 16 bits is the Trainer's. Hint: trainer.precision=bf16-mixed; "
    "strategy.comm_hook=bf16 for the gradients on the way.",
    "device_mesh": "it is for nets cut into pieces; here each process holds the whole net. Hint: leave it out.",
    "delay_all_reduce_named_params": "it takes parameters, not names. Hint: leave it out; strategy.bucket_cap_mb sets "
    "when gradients travel.",
    "param_to_hook_all_reduce": "it takes a parameter, not a name. Hint: leave it out; strategy.bucket_cap_mb sets "
    "when gradients travel.",
    "skip_all_reduce_unused_params": "it hangs where the ranks do not use the same parameters. "
    "Hint: strategy.find_unused_parameters=true, or strategy.static_graph=true.",
    "bucket_cap_mb_list": "torch 2.11 does not have it. Hint: strategy.bucket_cap_mb=25, one size for all buckets.",
    "batched_grad_copy": "torch 2.11 does not have it. Hint: strategy.gradient_as_bucket_view=true, the default, "
    "leaves out the copy back.",
    "lazy_bucket_allocation": "torch 2.11 does not have it. Hint: strategy.gradient_as_bucket_view=true, the default, "
    "saves the second copy of the gradients.",
    "ddp_comm_hook": "hooks have names here. Hint: strategy.comm_hook=fp16, bf16 or powersgd.",
    "ddp_comm_state": "it belongs to the hook. Hint: strategy.comm_hook=powersgd with strategy.powersgd_rank and "
    "strategy.powersgd_start_step.",
    "ddp_comm_wrapper": "hooks cannot be put around each other here. Hint: strategy.comm_hook=fp16, bf16 or powersgd.",
    "model_averaging_period": "every step is synchronised. Hint: trainer.accumulate_grad_batches=4 communicates in "
    "every fourth batch only.",
    "timeout": "Hint: strategy.timeout_s, in seconds.",
    "start_method": "the workers are torchrun's. Hint: leave it out; trainer.devices=2 starts two.",
}


def answer(key: str, where: str = "") -> str | None:
    """Explain an argument of DistributedDataParallel that is no key (strategy. may stand before it); None for others.

    where: " (in experiment/mine.yaml)".
    """
    parent, _, name = key.rpartition(".")
    if parent not in ("", "strategy") or name not in DDP_ANSWERS:
        return None
    text = DDP_ANSWERS[name]
    return f"{key} is not a key{where}{'. ' if text.startswith('Hint') else ': '}{text}"


def validate(config: Mapping[str, Any]) -> list[str]:
    """Return the errors in strategy.*."""
    strategy, trainer = config["strategy"], config["trainer"]
    found = validate_group("strategy", strategy)
    if strategy["name"] in ("dp", "balanced_dp"):
        return found  # batch_split.py says which of these keys have no effect
    if strategy["static_graph"] and integer(2).accepts(trainer.get("accumulate_grad_batches")):
        found.append(
            f"strategy.static_graph=true does not work with trainer.accumulate_grad_batches="
            f"{trainer['accumulate_grad_batches']}: torch's DistributedDataParallel stops in the first step "
            "(expect_autograd_hooks_ INTERNAL ASSERT FAILED, pytorch issue 143580). "
            "Hint: strategy.static_graph=false, with strategy.find_unused_parameters=true where it is needed."
        )
    if strategy["comm_hook"] == "powersgd" and trainer.get("precision") in ("16-mixed", "16", 16):
        found.append(
            "strategy.comm_hook=powersgd does not work with trainer.precision=16-mixed: where the scaled loss "
            "overflows, that step is skipped, but the hook stores the overflow and adds it to every later gradient. "
            "Hint: trainer.precision=bf16-mixed, or strategy.comm_hook=fp16."
        )
    if strategy["comm_hook"] in ("fp16", "bf16") and strategy["process_group_backend"] == "mpi":
        found.append(
            f"strategy.comm_hook={strategy['comm_hook']} does not work with strategy.process_group_backend=mpi: "
            "torch's MPI backend has no 16-bit floats. Hint: strategy.comm_hook=null or powersgd."
        )
    return found
