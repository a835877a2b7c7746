"""Write the generated pages of docs/: python scripts/doc_pages.py."""

import csv
import json
import re
import shlex
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from imagenet_ddp.benchmark.results import tables
from imagenet_ddp.cli import help
from imagenet_ddp.cli.known_terms import BY_NAME, Term, plain
from imagenet_ddp.config import read_if
from imagenet_ddp.config.conf_dir import conf_dir
from imagenet_ddp.config.keys import Key, declared
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.config.validators import shown
from imagenet_ddp.report import __main__ as report_help
from imagenet_ddp.system.text_table import as_markdown

DOCS = Path(__file__).resolve().parents[1] / "docs"
RESULTS = DOCS / "results.csv"
BENCHMARKS = DOCS / "benchmarks"  # the files written by scripts/benchmark_docs.py
_HEAD = """# Reference of all keys

Type each key as `key=value`. `python -m imagenet_ddp.train --cfg job` shows the values for one command line, and
[configuration.md](configuration.md) explains how they are composed. The files in `conf/` override some of the defaults
listed here. For example, each recipe sets `data.image_size`.

This page is generated from `src/imagenet_ddp/config/` by `python scripts/doc_pages.py`.
"""


def reference() -> str:
    """Return the text of docs/reference.md."""
    lines = [_HEAD]
    train = {path: key for path, key in declared("train").items() if not key.is_group}
    for group in dict.fromkeys(path.rpartition(".")[0] for path in train):
        lines += _table(group, [key for path, key in train.items() if path.rpartition(".")[0] == group])
    for command in COMMANDS:
        own = [key for path, key in declared(command).items() if not key.is_group and _is_own(key, train.get(path))]
        if own:
            lines += _table(f"python -m imagenet_ddp.{command}", own)
    return "\n".join(lines)


def _is_own(key: Key, of_train: Key | None) -> bool:
    return of_train is None or (key.default, key.meaning) != (of_train.default, of_train.meaning)


def _table(title: str, keys: list[Key]) -> list[str]:
    head = ["| key | value | default | meaning | read if |", "|---|---|---|---|---|"]
    return [f"## {title or 'Keys of all commands'}\n", *head, *map(_row, keys), ""]


def _row(key: Key) -> str:
    words = key.words if key.allowed is not None or key.type is not dict else "a mapping"
    cells = (f"`{key.path}`", words, _default(key), key.meaning, read_if.words(key.path))
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    """Return text with Markdown's special characters escaped, except between backticks."""
    return text if text.startswith("`") else re.sub(r"[|<*_]", r"\\\g<0>", text)


def _default(key: Key) -> str:
    return "must be set" if key.default == MISSING else f"`{shown(key.default)}`"


_COMING_FROM = """# Coming from another program

If you type an option of another program, the error shows the equivalent option here, and nothing is started:

    $ python -m imagenet_ddp.train -a resnet50 --lr 0.1 --print-freq 10

Names of other programs typed as keys (`print_freq=10`, `trainer.gpus=2`) are answered in the same way. If an option of
another program accepts several values, as in `--opt-betas 0.9 0.95`, separate them by commas in VALUE.

pytorch/examples' command for two machines, `main.py -a resnet50 --dist-url tcp://10.0.0.1:23456 --dist-backend nccl
--multiprocessing-distributed --world-size 2 --rank 0 FOLDER`, is typed here as:

    $ python -m imagenet_ddp.train data=imagenet data.root=FOLDER model.name=resnet50 trainer.num_nodes=2 \\
        cluster.node_rank=0 cluster.address=tcp://10.0.0.1:23456

In the tables, "there" is the other program and "here" is this one.

This page is generated from `src/imagenet_ddp/cli/known_terms.txt` by `python scripts/doc_pages.py`.
"""


