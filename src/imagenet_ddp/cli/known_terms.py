"""What other programs call the keys of this one: the table from which hints, and docs/coming-from.md, are made.

Data, and the few functions that read it. No torch; nothing of this project is imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# Program -> how its table in the docs is introduced. The order is that of the page.
PROGRAMS: dict[str, tuple[str, str]] = {
    "examples": (
        "pytorch/examples, imagenet/main.py",
        "`--batch-size` and `--workers` are for all GPUs of a machine there, and divided by their number; here both "
        "are per process. The folder is the last word there.",
    ),
    "torchvision": (
        "torchvision, references/classification/train.py",
        "Batch size and workers are per process in both.",
    ),
    "timm": ("timm, train.py", "Batch size and workers are per process in both. The folder is the last word there."),
    "torchrun": (
        "torchrun, torch.distributed, Lightning",
        "torchrun's own options work as they are, in front of `-m imagenet_ddp.train`. Behind it they mean:",
    ),
    "tutorials": (
        "Tutorials of DistributedDataParallel",
        "Options of one or two letters, and the names in their code. In some of them rank and world size count "
        "machines, in others processes: where the line does not tell, both lines are answered.",
    ),
}


@dataclass(frozen=True)
class Term:
    """here: the options to type, with {} for the value; empty: nothing is typed. note: what differs, or why nothing is
    typed. names: program -> its spellings, separated by blanks, with the dashes. flag: takes no value. values: value
    there -> options here, where they are other words; a value that is not among them has no counterpart. role: what it
    says of the world, where its meaning hangs on the whole line. missing: nothing here does this."""

    here: str
    note: str
    names: Mapping[str, str]
    flag: bool = False
    values: Mapping[str, str] | None = None
    role: str = ""
    missing: bool = False


_EXAMPLES_TV_TIMM = ("examples", "torchvision", "timm")
OPTIMISERS = {
    "sgd": "optim=sgd",
    "momentum": "optim=sgd",
    "sgd_nesterov": "optim=sgd optim.nesterov=true",
    "nesterov": "optim=sgd optim.nesterov=true",
    "adam": "optim._target_=torch.optim.Adam optim.lr=0.001",
    "adamw": "optim._target_=torch.optim.AdamW optim.lr=0.001",
    "nadam": "optim._target_=torch.optim.NAdam optim.lr=0.001",
    "radam": "optim._target_=torch.optim.RAdam optim.lr=0.001",
    "adagrad": "optim._target_=torch.optim.Adagrad",
    "adadelta": "optim._target_=torch.optim.Adadelta",
    "rmsprop": "optim._target_=torch.optim.RMSprop optim.lr=0.001",
}
_SCHEDULES = {
    "step": "schedule.name=step",
    "steplr": "schedule.name=step",
    "cosine": "schedule.name=cosine",
    "cosineannealinglr": "schedule.name=cosine",
    "linear": "schedule.name=linear",
    "exponentiallr": "schedule.name=step schedule.step_epochs=1",
}
POLICIES = {
    "ra": "data.policy=randaugment",
    "ta_wide": "data.policy=trivialaugment",
    "augmix": "data.policy=augmix",
    **{name: f"data.policy=autoaugment data.autoaugment={name}" for name in ("imagenet", "cifar10", "svhn")},
}
_NO_WEIGHTS = "pretrained weights are not available yet: training starts from random ones"


def _all(names: str) -> dict[str, str]:
    return dict.fromkeys(_EXAMPLES_TV_TIMM, names)


TERMS: tuple[Term, ...] = (
    # -- the model and what is learned
    Term(
        "model.name={}",
        "any classifier of torchvision.models",
        {"examples": "-a --arch", "torchvision": "--model", "timm": "--model"},
    ),
    Term("", _NO_WEIGHTS, {"examples": "--pretrained", "timm": "--pretrained"}, flag=True, missing=True),
    Term("", _NO_WEIGHTS, {"torchvision": "--weights", "timm": "--initial-checkpoint"}, missing=True),
    Term(
        "optim.lr={}",
        "for optim.reference_batch images per step, and scaled to yours; with optim.reference_batch=null as it is",
        {**_all("--lr"), "examples": "--lr --learning-rate", "tutorials": "--starting_lr"},
    ),
    Term("optim.momentum={}", "", _all("--momentum")),
    Term("optim.weight_decay={}", "", {**_all("--wd --weight-decay"), "timm": "--weight-decay"}),
    Term("optim.nesterov=true", "", {"tutorials": "--nesterov"}, flag=True),
    Term("", "optim.momentum and optim.weight_decay are sgd's; others take +optim.args.KEY=VALUE",
         {"torchvision": "--opt", "timm": "--opt --optimizer"},
         values=OPTIMISERS),
    Term("trainer.max_epochs={}", "", {**_all("--epochs"), "tutorials": "--num_epochs --n_epochs --max_epochs"}),
    Term("", "a resumed run knows its epoch", {**_all("--start-epoch")}),
    Term("", "", {"torchvision": "--lr-scheduler", "timm": "--sched"}, values=_SCHEDULES),
    Term("schedule.step_epochs={}", "", {"torchvision": "--lr-step-size", "timm": "--decay-epochs"}),
    Term("schedule.gamma={}", "", {"torchvision": "--lr-gamma", "timm": "--decay-rate"}),
    Term(
        "schedule.warmup_epochs={}",
        "linear from 0",
        {"torchvision": "--lr-warmup-epochs", "timm": "--warmup-epochs"},
    ),
    Term(
        "",
        "the last learning rate is a share of the first: schedule.final_fraction=0.01",
        {"torchvision": "--lr-min", "timm": "--min-lr"},
    ),
    Term("", "the warm-up is linear, from 0",
         {"torchvision": "--lr-warmup-method --lr-warmup-decay", "timm": "--warmup-lr"}),
    Term("loss.label_smoothing={}", "", {"torchvision": "--label-smoothing", "timm": "--smoothing"}),
    Term("trainer.gradient_clip_val={}", "by norm", {"torchvision": "--clip-grad-norm", "timm": "--clip-grad"}),
    Term("trainer.sync_batchnorm=true", "", {"torchvision": "--sync-bn", "timm": "--sync-bn"}, flag=True),
    Term(
        "trainer.precision=16-mixed",
        "the default, auto, is bf16-mixed where the device computes in it fast",
        {"torchvision": "--amp", "timm": "--amp"},
        flag=True,
    ),
    Term(
        "trainer.accumulate_grad_batches={}",
        "data.batch_size is that of one forward, not divided by it",
        {"timm": "--grad-accum-steps", "tutorials": "acc_grad"},
        role="accumulate",
    ),
    Term("seed={}", "weights, order and augmentation; no deterministic kernels: trainer.deterministic=true",
         {"examples": "--seed", "timm": "--seed"}),
    Term("trainer.deterministic=true", "", {"torchvision": "--use-deterministic-algorithms"}, flag=True),
    Term("", "not available yet", {
        "torchvision": "--model-ema-steps --model-ema-decay --norm-weight-decay --bias-weight-decay",
        "timm": "--model-ema-decay --drop-path"}, missing=True),
    Term("", "not available yet", {"torchvision": "--model-ema", "timm": "--model-ema"}, flag=True, missing=True),
    # -- augmentation
    Term("data.mixup_alpha={}", "one draw per batch; the pairs are drawn too",
         {"torchvision": "--mixup-alpha", "timm": "--mixup"}),
    Term("data.cutmix_alpha={}", "one draw per batch; the pairs are drawn too",
         {"torchvision": "--cutmix-alpha", "timm": "--cutmix"}),
    Term("data.mix_probability={}", "", {"timm": "--mixup-prob"}),
    Term("", "what has no pixels gets the mean colour, there black", {"torchvision": "--auto-augment"},
         values=POLICIES),
    Term("data.policy_magnitude={}", "", {"torchvision": "--ra-magnitude"}),
    Term("data.policy=augmix data.policy_magnitude={}", "", {"torchvision": "--augmix-severity"}),
    Term("", "timm has a RandAugment of its own; the nearest here is data.policy=randaugment, torchvision's",
         {"timm": "--aa"}),
    Term("data.erasing={}", "erased to the mean colour, there black", {"torchvision": "--random-erase"}),
    Term("data.erasing={}", "erased to the mean colour, as with --remode=const", {"timm": "--reprob"}),
    Term("data.color_jitter={}", "0 here, 0.4 there, where it is not given", {"timm": "--color-jitter"}),
    Term("data.grayscale={}", "", {"timm": "--grayscale-prob"}),
    Term("data.blur={}", "", {"timm": "--gaussian-blur-prob"}),
    Term("data.repeats=3", "the copies are side by side, there on different ranks",
         {"torchvision": "--ra-sampler"}, flag=True),
    Term("data.repeats={}", "the copies are side by side, there on different ranks",
         {"torchvision": "--ra-reps", "timm": "--aug-repeats"}),
    Term("", "of training and validation", {"torchvision": "--interpolation", "timm": "--interpolation"},
         values={name: f"data.interpolation={name}" for name in ("bilinear", "bicubic")}),
    # -- the images
    Term(
        "data=imagenet data.root={}",
        "data=imagefolder where the classes have other names than ImageNet's; the folder is looked into",
        {"examples": "DIR", "torchvision": "--data-path", "timm": "DIR --data-dir --data_dir",
         "tutorials": "--data --folder"},
        role="folder",
    ),
    Term("data={}", "", {"timm": "--dataset"}, role="dataset"),
    Term("", "the classes are the folders", {"timm": "--num-classes"}),
    Term(
        "data.batch_size={}",
        "images per device and step; in pytorch/examples for all GPUs of a machine",
        {**_all("-b --batch-size"), "tutorials": "--batch_size --bs"},
    ),
    Term("data.val_batch_size={}", "", {"timm": "--validation-batch-size"}),
    Term(
        "data.num_workers={}",
        "loader processes per device; in pytorch/examples for all GPUs of a machine. auto, the default, counts cores",
        {**_all("-j --workers"), "tutorials": "--num_workers"},
    ),
    Term("data.image_size={}", "also of validation", {"torchvision": "--train-crop-size", "timm": "--img-size"}),
    Term("data.val_resize={}", "", {"torchvision": "--val-resize-size"}),
    Term("", "validation is cut to data.image_size", {"torchvision": "--val-crop-size"}),
    Term("", "a large folder is walked once and remembered anyway", {"torchvision": "--cache-dataset"}, flag=True),
    Term(
        "data=shapes",
        "generated images that can be learned, there noise of ImageNet's size",
        {"examples": "--dummy"},
        flag=True,
        role="dummy",
    ),
    # -- the run
    Term("trainer.log_every_n_steps={}", "",
         {"examples": "-p --print-freq", "torchvision": "--print-freq", "timm": "--log-interval"}),
    Term(
        "resume={}",
        "a checkpoint of this program, a run folder, or auto",
        {**_all("--resume")},
        role="resume",
    ),
    Term(
        "",
        "a command of its own: python -m imagenet_ddp.evaluate checkpoint=FILE",
        {"examples": "-e --evaluate", "torchvision": "--test-only"},
        flag=True,
        role="evaluate",
    ),
    Term("hydra.run.dir={}", "the run folder itself; by default runs/NAME/TIME",
         {"torchvision": "--output-dir", "timm": "--output"}),
    Term("name={}", "runs are in runs/NAME", {"timm": "--experiment"}),
    # -- devices and machines
    Term("trainer.accelerator=cpu", "", {"examples": "--no-accel", "tutorials": "--no-cuda --cpu"}, flag=True),
    Term(
        "",
        "a GPU is taken where there is one",
        {"torchvision": "--device", "timm": "--device"},
        values={"cuda": "trainer.accelerator=auto", "gpu": "trainer.accelerator=auto",
                "cpu": "trainer.accelerator=cpu", "mps": "trainer.accelerator=mps"},
    ),
    Term("trainer.devices={}", "GPUs of each machine; without it all of them",
         {"torchrun": "--nproc_per_node --nproc-per-node --gpus --devices", "tutorials": "-g --ngpus"}, role="devices"),
    Term(
        "'trainer.devices=[{}]'",
        "that one GPU; beside --rank and --world-size of processes cluster.local_rank={}",
        {"examples": "--gpu"},
        role="gpu",
    ),
    Term("", "what one command does anyway: a process for each GPU", {"examples": "--multiprocessing-distributed"},
         flag=True, role="one_per_gpu"),
    Term("trainer.num_nodes={}", "machines",
         {"torchrun": "--nnodes --num_nodes", "torchvision": "--nodes", "tutorials": "-n --nodes"}, role="num_nodes"),
    Term("cluster.node_rank={}", "may be left out: who owns the address is node 0",
         {"torchrun": "--node_rank --node-rank", "tutorials": "-nr --nr"}, role="node_rank"),
    Term("cluster.local_rank={}", "one command per process", {"tutorials": "local_rank"}, role="local_rank"),
    Term(
        "trainer.num_nodes={}",
        "machines with --multiprocessing-distributed; else processes: cluster.world_size={}, one command for each, or "
        "torchrun",
        {"examples": "--world-size", "torchvision": "--world-size", "tutorials": "-ws world_size"},
        role="world_size",
    ),
    Term(
        "cluster.node_rank={}",
        "a machine's number with --multiprocessing-distributed; else a process's: cluster.rank={}",
        {"examples": "--rank", "tutorials": "-rn rank"},
        role="rank",
    ),
    Term(
        "cluster.address={}",
        "where several machines meet; not needed on one. env://: MASTER_ADDR is read by itself",
        {"examples": "--dist-url", "torchvision": "--dist-url", "tutorials": "-im init_method"},
        role="address",
    ),
    Term("cluster.address=tcp://{}:29500", "or MASTER_ADDR in the environment",
         {"torchrun": "--master_addr --master-addr"}, role="master_addr"),
    Term("cluster.address=tcp://HOST:{}", "or MASTER_PORT in the environment",
         {"torchrun": "--master_port --master-port"}, role="master_port"),
    Term(
        "strategy.process_group_backend={}",
        "by default nccl on GPUs, gloo on CPUs",
        {"examples": "--dist-backend", "tutorials": "-bk backend"},
        role="backend",
    ),
    Term(
        "strategy=balanced_dp strategy.first_device_batch={}",
        "images of the first GPU in one forward: gpu0_bsz // acc_grad",
        {"tutorials": "gpu0_bsz"},
        role="first_device_batch",
    ),
    Term(
        "nccl.env.NCCL_SOCKET_IFNAME={}",
        "and so on for each variable of NCCL, Gloo and libfabric, by its own name. In the environment, in front of the "
        "command, they work too",
        {"tutorials": "NCCL_SOCKET_IFNAME"},
        role="variable",
    ),
)  # fmt: skip

# Names that are not those of one program, but near: key -> another that may be meant.
NEAR = {
    "checkpoint": "resume",
    "resume": "checkpoint",
    "dir": "data.root",
    "path": "data.root",
    "exif": "data.exif_orientation",
}


def plain(name: str) -> str:
    """--dist-url, dist_url -> dist_url; -b stays -b, which is not the key b."""
    bare = name.lstrip("-")
    return name if name.startswith("-") and not name.startswith("--") else bare.replace("-", "_")


BY_NAME: dict[str, Term] = {
    plain(name): term for term in TERMS for names in term.names.values() for name in names.split() if not name.isupper()
}


def find(name: str) -> Term | None:
    """name: with its dashes (-b, --batch-size), or a key without them (batch_size)."""
    return BY_NAME.get(plain(name)) or BY_NAME.get(plain(name).lower())


def key_for(name: str) -> str | None:
    """The one key that a name stands for; None where there is none, or where it hangs on the line."""
    term = find(name)
    if term is None or term.role in ("dummy", "variable") or not term.here:
        return NEAR.get(name)
    return term.here.strip("'").split()[-1].partition("=")[0]


def options(term: Term, value: str) -> list[str] | None:
    """What to type for a term that stands for itself; None: this value has no counterpart."""
    if term.values is not None:
        found = term.values.get(value.lower())
        return None if found is None else found.split()
    return [word.strip("'") for word in term.here.replace("{}", value).split()] if term.here else []


def said(term: Term, value: str) -> str:
    """The note, for a value that was typed."""
    return term.note.replace("{}", value)
