"""The table of checks, in order of worth, and how each is run: a command of this project in a process of its own."""

import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from packages import ROOT

# title -> (library, model.name)
NETS = {
    "ResNet-18": ("torchvision", "resnet18"),
    "ResNet-50": ("torchvision", "resnet50"),
    "ViT-S": ("timm", "vit_small_patch16_224"),
    "MobileNetV3-L": ("torchvision", "mobilenet_v3_large"),
}
VARIANTS = {
    "bf16": ("trainer.precision=bf16-mixed",),
    "fp32": ("trainer.precision=32-true",),
    "fp16": ("trainer.precision=16-mixed",),
    "bf16, contiguous": ("trainer.precision=bf16-mixed", "model.channels_last=false"),
    "bf16, compiled": ("trainer.precision=bf16-mixed", "compile=default"),
    "bf16, reduce-overhead": ("trainer.precision=bf16-mixed", "compile=reduce-overhead"),
}
EAGER = ("bf16", "fp32", "fp16", "bf16, contiguous")
PROJECT = (
    "lightning", "torchmetrics", "torchvision", "hydra-core", "omegaconf", "pyyaml", "numpy", "pillow", "matplotlib",
    "jinja2", "psutil", "rich",
)  # fmt: skip
STRICT_STEPS = 15
STOPPED_EPOCH = 8  # batches of an epoch of the training that is stopped


class FailedError(Exception):
    """A check did not find what it must find, or a command failed."""


@dataclass(frozen=True)
class Form:
    """Sizes of the measurements. pixels: side of the images. batch: images per device. steps: of each of the turns.
    steps_from_files: more than the loader's processes load in advance. images: of training. peak: side of the
    multiplied matrices."""

    accelerator: str
    pixels: int
    batch: int
    steps: int
    turns: int
    steps_from_files: int
    images: int
    peak: int


FORMS = {"gpu": Form("gpu", 224, 256, 30, 3, 200, 2048, 8192), "cpu": Form("cpu", 32, 2, 2, 1, 2, 80, 256)}


@contextlib.contextmanager
def _sigterm_held_back() -> Iterator[None]:
    """Let a SIGTERM take effect after the block."""
    came = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
    if came:
        signal.raise_signal(signal.SIGTERM)


