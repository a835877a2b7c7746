"""What each command answers to --help: what it does, what to type first, what can be chosen, and where the rest is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

from imagenet_ddp.config.schema import conf_dir
from imagenet_ddp.system import console

WIDTH = 80
_COLUMN = 25  # where the meanings begin


@dataclass(frozen=True)
class Guide:
    """One command's. examples: options -> what they do, or "". keys: key -> meaning."""

    what: str
    examples: Mapping[str, str]
    groups: Sequence[str]
    keys: Mapping[str, str]


_FOLDER = {
    "data.root": "folder of the data set: train/<class>/, val/<class>/",
    "data.val_fraction": "share kept for validation, where there is no val/",
}
_MACHINE = {
    "trainer.devices": "how many GPUs (or CPU processes); '[0,3]': those two",
    "trainer.num_nodes": "machines; the same command is typed on each",
    "cluster.address": "where they meet, as tcp://HOST:PORT",
}
_LEARNING = {
    "data.batch_size": "images per device and step",
    "model.name": "any classifier of torchvision, such as resnet50",
    "optim.lr": "learning rate, for optim.reference_batch images a step",
    "schedule.name": "of the learning rate: step, cosine, linear, constant",
    "trainer.max_epochs": "times each training image is seen",
    "trainer.precision": "auto, 32-true, bf16-mixed, 16-mixed",
}
_CHOICES = ("data", "loader", "recipe", "experiment", "strategy", "cluster", "nccl", "callbacks", "logger")

