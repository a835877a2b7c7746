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
from imagenet_ddp.cli.known_terms import BY_NAME, TERMS, Term, plain
from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema import read_if
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.config.schema.keys import Key, declared
from imagenet_ddp.config.validators import NULL, shown
from imagenet_ddp.system.text_table import as_markdown

DOCS = Path(__file__).resolve().parents[1] / "docs"
RESULTS = DOCS / "results.csv"
BENCHMARKS = DOCS / "benchmarks"  # NAME.json is the benchmark.json of scripts/benchmarks/NAME.py
_HEAD = """# Reference of all keys

To look up a key, search this page. The first column shows each key with its default, as you would type it; a recipe or
another file of `conf/` may choose another default ([options](configuration.md)). For the values of one command line:

    python -m imagenet_ddp.train --cfg job

<!-- by scripts/doc_pages.py -->
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
    head = ["| key=default | values | meaning |", "|---|---|---|"]
    return [f"## {title or 'Keys of all commands'}\n", *head, *map(_row, keys), ""]


def _row(key: Key) -> str:
    words = key.words if key.allowed is not None or key.type is not dict else "mapping"
    default = "" if key.default == MISSING else shown(key.default)
    values = re.sub(r"^an? ", "", words.removesuffix(" or null") if default == "null" else words)
    cells = (f"`{key.path}={default}`", values, key.meaning + _read_if(key))
    return f"| {' | '.join(map(_escaped, cells))} |"


def _read_if(key: Key) -> str:
    """Return the conditions under which a key is read, except those that its meaning begins with, such as "stl10: "."""
    begins = key.meaning.partition(": ")[0].replace(",", "").split()
    conditions = [
        condition.words
        for condition in read_if.CONDITIONS.get(key.path, ())
        if condition.allowed != NULL and not any(condition.allowed.accepts(word) for word in begins)
    ]
    return f" Only if {' and '.join(conditions)}." if conditions else ""


def _escaped(text: str) -> str:
    """Return text with Markdown's special characters escaped, except between backticks."""
    return text if text.startswith("`") else re.sub(r"[|<*_]", r"\\\g<0>", text)


_COMING_FROM = """# Coming from another program

To find the word for an option of another program, type it: the error shows what to type here,
and nothing is started:

    $ python -m imagenet_ddp.train -a resnet50 --lr 0.1 --print-freq 10

pytorch/examples' command for two machines, `main.py -a resnet50 --dist-url tcp://10.0.0.1:23456 --dist-backend nccl
--multiprocessing-distributed --world-size 2 --rank 0 FOLDER`, is typed here as:

    $ python -m imagenet_ddp.train experiment=pytorch_example optim.scaling=none data=imagenet data.root=FOLDER \\
        model.name=resnet50 trainer.num_nodes=2 cluster.node_rank=0 cluster.address=tcp://10.0.0.1:23456

Several values, as in `--opt-betas 0.9 0.95`, are separated by commas in VALUE.

<!-- by scripts/doc_pages.py -->
"""