@dataclass
class Context:
    """What a check is run with. work: folder for its files. ends_at: when it is killed, of time.monotonic()."""

    form: Form
    out: Path
    num_devices: int
    ends_at: float = 0.0
    log: Path = field(default_factory=Path)

    @property
    def work(self) -> Path:
        return self.out / "work"

    @property
    def images(self) -> Path:
        return self.work / "images"

    def python(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run Python with these words, and return what it printed. Raises FailedError if it ends with another exit code
        or takes too long. Its children end with it."""
        with self.log.open("a", encoding="utf-8") as log:
            begin = log.tell()
            print("$ python", *words, file=log, flush=True)
            process = None
            try:
                with _sigterm_held_back():  # else a stop between the start and its end here would leave the process
                    process = subprocess.Popen(
                        [sys.executable, *words],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                found = process.wait(max(1.0, self.ends_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise FailedError(f"took too long: see {self.log}") from None
            finally:
                if process is not None and process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        said = self.log.read_bytes()[begin:].decode(errors="replace")
        if found not in codes:
            last = " ".join(said.split("\n", 1)[1].split())[-600:]
            raise FailedError(f"exit code {found}: {last}")
        return said

    def on_device(self, *words: str) -> dict[str, Any]:
        """Run a function of on_device.py."""
        return json.loads(self.python(str(Path(__file__).parent / "on_device.py"), *words).splitlines()[-1])

    def new_run(self, name: str, *more: str) -> list[str]:
        """Return the options of a run in the folder work/NAME, from which an earlier run is removed. Options in `more`
        replace others."""
        shutil.rmtree(self.work / name, ignore_errors=True)
        form = self.form
        options = [
            "data=imagefolder", f"data.root={self.images}", f"data.image_size={form.pixels}",
            f"data.batch_size={form.batch}", f"trainer.accelerator={form.accelerator}", "trainer.devices=1",
            f"hydra.run.dir={self.work / name}", "callbacks.batch_sheet=null", "callbacks.history.curves=false",
            *["cluster.num_threads=1"] * (form.accelerator == "cpu"), *more,
        ]  # fmt: skip
        return list({word.lstrip("+").partition("=")[0]: word for word in options}.values())

    def train(self, name: str, *more: str, code: int = 0) -> str:
        return self.python("-m", "imagenet_ddp.train", *self.new_run(name, *more), codes=(code,))

    def measure(self, name: str, *more: str) -> dict[str, Any]:
        """Return the images/s and the memory of training steps on batches in memory."""
        from imagenet_ddp.benchmark.trainings import MEASURED, Measured, probed

        out = self.work / f"{name}.json"
        options = [word for word in self.new_run(name, *MEASURED, *more) if not word.startswith("hydra.")]
        probe = {"ready": True, "steps": self.form.steps, "turns": self.form.turns}
        out.unlink(missing_ok=True)
        self.python("-m", "imagenet_ddp.train", *probed(options, out, "imagenet_ddp.benchmark.probe.Probe", **probe))
        found = Measured(**json.loads(out.read_text()))
        return {
            "images_per_s": statistics.median(found.rates),
            "range": [min(found.rates), max(found.rates)],
            "memory_mib": found.peak_memory_mib,
            "first_step_s": found.first_step_s,
            "precision": found.precision,
            "batch": found.batch_size,
        }

    def watched(self, name: str, watch: str, *more: str, code: int = 0, **arguments: Any) -> str:
        """Train with a callback of watch.py."""
        callback = [f"+callbacks.watch.{key}={json.dumps(value)}" for key, value in arguments.items()]
        callback += [f"+callbacks.watch._target_=watch.{watch}", "allow_targets=[watch]"]
        return self.train(name, *callback, *more, code=code)


def few_batches(context: Context, batches: int, devices: int = 1) -> list[str]:
    """Return the options of a training of so many batches of one epoch without validation, between which no figures are
    read."""
    return [
        f"data.batch_size={context.form.images // (devices * (batches + 1))}", "trainer.max_epochs=100",
        f"trainer.limit_train_batches={batches}", f"trainer.max_steps={batches}", "trainer.limit_val_batches=0",
        "trainer.log_every_n_steps=1000", "callbacks.checkpoint=null",
    ]  # fmt: skip


# ---- the checks ------------------------------------------------------------------------------------------------------


def cuda_tests(context: Context) -> dict[str, Any]:
    """Run the tests marked with `cuda`."""
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.cuda" in path.read_text("utf-8")]
    found = context.python("-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", *map(str, files))
    summary = found.strip().splitlines()[-1].strip("= ")
    if context.form.accelerator == "gpu" and "passed" not in summary:
        raise FailedError(f"no test has run: {summary}")
    return {"summary": summary}


def peak(context: Context) -> dict[str, Any]:
    return context.on_device("peak", str(context.form.peak), "2")


def flops(context: Context) -> dict[str, Any]:
    return context.on_device("flops", str(context.form.pixels))


def step(net: str, variant: str, context: Context) -> dict[str, Any]:
    library, name = NETS[net]
    size = [f"model.args={{img_size:{context.form.pixels}}}"] * (library == "timm")
    of_model = [f"model.library={library}", f"model.name={name}", *(f"+{word}" for word in size)]
    return context.measure(re.sub(r"\W+", "_", f"step {net} {variant}"), *of_model, *VARIANTS[variant])


def warnings_are_errors(context: Context) -> dict[str, Any]:
    context.watched("warnings", "Strict", *few_batches(context, STRICT_STEPS), warnings_until=10)
    return {"steps": "1 to 10"}


def waits_are_errors(context: Context) -> dict[str, Any]:
    options = few_batches(context, STRICT_STEPS)
    context.watched("waits", "Strict", *options, sync_from=3, sync_until=STRICT_STEPS - 2)
    return {"steps": f"3 to {STRICT_STEPS - 3}"}


def stop_and_resume(context: Context) -> dict[str, Any]:
    """Train whole, and stopped and resumed, and compare the weights."""
    options = [
        "trainer.max_epochs=2", "trainer.deterministic=warn", f"trainer.limit_train_batches={STOPPED_EPOCH}",
        "callbacks.progress=null",
    ]  # fmt: skip
    context.train("whole", *options)
    context.watched("stopped", "StopAt", *options, step=STOPPED_EPOCH // 2, code=128 + signal.SIGTERM)
    context.python("-m", "imagenet_ddp.train", f"resume={context.work / 'stopped'}", "allow_targets=[watch]")
    files = [str(context.work / name / "checkpoints" / "last.ckpt") for name in ("whole", "stopped")]
    found = context.on_device("same", *files)
    if found["num_different"]:
        raise FailedError(f"the weights differ: {found}")
    return found


def whole(context: Context) -> dict[str, Any]:
    """Measure training from files, its loader alone and its step alone."""
    folder = context.work / "end_to_end"
    words = [f"benchmark.repeats={min(2, context.form.turns)}", f"benchmark.num_steps={context.form.steps_from_files}"]
    options = [word for word in context.new_run("end_to_end", *words) if not word.startswith("callbacks")]
    context.python("-m", "imagenet_ddp.benchmark", "benchmark=train", *options)
    found = json.loads((folder / "benchmark.json").read_text())
    rates = {row["title"]: row["median"] for row in found["rows"]}
    return {"images_per_s": rates, "num_workers": found["num_workers"], "data_wait_frac": found["data_wait_frac"]}


def evaluate(context: Context) -> dict[str, Any]:
    begin = time.monotonic()
    options = [word for word in context.new_run("evaluation") if not word.startswith("callbacks")]
    context.python("-m", "imagenet_ddp.evaluate", f"checkpoint={_trained(context)}", *options)
    seconds = time.monotonic() - begin
    found = json.loads((context.work / "evaluation" / "evaluation.json").read_text())
    return {"seconds": seconds, "images": found["num_val_images"], "top1": found["val/top1"]}


def predict(context: Context) -> dict[str, Any]:
    begin, out = time.monotonic(), context.work / "predictions.csv"
    context.python(
        "-m", "imagenet_ddp.predict", f"checkpoint={_trained(context)}", f"images={context.images / 'val'}",
        f"trainer.accelerator={context.form.accelerator}", f"out={out}",
    )  # fmt: skip
    return {"seconds": time.monotonic() - begin, "images": len(out.read_text().splitlines()) - 1}


def _trained(context: Context) -> Path:
    folder = context.work / "whole"
    if not (folder / "summary.json").is_file():
        context.train("whole", "trainer.max_epochs=1")
    return folder / "checkpoints" / "best.ckpt"


def overflow(context: Context) -> dict[str, Any]:
    """Force an overflow in a scaled update of two batches."""
    out = context.work / "overflow.json"
    options = [
        *few_batches(context, 16),
        "trainer.max_steps=8",
        "trainer.precision=16-mixed",
        "trainer.accumulate_grad_batches=2",
    ]
    context.watched("overflow", "Overflow", *options, out=str(out), accumulate=2)
    found = json.loads(out.read_text())
    before, after = found["scale"]
    if not (found["weights_kept"] and found["weights_finite"] and found["moved_on"] and after == before / 2):
        raise FailedError(f"the update with an infinite gradient was not left out as expected: {found}")
    return found


def batch_finder(context: Context) -> dict[str, Any]:
    options = [word for word in context.new_run("finder", *few_batches(context, 2), "trainer.batch_finder=true")
               if not word.startswith("data.batch_size")]  # fmt: skip
    said = context.python("-m", "imagenet_ddp.train", *options)
    found = re.search(r"trainer.batch_finder: data.batch_size=(\d+)", said)
    if found is None:
        raise FailedError("the log does not say which batch was found")
    return {"batch": int(found[1])}


def dp(context: Context) -> dict[str, Any]:
    return context.measure("dp", "strategy=dp")


def network(context: Context) -> dict[str, Any]:
    """Let doctor time an all-reduce over all devices."""
    devices = min(context.num_devices, 8)
    options = [word for word in context.new_run("doctor", f"trainer.devices={devices}") if "callbacks" not in word]
    said = context.python("-m", "imagenet_ddp.doctor", *options, codes=(0, 1))
    lines = dict(re.findall(r"^(group|all-reduce|scaling) +(?:ok|FAIL) +(.*)$", said, re.MULTILINE))
    if len(lines) < 3:
        raise FailedError(f"doctor says nothing of group, all-reduce or scaling: {lines}")
    return lines


def ranks(context: Context) -> dict[str, Any]:
    """Train on all devices, where the first ten steps may not warn, and compare what nvidia-smi shows of each rank."""
    devices = min(context.num_devices, 8)
    options = [*few_batches(context, STRICT_STEPS, devices), f"trainer.devices={devices}"]
    context.watched("ranks_warn", "Strict", *options, warnings_until=10)
    if context.form.accelerator == "cpu":
        return {"ranks": devices, "nvidia_smi": "no GPU"}
    out = context.work / "ranks.json"
    context.watched("ranks", "GpusOfRanks", *options, out=str(out))
    found = json.loads(out.read_text())
    gpus = [[uuid for pid, uuid, _ in found["processes"] if int(pid) == rank] for rank in found["ranks"]]
    if any(len(of_rank) > 1 for of_rank in gpus):
        raise FailedError(f"a rank has memory of more than its own GPU: {found}")
    return {**found, "nvidia_smi": "each rank on its own GPU" if all(gpus) else "does not show processes here"}


def scaling(num_devices: int, context: Context) -> dict[str, Any]:
    return context.measure(f"scaling_{num_devices}", f"trainer.devices={num_devices}")


# ---- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """seconds: what it takes about on an H200. It is begun only if its slice has so much left, and is killed at the
    slice's end. needs: packages. gpus: number of GPUs, 0 if the CPU form runs it, too. devices: number of devices."""

    slice: int
    name: str
    seconds: int
    run: Callable[[Context], dict[str, Any]]
    needs: tuple[str, ...] = PROJECT
    gpus: int = 0
    devices: int = 1


def _step(slice_number: int, net: str, variant: str) -> Check:
    """Return the check of a step. The CPU form has those of ResNet-18, and one of each other net, but none in fp16, and
    compiles none, which takes minutes."""
    needs = (*PROJECT, "timm") if NETS[net][0] == "timm" else PROJECT
    only_gpu = variant not in EAGER or variant == "fp16" or (net != "ResNet-18" and variant != "bf16")
    seconds = 15 if variant in EAGER else 60
    return Check(slice_number, f"step: {net}, {variant}", seconds, partial(step, net, variant), needs, int(only_gpu))


CHECKS = [
    Check(1, "peak of the device", 20, peak, ()),
    _step(1, "ResNet-18", "bf16"),
    Check(1, "waits from step 3 on are errors", 15, waits_are_errors, gpus=1),
    Check(1, "warnings in 10 steps are errors", 15, warnings_are_errors),
    Check(1, "stop and resume", 60, stop_and_resume),
    Check(1, "tests on CUDA", 60, cuda_tests, (*PROJECT, "pytest", "pytest-timeout", "pytest-xdist", "hypothesis")),
    _step(2, "ResNet-18", "bf16, compiled"),
    Check(2, "loader, step and end to end", 80, whole),
    Check(2, "evaluate", 20, evaluate),
    Check(2, "predict", 20, predict),
    Check(2, "operations per image", 20, flops, ("torchvision",)),
    *(_step(3, "ResNet-18", variant) for variant in EAGER[1:]),
    *(_step(3, "ResNet-50", variant) for variant in (*EAGER, "bf16, compiled")),
    *(_step(4, "ViT-S", variant) for variant in (*EAGER, "bf16, compiled")),
    Check(4, "overflow in a scaled update", 15, overflow, gpus=1),
    Check(4, "batch finder", 40, batch_finder, gpus=1),
    Check(4, "dp on one device", 15, dp),
    *(_step(5, "MobileNetV3-L", variant) for variant in (*EAGER, "bf16, compiled")),
    _step(5, "ResNet-18", "bf16, reduce-overhead"),
    Check(6, "ranks on their own GPUs", 50, ranks, devices=2),
    Check(6, "network", 50, network, devices=2),
    *(Check(6, f"scaling: {count}", 20, partial(scaling, count), devices=count) for count in (1, 2, 4, 8)),
]