# Title -> (introduction of its table, its options in the order of the page).
PROGRAMS = {
    "pytorch/examples, imagenet/main.py": (
        "In pytorch/examples, `--batch-size` and `--workers` are totals for all GPUs of a machine, and are divided by "
        "the number of GPUs. Here, both values are per process. The folder, `DIR`, is the last argument there.",
        "DIR -a --arch --pretrained --lr --learning-rate --momentum --wd --weight-decay --epochs --start-epoch --seed "
        "-b --batch-size -j --workers --dummy -p --print-freq --resume -e --evaluate --no-accel --gpu "
        "--multiprocessing-distributed --world-size --rank --dist-url --dist-backend",
    ),
    "torchvision, references/classification/train.py": (
        "Batch size and workers are per process in both programs.",
        "--model --weights --lr --momentum --wd --weight-decay --opt --epochs --start-epoch --lr-scheduler "
        "--lr-step-size --lr-gamma --lr-warmup-epochs --lr-min --lr-warmup-method --lr-warmup-decay --label-smoothing "
        "--clip-grad-norm --sync-bn --amp --use-deterministic-algorithms --mixup-alpha --cutmix-alpha --auto-augment "
        "--random-erase --model-ema-steps --model-ema-decay --norm-weight-decay --bias-weight-decay "
        "--transformer-embedding-decay --model-ema --ra-sampler --ra-reps --ra-magnitude --augmix-severity "
        "--interpolation --backend --use-v2 "
        "--data-path -b --batch-size -j --workers --train-crop-size --val-resize-size --val-crop-size "
        "--cache-dataset --print-freq --resume --test-only --output-dir --device --nodes --world-size --dist-url",
    ),
    "timm, train.py": (
        "Batch size and workers are per process in both programs. The folder is the last argument of timm's command. "
        "Here, type `data=imagenet data.root=FOLDER`.",
        "--data-dir --data_dir --dataset --dataset-download --train-split --val-split --num-classes --model "
        "--pretrained --pretrained-path --initial-checkpoint --model-kwargs --drop --drop-path --in-chans --gp "
        "--img-size --input-size --crop-pct --mean --std --interpolation --train-interpolation -b --batch-size -vb "
        "--validation-batch-size -j --workers --pin-mem --no-prefetcher --use-multi-epochs-loader --channels-last "
        "--grad-accum-steps --grad-checkpointing --torchcompile --torchscript --device --amp --amp-dtype --sync-bn "
        "--dist-bn --bn-momentum --bn-eps --no-ddp-bb --opt --optimizer --opt-eps --opt-betas --opt-kwargs "
        "--momentum --weight-decay --clip-grad --clip-mode --layer-decay --sched --sched-on-updates --lr --lr-base "
        "--lr-base-size --lr-base-scale --lr-noise --warmup-lr --min-lr --epochs --start-epoch --decay-milestones "
        "--decay-epochs --decay-rate --warmup-epochs --warmup-prefix --cooldown-epochs --patience-epochs --no-aug "
        "--scale --ratio --hflip --vflip --color-jitter --color-jitter-prob --grayscale-prob --gaussian-blur-prob "
        "--aa --aug-repeats --jsd-loss --bce-loss --bce-sum --bce-target-thresh --reprob --remode --recount --mixup "
        "--cutmix --cutmix-minmax --mixup-prob --mixup-switch-prob --mixup-mode --mixup-off-epoch --smoothing "
        "--model-ema --model-ema-decay --model-ema-warmup --model-ema-force-cpu --seed --log-interval --log-wandb "
        "--recovery-interval --checkpoint-hist --resume --no-resume-opt --output --experiment --eval-metric --tta",
    ),
    "torchrun, torch.distributed, Lightning": (
        "torchrun's own options work unchanged before `-m imagenet_ddp.train`. Options after it are translated:",
        "--nproc_per_node --nproc-per-node --gpus --devices --nnodes --num_nodes --node_rank --node-rank --master_addr "
        "--master-addr --master_port --master-port",
    ),
    "DistributedDataParallel tutorials": (
        "These are options of one or two letters, and names from the tutorials' code. Type an environment variable "
        "such as `NCCL_SOCKET_IFNAME=eth0` before the command, or as `nccl.env.NCCL_SOCKET_IFNAME=eth0`.",
        "--starting_lr --nesterov --num_epochs --n_epochs --max_epochs acc_grad --data --folder --batch_size --bs "
        "--num_workers --no-cuda --cpu -g --ngpus -n --nodes -nr --nr local_rank -ws world_size -rn rank -im "
        "init_method -bk backend gpu0_bsz",
    ),
}


