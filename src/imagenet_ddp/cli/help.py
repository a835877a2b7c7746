"""Write the answer to --help: what a command does, examples, choices, the most used keys, and where the others are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

from imagenet_ddp.config.conf_dir import conf_dir
from imagenet_ddp.config.keys import declared
from imagenet_ddp.system import console

WIDTH = 80
_COLUMN = 25  # where the meanings begin


@dataclass(frozen=True)
class Guide:
    """Help of one command. examples: options -> what they do, or "". keys: blank-separated, as declared in config/."""

    summary: str
    details: str
    examples: Mapping[str, str]
    groups: Sequence[str]
    keys: str


_CHOICES = (
    "data", "loader", "recipe", "experiment", "model", "optim", "averaging", "strategy", "cluster", "nccl",
    "callbacks", "logger",
)  # fmt: skip
_FOLDER = "data.root data.val_fraction"
_MACHINE = "trainer.devices trainer.num_nodes cluster.address"
_MODEL = "data.batch_size model.name model.weights optim.lr trainer.max_epochs trainer.precision"
# What may be typed besides the declared keys.
_OTHER = {
    "hydra.run.dir": "The run folder, instead of runs/<name>/<time>.",
    "-m KEY=A,B": "One run for each value, one after the other.",
    "search.KEY": "{low:A,high:B} or [A,B]: the range of a key.",
}

GUIDES: dict[str, Guide] = {
    "train": Guide(
        "Train an image classifier.",
        "On one device, on all devices of a machine, or on several machines. "
        "Without options: a ResNet-18 on small generated images.",
        {
            "": "generated images, a minute or two",
            "data=imagefolder data.root=FOLDER": "your own",
            "data=imagenet data.root=FOLDER trainer.devices=8": "",
        },
        _CHOICES,
        f"{_FOLDER} {_MODEL} data.image_size data.num_workers {_MACHINE} seed resume show hydra.run.dir -m_KEY=A,B",
    ),
    "evaluate": Guide(
        "Compute top-1, top-5 and loss of a checkpoint.",
        "Each validation image is counted once. The checkpoint contains its data, its classes and its transforms.",
        {
            "checkpoint=runs/NAME/TIME/checkpoints/best.ckpt": "",
            "checkpoint=best.ckpt data.root=FOLDER": "moved",
            "checkpoint=best.ckpt data=imagefolder data.root=FOLDER": "",
        },
        ("data", "strategy", "cluster", "nccl"),
        f"checkpoint data.root data.val_batch_size data.num_workers {_MACHINE} trainer.precision hydra.run.dir",
    ),
    "predict": Guide(
        "Predict the most likely classes of images.",
        "One line of CSV or JSON per image; for a file that cannot be read it gives the reason.",
        {
            "checkpoint=runs/NAME/TIME/checkpoints/best.ckpt images=PHOTO.jpg": "",
            "checkpoint=best.ckpt images=FOLDER out=classes.csv": "",
            "checkpoint=best.ckpt 'images=FOLDER/*.png' format=jsonl": "",
        },
        (),
        "checkpoint images out format top_k data.batch_size trainer.accelerator",
    ),
    "demo": Guide(
        "Open a page on which a picture is dropped and its classes are seen.",
        "Only this machine can open it, unless host= says otherwise. Needs the extra demo.",
        {"checkpoint=runs/NAME/TIME/checkpoints/best.ckpt": "", "checkpoint=model.onnx port=8000": ""},
        (),
        "checkpoint host port trainer.accelerator",
    ),
    "export": Guide(
        "Write a model file for other programs.",
        "ONNX, torch.export or safetensors, compared with the checkpoint on images, with a model card.",
        {
            "checkpoint=runs/NAME/TIME/checkpoints/best.ckpt": "ONNX",
            "checkpoint=best.ckpt format=torch_export out=model.pt2": "",
            "checkpoint=best.ckpt int8=true data.root=FOLDER": "",
        },
        (),
        "checkpoint format out preprocessing batch_size int8 images num_images max_difference card license overwrite "
        "data.root",
    ),
    "doctor": Guide(
        "Check everything about a training without training.",
        "Options, data, disk, memory, GPUs, network and speed. Takes train's options.",
        {
            "": "this machine",
            "data=imagefolder data.root=FOLDER trainer.devices=4": "",
            "trainer.num_nodes=2 cluster.address=tcp://HOST:29500": "on each node",
        },
        _CHOICES,
        f"format {_FOLDER} {_MODEL} data.num_workers {_MACHINE} cluster.timeout_s",
    ),
    "prepare": Guide(
        "Prepare images once, before training.",
        "Unpack and sort archives (imagenet), pack images into few large files (pack), or check every image (check).",
        {
            "prepare=check data=imagefolder data.root=FOLDER": "",
            "prepare=pack data=imagefolder data.root=FOLDER out=PACKED": "",
            "prepare=imagenet archive_dir=ARCHIVES out=FOLDER": "",
        },
        ("prepare", "data"),
        f"{_FOLDER} archive_dir out prepare.num_workers prepare.short_side prepare.quality prepare.form "
        "prepare.timeout_s",
    ),
    "benchmark": Guide(
        "Measure how many images per second reach the model.",
        "From files and packed, and whether training waits for them. Takes train's options.",
        {
            "": "generated images",
            "data=imagefolder data.root=FOLDER": "",
            "data=imagefolder data.root=FOLDER 'benchmark.num_workers=[0,4,8]'": "",
        },
        ("benchmark", "data", "loader"),
        "data.root data.batch_size data.image_size model.name benchmark.num_images benchmark.repeats "
        "benchmark.num_workers benchmark.short_side benchmark.quality benchmark.model",
    ),
    "tune": Guide(
        "Search for good options.",
        "Each trial is a run of train with options suggested by earlier trials, judged by its highest val top-1. "
        "Takes train's options.",
        {
            "tune.num_trials=20": "in the space search=sgd",
            "data=stl10 tune.num_trials=40 tune.num_at_once=4": "",
            "search=none 'search.optim.lr={low:0.01,high:1,log:true}'": "",
        },
        ("search", *_CHOICES),
        "tune.num_trials tune.num_at_once tune.resume tune.sampler tune.pruner tune.timeout_s search.KEY "
        f"{_FOLDER} trainer.max_epochs",
    ),
    "submit": Guide(
        "Show or run the sbatch command of a training.",
        "The options are checked as train checks them.",
        {
            "data=imagenet data.root=FOLDER trainer.num_nodes=2 trainer.devices=8": "",
            "submit.now=true submit.partition=gpu trainer.devices=4": "",
            "trainer.devices=1 -m optim.lr=0.05,0.1,0.2": "",
        },
        _CHOICES,
        "submit.now submit.partition submit.time submit.cpus_per_device submit.mem_gb_per_device submit.gpu_type "
        f"submit.extra {_FOLDER} trainer.devices trainer.num_nodes",
    ),
}


def commands() -> str:
    """Return the list of commands, one line each."""
    rows = {command: guide.summary for command, guide in GUIDES.items()} | {"report": "Compare finished runs."}
    lines = ["Usage: python -m imagenet_ddp COMMAND [KEY=VALUE ...]", ""]
    lines += [line for command, summary in rows.items() for line in _row(command, summary)]
    return "\n".join([*lines, "", "python -m imagenet_ddp COMMAND --help shows its options."])


def text(verb: str) -> str:
    """Return the answer to --help."""
    guide = GUIDES[verb]
    lines = [*console.wrap_text(f"{guide.summary} {guide.details}", WIDTH, indent=""), ""]
    for options, what in guide.examples.items():
        lines += _example(verb, options, what)
    if guide.groups:
        lines += ["", "Choices, typed as data=stl10; the first one is the default:"]
        lines += [line for group in guide.groups for line in _row(group, _choices(group))]
    lines += ["", "The most used keys, typed as KEY=VALUE:"]
    for key in (name.replace("_KEY", " KEY") for name in guide.keys.split()):
        lines += _row(key, _OTHER[key] if key in _OTHER else declared(verb)[key].meaning)
    lines += ["", "All others:"]
    lines += _row("--cfg job", "every key, with its value for these options")
    lines += _row("--hydra-help", "options that begin with -")
    lines += _row("docs/reference.md", "every key: allowed values, default, meaning")
    lines += _row("docs/configuration.md", "how to combine them, and your own code")
    lines += _row("docs/coming-from.md", "the options of other programs")
    return "\n".join(lines)


def choices(group: str) -> list[str]:
    """The files of conf/GROUP, the default first."""
    names = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    default = _defaults().get(group)
    return sorted(names, key=lambda name: name != default)


def _choices(group: str) -> str:
    names = choices(group)
    if group == "recipe":
        return "that of the data, or another one of the same names"
    if group == "prepare":
        return f"{', '.join(names)}: one must be typed"
    if group == "experiment":
        return f"(none), quick, finetune and {len(names) - 2} more: docs/recipes.md"
    return ", ".join(names if _defaults().get(group) else ["(none)", *names])


def _defaults() -> dict[str, str | None]:
    """Group -> what is chosen where nothing is typed; None: nothing."""
    found: dict[str, str | None] = {}
    for name in ("base", "tune", "benchmark"):
        entries = yaml.safe_load((conf_dir() / f"{name}.yaml").read_text(encoding="utf-8"))["defaults"]
        for entry in entries:
            found |= entry if isinstance(entry, dict) else {}
    return found


def _example(verb: str, options: str, what: str) -> list[str]:
    line = f"  python -m imagenet_ddp.{verb} {options}".rstrip()
    if what:
        line += f"  # {what}"
    if len(line) <= WIDTH:
        return [line]
    first, *rest = console.wrap_text(line, WIDTH - 2, indent="      ")
    return [f"{first} \\", *rest]


def _row(name: str, meaning: str) -> list[str]:
    if len(name) > _COLUMN - 3:
        return [f"  {name}", *_row("", meaning)]
    return console.wrap_text(meaning, WIDTH, f"  {name:{_COLUMN - 2}}", " " * _COLUMN)
