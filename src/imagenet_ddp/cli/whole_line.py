"""Interpret another program's options whose meaning depends on other words of the line. Does not import torch.

For example, --world-size counts machines with --multiprocessing-distributed and processes without it, and --lr-min is
translated into a share of --lr.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hydra.core.override_parser.types import Quote, QuotedString

from imagenet_ddp.config.keys import key_of
from imagenet_ddp.data.sources.detect import options_for

_LR, _IMAGE_SIZE = 0.1, 224  # used if none is typed: the defaults of the other programs and of this one


@dataclass
class Word:
    """One word of the line as typed, with its equivalent in this program."""

    typed: str
    options: list[str] = field(default_factory=list)  # to type here
    note: str = ""  # difference in meaning, or the reason why there are no options
    role: str = ""  # of the term, see known_terms.txt
    value: str = ""


def fill_in(word: Word, verb: str, said: Mapping[str, str], typed: Mapping[str, str], others: bool) -> None:
    """Set those options of a word that depend on other words. A word that world_options reads gets only a note.

    said: role -> value of all words of the other program. typed: key -> value of this program's options. others:
    whether the line has further words of the other program.
    """
    value = word.value.strip("[]() ")
    if word.role == "folder":
        found = options_for(word.value, "imagenet" if others else "imagefolder")
        found = [f"data.root={word.value}"] if "data" in typed else found
        word.options = [] if "dummy" in said else [quoted(option) for option in found]
        word.note = "not read with --dummy" if "dummy" in said else ""
    elif word.role == "resume":
        word.options = [f"{'resume' if verb == 'train' else 'checkpoint'}={quoted_value(word.value) or 'auto'}"]
    elif word.role == "devices" and value in ("all", "-1", "auto", "gpu", ""):
        word.options, word.note = [], "this is the default"
    elif word.role == "devices":
        listed = f"[{value}]" if "," in value or "[" in word.value else value
        word.options = ["trainer.accelerator=cpu"] if value == "0" else [f"trainer.devices={listed}"]
    elif word.role in ("backend", "any_backend") and value == "nccl":
        word.options, word.note = [], "the default on GPUs"
    elif word.role == "gpu0" and value.isdecimal():  # theirs counts all batches of an update, ours one batch
        word.options[1] = f"strategy.first_device_batch={int(value) // (_number(said.get('accumulate')) or 1)}"
    elif word.role == "gpu" and {"world_size", "rank"} & said.keys():
        word.options = []
    elif word.role in ("share_of_rate", "crop_share", "input_size", "no_decay"):
        _set_number(word, said, typed)
    elif word.role == "amp" and "half" in said:
        word.options, word.note = [], "see --amp-dtype"
    elif word.role in ("num_nodes", "node_rank", "local_rank", "world_size", "rank", "address", "master_addr",
                       "master_port"):  # fmt: skip
        word.note, word.options = meaning(word), []


def _set_number(word: Word, said: Mapping[str, str], typed: Mapping[str, str]) -> None:
    """Set the option of a word whose number depends on other words."""
    number, key = _float(word.value.split()[-1] if word.value else None), key_of(word.options[0])
    if number is None:
        return
    if word.role == "share_of_rate":
        rate = _float(said.get("rate") or typed.get("optim.lr")) or _LR
        word.options = [f"{key}={number / rate:g}"]
    elif word.role == "crop_share":
        shape = said.get("input_size", "").split()[-1:]  # channels, height, width
        size = _float(said.get("image_size") or "".join(shape) or typed.get("data.image_size")) or _IMAGE_SIZE
        word.options = [f"{key}={int(size / (number or 1))}"]
    elif word.role == "input_size":
        word.options = [f"{key}={number:g}"]
    elif number and number == _float(said.get("weight_decay") or typed.get("optim.weight_decay")):
        word.options, word.note = [], "the same as for the weights, which is the default"
    elif number:
        word.options, word.note = [], "not available: the decay must be 0 or that of the weights"


def merged(options: Iterable[str]) -> list[str]:
    """Return the options with all lists of optim.no_decay_on merged into the first."""
    key, result, kinds = "optim.no_decay_on=", [], []
    for option in options:
        if option.startswith(key):
            kinds.append(option.removeprefix(key).strip("[]"))
        if not option.startswith(key) or len(kinds) == 1:
            result.append(option)
    return [f"{key}[{','.join(kinds)}]" if option.startswith(key) else option for option in result]


def world_options(said: Mapping[str, str], typed: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """Return the options with which machines, or processes started one by one, find each other; [] for one machine.

    Without --multiprocessing-distributed, a world size counts processes, as in torch.distributed.
    """
    size, nodes = _number(said.get("world_size")), _number(said.get("num_nodes") or typed.get("trainer.num_nodes"))
    rank, devices = said.get("node_rank") or said.get("rank"), _number(said.get("devices")) or 1
    if {"rank", "local_rank"} <= said.keys() and not (size or nodes):  # main.py RANK LOCAL_RANK
        known = _number(environ.get("WORLD_SIZE")) or "WORLD_SIZE"
        options = [f"cluster.world_size={known}", f"cluster.rank={rank}", f"cluster.local_rank={said['local_rank']}"]
    elif size > max(nodes, 1) and size % devices == 0 and "one_per_gpu" not in said:
        local = str(_number(rank) % devices) if devices > 1 and rank else "LOCAL_RANK"
        local = said.get("local_rank") or said.get("gpu") or local
        options = [f"cluster.world_size={size}", f"cluster.rank={rank or 'RANK'}", f"cluster.local_rank={local}"]
    elif (nodes or size) > 1:
        options = [f"trainer.num_nodes={nodes or size}", *([f"cluster.node_rank={rank}"] if rank else [])]
    else:
        return []
    host, port, url = said.get("master_addr", "HOST"), said.get("master_port", "29500"), said.get("address", "env:")
    if not url.startswith("env"):
        return [*options, f"cluster.address={url}"]
    is_known = "cluster.address" in typed or (environ.get("MASTER_ADDR") and host == "HOST")
    return options if is_known else [*options, f"cluster.address=tcp://{host}:{port}"]


def _float(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def quoted_value(value: str) -> str:
    """Return value, quoted if Hydra's grammar would not read it as text otherwise."""
    is_plain = re.fullmatch(r"[\w./:%+@-]*", value, re.ASCII)
    return value if is_plain else QuotedString(value, Quote.double).with_quotes()


def quoted(option: str) -> str:
    """Return key=value with the quotes that Hydra's grammar requires around the value."""
    key, _, value = option.partition("=")
    return f"{key}={quoted_value(value)}"


def meaning(word: Word) -> str:
    said = shlex.join(word.options)
    return f"{said} ({word.note})" if said and word.note else said or word.note or "as it is"