# Title -> (introduction of its table, its options in the order of the page).
PROGRAMS = {
    "pytorch/examples, imagenet/main.py": (
        "There, `--batch-size` and `--workers` are totals for all GPUs of a machine; here, both are per process. The "
        "folder, `DIR`, is the last argument there.",
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
        "--data-dir --data_dir --dataset --dataset-download --num-classes --train-split --val-split --model "
        "--pretrained --pretrained-path --initial-checkpoint --model-kwargs --drop --drop-path --img-size --crop-pct "
        "--mean --std "
        "--interpolation --train-interpolation -b --batch-size -vb --validation-batch-size -j --workers --pin-mem "
        "--channels-last --grad-accum-steps --grad-checkpointing --torchcompile --device --amp --amp-dtype --sync-bn "
        "--no-ddp-bb --opt --optimizer --opt-eps --opt-betas --opt-kwargs --momentum --weight-decay --clip-grad "
        "--clip-mode --layer-decay --sched --sched-on-updates --lr --lr-base --lr-base-size --lr-base-scale "
        "--warmup-lr --min-lr --epochs --start-epoch --decay-milestones --decay-epochs --decay-rate --warmup-epochs "
        "--no-aug --scale --hflip --vflip --color-jitter --grayscale-prob --gaussian-blur-prob --aa --aug-repeats "
        "--bce-loss --bce-target-thresh --reprob --remode --mixup --cutmix --mixup-prob --smoothing --model-ema "
        "--model-ema-decay --model-ema-warmup --seed --log-interval --log-wandb --recovery-interval --checkpoint-hist "
        "--resume --output --experiment --eval-metric --tta --drop-connect --drop-block --gp --bn-momentum --bn-eps "
        "--native-amp --apex-amp --lr-noise --lr-noise-pct --lr-noise-std --lr-cycle-mul --lr-cycle-decay "
        "--lr-cycle-limit --lr-k-decay --cooldown-epochs --patience-epochs --epoch-repeats --warmup-prefix "
        "--mixup-switch-prob --mixup-mode --mixup-off-epoch --cutmix-minmax --ratio --train-crop-mode "
        "--color-jitter-prob --aug-splits --jsd-loss --split-bn --resplit --recount --class-map --in-chans "
        "--input-size --no-prefetcher --use-multi-epochs-loader --worker-seeding --fuser --torchscript --dist-bn "
        "--model-ema-force-cpu --save-images --no-resume-opt --no-pretrained --from-scratch --auto-resume "
        "--drop-rate --use-ema predict/results_file predict/results_format --distributed --dry-run --head-init-scale",
    ),
    "Ultralytics, yolo classify train": (
        "There, `batch` is the total of all GPUs; here, it is per device. `data=FOLDER` there is "
        "`experiment=own_photos data.root=FOLDER` here.",
        "epochs imgsz batch workers lr0 lrf cos_lr optimizer weight_decay warmup_epochs patience seed device "
        "pretrained half fliplr flipud auto_augment degrees shear perspective hsv_h hsv_s hsv_v mosaic copy_paste "
        "project exist_ok plots verbose save show save_period task mode "
        "cache rect single_cls multi_scale close_mosaic nbs overlap_mask profile val save_txt save_conf show_labels "
        "stream agnostic_nms fraction predict/save evaluate/split classify",
    ),
    "Ultralytics, yolo export, and torch.onnx.export": (
        "For `export` alone.",
        "export/half export/fp16 export/batch export/batch_size export/dynamic export/dynamic_axes "
        "export/dynamic_shapes export/opset export/opset_version export/simplify export/optimize "
        "export/do_constant_folding export/dynamo export/input_names export/output_names export/nms export/workspace "
        "export/keras export/file export/f --output_path",
    ),
    "Keras, fastai, Transformers": (
        "These are arguments of their functions.",
        "validation_split batch_size epochs optimizer learning_rate target_size directory early_stopping patience "
        "fine_tune base_lr dropout valid_pct bs --num_train_epochs --per_device_train_batch_size --fp16 --bf16 "
        "--early-stopping lr_max max_lr grad_clip max_grad_norm accumulate ema swa wandb steps_per_epoch "
        "scratch --auto-scale-batch-size size freeze_epochs "
        "-d --dataset-path --dataset-dir --image-dir --test-dir --save-dir --checkpoint-dir --log-dir "
        "--early-stopping-patience unfreeze metrics error_rate lr_find --lr-find item_tfms batch_tfms aug_transforms "
        "fit "
        "horizontal_flip vertical_flip rotation_range zoom_range shear_range width_shift_range height_shift_range "
        "rescale class_mode color_mode include_top subset shuffle",
    ),
    "torchrun, torch.distributed, Lightning": (
        "The arguments of Lightning's `Trainer` are the keys of `trainer`: `Trainer(max_epochs=5)` is "
        "`trainer.max_epochs=5`. Callbacks and loggers: [your own code](configuration.md#your-own-code). "
        "torchrun's own options work unchanged before `-m imagenet_ddp.train`. Options after it are translated:",
        "--nproc_per_node --nproc-per-node --gpus --devices --nnodes --num_nodes --node_rank --node-rank --master_addr "
        "--master-addr --master_port --master-port",
    ),
    "sbatch": (
        "For `submit` alone, which writes the command of sbatch. Nodes and GPUs follow from `trainer.num_nodes` and "
        "`trainer.devices`.",
        " ".join(name for term in TERMS for name in term.names if name.startswith("submit/")),
    ),
    "DistributedDataParallel tutorials": (
        "These are options of one or two letters, and names from the tutorials' code. Type an environment variable "
        "such as `NCCL_SOCKET_IFNAME=eth0` before the command, or as `nccl.env.NCCL_SOCKET_IFNAME=eth0`.",
        "--starting_lr --nesterov --num_epochs --n_epochs --max_epochs acc_grad --data --folder --batch_size --bs "
        "--num_workers --no-cuda --cpu -g --ngpus -n --nodes -nr --nr local_rank -ws world_size -rn rank -im "
        "init_method -bk backend gpu0_bsz -o",
    ),
}