GUIDES: dict[str, Guide] = {
    "train": Guide(
        "Trains an image classifier on one device, on all of a machine's, or on several machines. "
        "Without options: a ResNet-18, on small images that it draws itself.",
        {
            "": "generated images, a minute or two",
            "data=imagefolder data.root=FOLDER": "your own",
            "data=imagenet data.root=FOLDER trainer.devices=8": "",
        },
        _CHOICES,
        {
            **_FOLDER,
            **_LEARNING,
            "data.image_size": "pixels, height and width of what the model sees",
            "data.num_workers": "processes that load images, per device; or auto",
            "data.on_bad_image": "an image that cannot be read: raise (an error), or skip",
            **_MACHINE,
            "trainer.log_every_n_steps": "training steps between two lines of figures",
            "val_log_every_n_steps": "validation steps between two lines of figures",
            "seed": "of weights, order of images, augmentation",
            "resume": "go on with a run: its folder, a checkpoint, or auto",
            "hydra.run.dir": "the run folder, instead of runs/<name>/<time>",
            "-m KEY=A,B": "a run for each value, one after the other",
        },
    ),
    "evaluate": Guide(
        "Top-1, top-5 and loss of a checkpoint, each validation image counted once. "
        "The checkpoint knows its data, its classes and how images are cut.",
        {
            "checkpoint=runs/NAME/TIME/checkpoints/best.ckpt": "",
            "checkpoint=best.ckpt data.root=FOLDER": "moved",
            "checkpoint=best.ckpt data=imagefolder data.root=FOLDER": "",
        },
        ("data", "strategy", "cluster", "nccl"),
        {
            "checkpoint": "file that train has written",
            "data.root": "folder of the data set, if not that of the training",
            "data.val_batch_size": "images per device and step",
            "data.num_workers": "processes that load images, per device; or auto",
            **_MACHINE,
            "trainer.precision": "auto, 32-true, bf16-mixed, 16-mixed",
            "hydra.run.dir": "folder of the result",
        },
    ),
    "predict": Guide(
        "The most likely classes of each image, as lines of CSV or JSON. "
        "A file that cannot be read has a line that says why.",
        {
            "checkpoint=runs/NAME/TIME/checkpoints/best.ckpt images=PHOTO.jpg": "",
            "checkpoint=best.ckpt images=FOLDER out=classes.csv": "",
            "checkpoint=best.ckpt 'images=FOLDER/*.png' format=jsonl": "",
        },
        (),
        {
            "checkpoint": "file that train has written",
            "images": "a file, a folder (searched to the bottom), or a pattern",
            "out": "file to write, instead of the screen",
            "format": "csv or jsonl",
            "top_k": "classes of each image, most likely first",
            "data.batch_size": "images at a time",
            "trainer.accelerator": "auto, cpu, gpu",
        },
    ),
    "doctor": Guide(
        "Everything about a training that can be checked without training: options, data, "
        "disk, memory, GPUs, network, speed. It takes train's own options.",
        {
            "": "this machine",
            "data=imagefolder data.root=FOLDER trainer.devices=4": "",
            "trainer.num_nodes=2 cluster.address=tcp://HOST:29500": "on each node",
        },
        _CHOICES,
        {
            "format": "text, or json for scripts",
            **_FOLDER,
            **_LEARNING,
            "data.num_workers": "processes that load images, per device; or auto",
            **_MACHINE,
            "cluster.timeout_s": "longest wait for the other machines, in seconds",
        },
    ),
    "prepare": Guide(
        "What is done once with the images: archives unpacked and sorted (imagenet, stl10), "
        "images packed into few large files (pack), every image looked at (check).",
        {
            "prepare=check data=imagefolder data.root=FOLDER": "",
            "prepare=pack data=imagefolder data.root=FOLDER out=PACKED": "",
            "prepare=imagenet archive_dir=ARCHIVES out=FOLDER": "",
        },
        ("prepare", "data"),
        {
            **_FOLDER,
            "archive_dir": "imagenet, stl10: folder that holds the archives",
            "out": "folder that is written",
            "prepare.num_workers": "processes, or auto",
            "prepare.verify": "imagenet: false: the archives' MD5 is not compared",
            "prepare.short_side": "pack: pixels of the short side; 0: as it is",
            "prepare.quality": "pack: of the JPEGs, 1 to 100",
            "prepare.form": "pack: jpeg, or raw (pixels)",
            "prepare.timeout_s": "check: longest time for one image, in seconds",
        },
    ),
    "benchmark": Guide(
        "How many images per second reach the model on this machine, from files and "
        "packed, and whether that is what training waits for. It takes train's options.",
        {
            "": "generated images",
            "data=imagefolder data.root=FOLDER": "",
            "data=imagefolder data.root=FOLDER 'benchmark.num_workers=[0,4,8]'": "",
        },
        ("benchmark", "data", "loader"),
        {
            "data.root": _FOLDER["data.root"],
            "data.batch_size": "images per device and step",
            "data.image_size": "pixels, height and width of what the model sees",
            "model.name": "any classifier of torchvision, such as resnet50",
            "benchmark.num_images": "training images that are measured with",
            "benchmark.repeats": "of each measurement; medians are told",
            "benchmark.num_workers": "loader processes to compare, as '[0,4,8]'",
            "benchmark.short_side": "pixels of the short side of what it packs",
            "benchmark.quality": "of the JPEGs that it packs, 1 to 100",
            "benchmark.model": "false: the model's own speed is not measured",
        },
    ),
    "tune": Guide(
        "Searches for good options: each trial is a run of train with options that the "
        "trials before suggest, judged by its highest val top-1. It takes train's options.",
        {
            "tune.num_trials=20": "in the space search=sgd",
            "data=stl10 tune.num_trials=40 tune.num_at_once=4": "",
            "search=none 'search.optim.lr={low:0.01,high:1,log:true}'": "",
        },
        ("search", *_CHOICES),
        {
            "tune.num_trials": "of the whole study",
            "tune.num_at_once": "trials at the same time, each with its share of GPUs",
            "tune.resume": "folder of a study to go on with, or auto",
            "tune.sampler": "tpe learns from the trials before; or random",
            "tune.pruner": "which trials end early: median, hyperband, none",
            "tune.timeout_s": "no trial begins after so many seconds",
            "search.KEY": "{low:A,high:B} or [A,B]: what is searched",
            **_FOLDER,
            "trainer.max_epochs": "epochs of each trial",
        },
    ),
    "submit": Guide(
        "The sbatch command for a training with these options: checked as train checks them, and shown or run.",
        {
            "data=imagenet data.root=FOLDER trainer.num_nodes=2 trainer.devices=8": "",
            "submit.now=true submit.partition=gpu trainer.devices=4": "",
            "trainer.devices=1 -m optim.lr=0.05,0.1,0.2": "",
        },
        _CHOICES,
        {
            "submit.now": "true: run the command",
            "submit.partition": "of the cluster; also account, qos, constraint",
            "submit.time": "limit of one turn; the run goes on in the next",
            "submit.cpus_per_device": "CPUs for each process; mem_gb_per_device: memory",
            "submit.gpu_type": "as the cluster calls it",
            "submit.extra": "further options of sbatch",
            **_FOLDER,
            "trainer.devices": "GPUs of each node",
            "trainer.num_nodes": "nodes",
        },
    ),
}


def text(verb: str) -> str:
    guide = GUIDES[verb]
    lines = [*console.wrap_text(guide.what, WIDTH, indent=""), ""]
    for options, what in guide.examples.items():
        lines += _example(verb, options, what)
    if guide.groups:
        lines += ["", "Choices, typed as data=stl10; the first one is the default:"]
        lines += [line for group in guide.groups for line in _row(group, _choices(group))]
    lines += ["", "The most used keys, typed as KEY=VALUE:"]
    lines += [line for key, meaning in guide.keys.items() for line in _row(key, meaning)]
    lines += ["", "And all others:"]
    lines += _row("--cfg job", "every key, with its value for the options typed")
    lines += _row("--hydra-help", "what else may begin with -")
    lines += _row("docs/configuration.md", "what the keys are for, and your own code")
    lines += _row("docs/coming-from.md", "what other programs' options are here")
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
