"""Map the options of other programs and mistyped keys to the keys of this one.

The table of other programs is known_terms.txt, from which hints and docs/coming-from.md are made. Does not import
torch.
"""

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from imagenet_ddp.mistakes import Fix, key_of


@dataclass(frozen=True, eq=False)
class Term:
    """One line of known_terms.txt, whose first lines explain the format. values: value in the other program -> options
    to type here. names: those with COMMAND/ before them are of that command alone."""

    names: tuple[str, ...]
    here: str
    note: str
    values: dict[str, str]


def _read() -> list[Term]:
    terms: list[Term] = []
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("    "):
            there, _, here = line.partition(" :")
            terms[-1].values.update(dict.fromkeys(there.split(), here.strip()))
        elif not line.startswith("#"):
            names, here, note = ([cell.strip() for cell in line.split("|")] + [""])[:3]
            terms.append(Term(tuple(names.split()), here, note, {}))
    return terms


def plain(name: str) -> str:
    """Return a name without leading dashes and with underscores: dist_url for --dist-url. A short option such as -b
    keeps its dash, because -b and a key named b differ. COMMAND/ before it stays."""
    verb, slash, name = name.rpartition("/")
    bare = name.lstrip("-")
    is_short = name.startswith("-") and not name.startswith("--")
    return f"{verb}{slash}{name if is_short else bare.replace('-', '_')}"


TERMS = _read()
BY_NAME = {plain(name): term for term in TERMS for name in term.names}
# Likely mix-ups that do not come from another program: typed name -> the key that may be meant.
NEAR = {"checkpoint": "resume", "resume": "checkpoint", "dir": "data.root", "path": "data.root", "root": "data.root",
        "images": "data.root", "source": "images", "export": "format", "exif": "data.exif_orientation",
        "run": "checkpoint", "minutes": "budget_min", "time": "budget_min", "mem": "submit.mem_gb_per_device",
        "queue": "submit.partition", "walltime": "submit.time", "time_limit": "submit.time",
        **dict.fromkeys(("input", "img", "image", "photo", "photos", "pictures"), "images")}  # fmt: skip
# typed choice -> the one that is meant
SHORT = {**dict.fromkeys(("prepare=clean", "prepare=dedupe", "prepare=inspect", "prepare=verify"), "check"),
         "logger=tb": "tensorboard", "compile=true": "default",
         "data=csv": "table", "data=parquet": "table"}  # fmt: skip
_SURE = (
    "predict calls an image not sure whose likeliest class has less than 50 %; for another limit, write the table "
    "out=classes.csv, and filter its column probability_1"
)
# Keys and choices of Lightning and other programs, or a command and a key -> what to do instead.
INSTEAD = {
    **{f"predict {key}": _SURE for key in ("threshold", "conf", "confidence", "min_confidence", "min_probability")},
    **dict.fromkeys(("int8", "quantize"), "quantise model.onnx with onnxruntime.quantization.quantize_static"),
    "logger=comet": "run `pip install comet-ml`, and set +logger.comet._target_=lightning.pytorch.loggers.CometLogger",
    "logger=neptune": "set logger=none, because Neptune's service has ended",
    "strategy=fsdp": "set strategy=ddp, which keeps the whole net on each device",
}


def term_of(name: str, verb: str) -> Term | None:
    """Return what is known of an option of another program, such as --batch-size, for a command."""
    return BY_NAME.get(f"{verb}/{plain(name)}") or BY_NAME.get(plain(name))


def _letters(key: str) -> str:
    return re.sub(r"[\W_]", "", key.lower())


_GRES = re.compile(r"(?:gpu:)?(?:([a-z]\w*):)?(\d+)")  # GPUs as sbatch counts them: gpu:4, a100:4, gpu:a100:4


def here(term: Term, keys: Container[str], value: str = "") -> str:
    """Return what to type for an option of another program. keys: those that the command has a use for. value: in the
    other program."""
    options = term.values.get(value.lower(), term.here)
    if options == "trainer.devices={}" and "submit.gpu_type" in keys and (gpus := _GRES.fullmatch(value)):
        return f"{f'submit.gpu_type={gpus[1]} ' * bool(gpus[1])}trainer.devices={gpus[2]}"
    if "data.root={}" in options and "data.root" not in keys and "images" in keys:
        return "images={}"
    return "out={}" if options == "hydra.run.dir={}" and "out" in keys else options


def near_keys(key: str, keys: Iterable[str], value: str, more: str = "") -> tuple[Fix, ...]:
    """Return the fix of a mistyped key, if one of the keys is close to it. more: what the question is followed by."""
    close = [known for known in closest(key, keys) if known != key]
    said = f"did you mean {' or '.join(close)}?{more}"
    return tuple(Fix((f"{known}={value}",), (key,), said=said) for known in close[:1])


def same(key: str, keys: Iterable[str]) -> list[str]:
    """Return the keys of the same letters as a mistyped one, or of the same name in another group."""
    keys, last = _by_group(key, keys), key.lower().rpartition(".")[2]
    letters = [known for known in keys if _letters(known) == _letters(key)]  # dataroot, data-root
    return letters[:1] or [known for known in keys if known.rpartition(".")[2] == last][:2]


def _by_group(key: str, keys: Iterable[str]) -> list[str]:
    group = key.lower().partition(".")[0]
    return sorted(keys, key=lambda known: known.partition(".")[0] != group)  # those of the same group first


def closest(key: str, keys: Iterable[str]) -> list[str]:
    """Return the known keys closest to a mistyped one, best first; empty if none is close. keys: those that the command
    has a use for."""
    keys = _by_group(key, keys)
    if found := same(key, keys):
        return found
    parent, _, last = key.lower().rpartition(".")
    term = BY_NAME.get(last)
    near = [NEAR.get(last, ""), key_of(here(term, keys).split()[-1]) if term and term.here else ""]
    near += [{"data.root": "images", "images": "data.root"}.get(each, "") for each in near]
    if found := [each for each in near if each in keys]:
        return found[:1]
    # a key of another group must be nearer
    for place, least in ([known for known in keys if known.rpartition(".")[0] == parent], 0.7), (keys, 0.84):
        ends = {known.rpartition(".")[2]: known for known in reversed(place)}
        if near := get_close_matches(last, ends, 1, least):
            return [ends[near[0]]]
    return []