def coming_from() -> str:
    """Return the text of docs/coming-from.md. Options that several programs share are in one table, the first."""
    spellings: dict[Term, dict[str, list[str]]] = {}  # term -> title of a program -> its names there
    for title, (_, names) in PROGRAMS.items():
        for name in names.split():
            spellings.setdefault(BY_NAME[plain(name)], {}).setdefault(title, []).append(f"`{name.rpartition('/')[2]}`")
    tables = {"Options of several of these programs": "", **{title: intro for title, (intro, _) in PROGRAMS.items()}}
    rows: dict[str, list[str]] = {title: [] for title in tables}
    for term, by_title in spellings.items():
        title = next(iter(by_title if len(by_title) == 1 else rows))
        there = ", ".join(dict.fromkeys(name for names in by_title.values() for name in names))
        rows[title].append(f"| {there} | {_here(term)} | {term.note.replace('{}', 'VALUE')} |")
    head = "| there | here | difference in meaning |\n|---|---|---|"
    parts = []
    for title, intro in tables.items():
        table = [head, *rows[title]] if rows[title] else ["All its options are in the first table."]
        parts.append("\n".join([f"## {title}\n", *([f"{intro}\n"] if intro else []), *table, ""]))
    return "\n".join([_COMING_FROM, *parts])


def _here(term: Term) -> str:
    here = shlex.join(term.here.replace("{}", "VALUE").split())
    if term.values:
        names: dict[str, list[str]] = {}
        for name, its_here in term.values.items():
            names.setdefault(its_here, []).append(name)
        if here:
            names.setdefault(here, []).append("others")
        return "; ".join(f"{', '.join(each)}: {f'`{words}`' if words else 'nothing'}" for words, each in names.items())
    return f"`{here}`" if here else "nothing"


_RECIPES = """# Recipes

To train as others have, name a recipe. It sets the keys of `conf/experiment/NAME.yaml`, which also names its source;
options that you type take precedence. Which one?

| you have | recipe | what to expect |
|---|---|---|
| photographs, and some minutes | [`own_photos`](#own_photos) | ImageNet weights, trained on within `budget_min` |
| photographs, and one minute | [`probe`](#probe) | the accuracy to expect, before training |
| photographs, and no haste | [`finetune`](#finetune) | ImageNet weights, 8 epochs |
| a few thousand small images, no weights | [`quick`](#quick), [`fast`](#fast) | trained from scratch, in minutes |
| ImageNet | [`torchvision_v2`](#torchvision_v2), [`rsb_a2`](#rsb_a2), [`ffcv_rn18_16`](#ffcv_rn18_16) | see there |

Figures are those of the named papers and programs on ImageNet-1k, unless a line says that
they were measured here.

<!-- by scripts/doc_pages.py -->
"""
FIRST = ("own_photos", "probe", "finetune", "quick", "fast")  # before the others, which are in alphabetical order
_MEASURED = """## Measured here

Medians over the seeds, with the range of top-1; differences and ratios to the first row; two-sided p-values of Welch's
t-test. Below the table is the command of the first row; `docs/results.csv`, written by an
[ablation](runs.md#ablations), has all of them.
"""