def coming_from() -> str:
    """Return the text of docs/coming-from.md."""
    parts = [_COMING_FROM]
    for title, (introduction, names) in PROGRAMS.items():
        spellings: dict[Term, list[str]] = {}
        for name in names.split():
            spellings.setdefault(BY_NAME[plain(name)], []).append(f"`{name}`")
        rows = [
            f"| {', '.join(there)} | {_here(term)} | {term.note.replace('{}', 'VALUE')} |"
            for term, there in spellings.items()
        ]
        head = "| there | here | difference in meaning |\n|---|---|---|"
        parts.append("\n".join([f"## {title}\n\n{introduction}\n", head, *rows, ""]))
    return "\n".join(parts)


def _here(term: Term) -> str:
    here = shlex.join(term.here.replace("{}", "VALUE").split())
    if not term.flag and term.values:
        others = [f"others: `{here}`"] if here else []
        return "; ".join(
            [*(f"{name}: `{here}`" if here else f"{name}: nothing" for name, here in term.values.items()), *others]
        )
    return f"`{here}`" if here else "nothing"


_RECIPES = """# Recipes

`experiment=NAME` sets the keys of the file `conf/experiment/NAME.yaml`. Options that you type take precedence. Figures
are those of the named papers and programs on ImageNet-1k, unless a line says that they were measured here.

`python scripts/doc_pages.py` generates this page from the comments at the top of these files. If `docs/results.csv`
exists, its measurements are added. Write the table over seeds of a folder of runs, such as an
[ablation](runs.md#ablations), to this file:

    python scripts/recipe_table.py runs/ablation_NAME against=NAME > docs/results.csv
    python scripts/doc_pages.py
"""
_MEASURED = """## Measured here

The table shows medians over the seeds, and the range of top-1. Differences and ratios are relative to the first row. p
is the two-sided p-value of Welch's t-test between the seeds, not corrected for the number of rows.
The commands are in the order of the rows.
"""


def _measured(results: Path) -> str:
    """Return the section with the rows of `results`, a CSV file of recipe_table.py, or "" if it has no rows."""
    if not results.is_file():
        return ""
    with results.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        return ""
    differ = [key for key in ("data", "hardware") if len({row[key] for row in rows}) > 1]
    columns = {
        "recipe": lambda row: row["recipe"],
        **{key: lambda row, key=key: row[key] for key in differ},
        "seeds": lambda row: row["num_seeds"],
        "top-1 %": lambda row: f"{_number(row['top1_median'], 100, '.2f')} ({row['top1_range']})",
        "difference": lambda row: _number(row["top1_difference"], 100, "+.2f"),
        "p": lambda row: _p_value(row["top1_p"]),
        "top-5 %": lambda row: _number(row["top5_median"], 100, ".2f"),
        "epochs": lambda row: row["epochs"],
        "seconds": lambda row: _number(row["train_s_median"], 1, ".0f"),
        "CPU seconds": lambda row: _number(row["train_cpu_s_median"], 1, ".0f"),
        "ratio": lambda row: _number(row["train_cpu_s_ratio"], 1, ".2f"),
        "p of ratio": lambda row: _p_value(row["train_cpu_s_p"]),
    }
    lines = [_MEASURED, f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(_escaped(cell(row)) for cell in columns.values())} |" for row in rows]
    lines.append("")
    lines += [f"- {key.title()}: {_escaped(rows[0][key])}." for key in ("data", "hardware") if key not in differ]
    dates = sorted(row["finished_at"][:10] for row in rows)
    lines += [f"- Date: {' to '.join(dict.fromkeys([dates[0], dates[-1]]))}.", "", "```"]
    return "\n".join([*lines, *(row["command"] for row in rows), "```", ""])


def _number(text: str, factor: float, form: str) -> str:
    return f"{factor * float(text):{form}}" if text else "-"


def _p_value(text: str) -> str:
    return "<0.001" if text and float(text) < 0.001 else _number(text, 1, ".3f")


