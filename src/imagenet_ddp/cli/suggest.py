"""Suggest the key that the user probably meant by a mistyped one. Does not import torch."""

from collections.abc import Iterable
from difflib import get_close_matches

from imagenet_ddp.cli import known_terms

# Groups, keys and choices of earlier versions -> what to do instead.
REMOVED = {
    "against": "run `python scripts/recipe_table.py DIR against=RECIPE`",
    "benchmark=start": "run scripts/benchmarks/start.py of the repository",
    "benchmark=strategies": "run scripts/benchmarks/strategies.py of the repository",
    "by=fold": "run `python -m imagenet_ddp.report RUN` for the run of each fold",
    "by=recipe": "run `python scripts/recipe_table.py DIR`",
    "compile=auto": "set compile=default; `python -m imagenet_ddp.benchmark benchmark=step` shows whether it pays",
    "int8": "quantise model.onnx with onnxruntime.quantization.quantize_static",
    "loader": "leave it out: images are decoded by data.num_workers processes with data.decoder",
    "prepare.memory_mib": "leave it out: an image of more than 178,956,970 pixels is refused in any case",
    "strategy.powersgd_rank": "set strategy.comm_hook=bf16, which halves the bytes that are sent",
    "strategy.powersgd_start_step": "set strategy.comm_hook=bf16, which halves the bytes that are sent",
    "strategy.local_sgd_start_step": "set trainer.accumulate_grad_batches, which sends gradients less often",
    "strategy.local_sgd_every": "set trainer.accumulate_grad_batches, which sends gradients less often",
    "watch": "run `tail -f RUN/logs/rank0.log`",
}


def closest(key: str, keys: Iterable[str]) -> list[str]:
    """Return the known keys closest to a mistyped one, best first; empty if none is close."""
    key = key.lower()
    last = key.rpartition(".")[2]
    keys = list(keys)
    if same := [known for known in keys if known.rpartition(".")[2] == last]:
        return sorted(same, key=lambda known: known.partition(".")[0] != key.partition(".")[0])[:2]
    if (known := known_terms.key_for(last)) in keys:
        return [known]
    if near := get_close_matches(key, [known for known in keys if "." in known], 1, 0.75):
        return near
    ends = {known.rpartition(".")[2]: known for known in reversed(keys)}
    return [ends[end] for end in get_close_matches(last, ends, 1, 0.7)]


def removed(option: str) -> str | None:
    """Return what replaces a key, group or choice (GROUP=NAME) of an earlier version; None if it never existed."""
    group = option.partition(".")[0]
    return REMOVED.get(option) or REMOVED.get(group if "=" not in option else "")


def unknown(key: str, keys: Iterable[str], where: str = "") -> str:
    """Return the message for a key that is not declared. where: text to add after the key, such as " (in x.yaml)"."""
    if instead := removed(key):
        return f"{key} was removed{where}. Hint: {instead}."
    close = [known for known in closest(key, keys) if known != key]
    hint = f"did you mean {' or '.join(close)}?" if close else "`--cfg job` lists all keys."
    if key.startswith("strategy."):
        arguments = "docs/strategies.md lists DistributedDataParallel's arguments."
        hint = f"{hint} {arguments}" if close else arguments
    return f"{key} is not a known key{where}. Hint: {hint}"