def _measured(results: Path) -> str:
    """Return the section with the rows of `results`, a CSV file of ablation.py, or "" if it has no rows."""
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
        "top-1 %": lambda row: f"{_number(row['top1_median'], 100, '.2f')} ({row['top1_range']})",
        "difference": lambda row: _number(row["top1_difference"], 100, "+.2f"),
        "p": lambda row: _p_value(row["top1_p"]),
        "epochs": lambda row: row["epochs"],
        "CPU seconds": lambda row: _number(row["train_cpu_s_median"], 1, ".0f"),
        "ratio": lambda row: _number(row["train_cpu_s_ratio"], 1, ".2f"),
    }
    lines = [_MEASURED, f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(_escaped(cell(row)) for cell in columns.values())} |" for row in rows]
    lines.append("")
    lines += [f"- {key.title()}: {_escaped(rows[0][key])}." for key in ("data", "hardware") if key not in differ]
    dates = sorted(row["finished_at"][:10] for row in rows)
    lines += [f"- Date: {' to '.join(dict.fromkeys([dates[0], dates[-1]]))}.", "", "```"]
    return "\n".join([*lines, rows[0]["command"], "```", ""])


def _number(text: str, factor: float, form: str) -> str:
    return f"{factor * float(text):{form}}" if text else "-"


def _p_value(text: str) -> str:
    return "<0.001" if text and float(text) < 0.001 else _number(text, 1, ".3f")


def recipes(results: Path = RESULTS) -> str:
    """Return the text of docs/recipes.md. results: CSV file of the results measured here."""
    parts = [_RECIPES]
    variants: dict[str, list[str]] = {}  # recipe -> lines of those that differ from it only in the number of epochs
    sections: dict[str, str] = {}
    for path in sorted((conf_dir() / "experiment").glob("*.yaml")):
        comments = [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        text = " ".join(comments[1:])
        what, *fields = re.split(r" (?=(?:Expect|Source|Differs|Costs|Command)[:,])", text)
        if same := re.search(r"otherwise as (\w+)\.$", what):
            told = " ".join(line.removeprefix("Expect: ") for line in fields if line.startswith(("Expect", "Costs")))
            variants.setdefault(same[1], []).append(f"- `experiment={path.stem}`: {told}")
            continue
        rows = [f"- {line}" for line in fields if not line.startswith(("Command", "Source"))]
        commands = [line.partition(": ")[2].strip() for line in fields if line.startswith("Command")]
        commands = [line.replace("python -m", "uv run python -m", 1) for line in commands]
        sections[path.stem] = "\n".join([f"## {path.stem}\n", what, "", *rows, "\n```", *commands, "```", ""])
    for name in (*FIRST, *(each for each in sections if each not in FIRST)):
        more = ["The same with more epochs:\n", *variants[name], ""] if name in variants else []
        parts.append("\n".join([sections[name], *more]))
    return "\n".join([*parts, *([measured] if (measured := _measured(results)) else [])])


def scaling_tables(results: Path) -> str:
    """Return the table of images/s over slow links, or "" if `results`, the file of scripts/scaling_table.py, does not
    exist."""
    if not results.is_file():
        return ""
    found = json.loads(results.read_text(encoding="utf-8"))
    measured = f"{found['net']}; {found['machine']}; {found['date']}; `{found['command']}`."
    head, rows = ["what"], {}
    for link in found["links"]:
        head += [f"images/s at {link['mbit_per_s']:,} Mbit/s", "of 1 node", "predicted"]
        alone = statistics.median(link["rows"][0]["images_per_s"])
        for row in link["rows"]:
            median, low, high = (of(row["images_per_s"]) for of in (statistics.median, min, max))
            what = row["name"] if row["name"] == "1 node" else " ".join(["2 nodes", *_code(row["name"])])
            predicted = "" if row["predicted"] is None else f"{row['predicted']:.1f}"
            cells = [f"{median:.1f} ({low:.1f} to {high:.1f})", f"{median / alone:.2f}", predicted]
            rows.setdefault(what, [what]).extend(cells)
    table = [head, ["---"] * len(head), *rows.values()]
    return "\n".join([measured, "", *(f"| {' | '.join(cells)} |" for cells in table), ""])


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
    "reference.md": reference,
    "coming-from.md": coming_from,
    "recipes.md": recipes,
    "performance.md": performance,
}

if __name__ == "__main__":
    for name, text in PAGES.items():
        (DOCS / name).write_text(text(), encoding="utf-8")