def recipes(results: Path = RESULTS) -> str:
    """Return the text of docs/recipes.md. results: CSV file of the results measured here."""
    parts = [_RECIPES, *([measured] if (measured := _measured(results)) else [])]
    for path in sorted((conf_dir() / "experiment").glob("*.yaml")):
        comments = [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        text = " ".join(comments[1:])
        what, *fields = re.split(r" (?=(?:Expect|Source|Differs|Costs|Command)[:,])", text)
        rows = [f"- {line}" for line in fields if not line.startswith("Command")]
        commands = [line.partition(": ")[2].strip() for line in fields if line.startswith("Command")]
        parts.append("\n".join([f"## {path.stem}\n", what, "", *rows, "\n```", *commands, "```", ""]))
    return "\n".join(parts)


_COMMANDS = """# Commands

This page contains the output of `python -m imagenet_ddp.COMMAND --help`, or `imagenet-ddp COMMAND --help`, for every
command.

It is generated by `python scripts/doc_pages.py`.
"""


def commands() -> str:
    """Return the text of docs/commands.md."""
    texts = {**{verb: help.text(verb) for verb in COMMANDS}, "report": report_help.HELP}
    return "\n".join([_COMMANDS, *(f"## {verb}\n\n```text\n{text.rstrip()}\n```\n" for verb, text in texts.items())])


def index() -> str:
    """Return the text of docs/index.md: the README, with links for a site whose root is docs/."""
    return (DOCS.parent / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")


def scaling_tables(results: Path) -> str:
    """Return the tables of images/s over slow links, or "" if `results`, the file of scripts/scaling_table.py, does not
    exist."""
    if not results.is_file():
        return ""
    found = json.loads(results.read_text(encoding="utf-8"))
    lines = [f"{found['net']}; {found['machine']}; {found['date']}; `{found['command']}`.", ""]
    for link in found["links"]:
        alone = statistics.median(link["rows"][0]["images_per_s"])
        sent = f"the all-reduce of {link['gradient_bytes'] / 1e6:.1f} MB takes {link['all_reduce_s']:.2f} s"
        lines += [
            f"{link['mbit_per_s']:,} Mbit/s: a step takes {link['step_s']:.2f} s, {link['backward_s']:.2f} s of it the "
            f"backward pass; {sent}.",
            "",
            "| what | images/s, median (range) | of 1 node | predicted |",
            "|---|---|---|---|",
        ]
        for row in link["rows"]:
            median, low, high = (of(row["images_per_s"]) for of in (statistics.median, min, max))
            what = row["name"] if row["name"] == "1 node" else " ".join(["2 nodes", *_code(row["name"])])
            predicted = "" if row["predicted"] is None else f"{row['predicted']:.1f}"
            lines.append(f"| {what} | {median:.1f} ({low:.1f} to {high:.1f}) | {median / alone:.2f} | {predicted} |")
        lines.append("")
    return "\n".join(lines)


def _code(options: str) -> list[str]:
    return [f"`{options}`"] if options else []


def _benchmark(content: Mapping[str, Any]) -> str:
    """Return tables, notes, machine, versions and command of a stored benchmark.json."""
    machine, versions = content["machine"], content["versions"]
    parts = ["\n".join(as_markdown(each)) for each in tables(content)]
    if notes := [*content["notes"], content["conclusion"]]:
        parts.append("\n".join(f"- {note}" for note in notes))
    parts.append(
        f"Medians of {content['repeats']}; {machine['num_cores']} cores of {machine['cpu']}, "
        f"torch {versions['torch']}, lightning {versions['lightning']}, {content['finished_at'][:10]}: "
        f"`{content['command']}`"
    )
    return "\n\n".join(parts)


def performance() -> str:
    """Return the text of docs/performance.md, with each table taken from the stored file of its name."""
    page = (DOCS / "performance.md").read_text(encoding="utf-8")

    def table(match: re.Match[str]) -> str:
        stored = BENCHMARKS / f"{match[2]}.json"
        if not stored.is_file():  # not measured yet
            return f"{match[1]}\n{match[3]}"
        content = json.loads(stored.read_text(encoding="utf-8"))
        return f"{match[1]}\n{_benchmark(content)}\n{match[3]}"

    marked = r"(<!-- begin: benchmark (\S+) -->)\n.*?(<!-- end: benchmark -->)"
    page = re.sub(marked, table, page, flags=re.DOTALL)
    begin, end = "<!-- from benchmarks/scaling.json -->\n", "<!-- end of scaling.json -->"
    if begin not in page:
        return page
    before, _, rest = page.partition(begin)
    return f"{before}{begin}{scaling_tables(BENCHMARKS / 'scaling.json')}{end}{rest.partition(end)[2]}"


PAGES = {
    "index.md": index,
    "commands.md": commands,
    "reference.md": reference,
    "coming-from.md": coming_from,
    "recipes.md": recipes,
    "performance.md": performance,
}

if __name__ == "__main__":
    for name, text in PAGES.items():
        (DOCS / name).write_text(text(), encoding="utf-8")
