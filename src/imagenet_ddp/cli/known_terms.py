"""What other programs call the keys of this one: the table from which hints, and docs/coming-from.md, are made.

Data, and the few functions that read it. No torch; nothing of this project is imported.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """names: with their dashes. here: what to type, {} for the value; empty: nothing. note: what differs, or why
    nothing is typed. role: what it says of the whole line, which decides what it means. flag: it takes no value."""

    names: tuple[str, ...]
    here: str
    note: str
    role: str
    flag: bool


OPTIMISERS = {
    "sgd": "optim=sgd",
    "momentum": "optim=sgd",
    "sgd_nesterov": "optim=sgd optim.nesterov=true",
    "nesterov": "optim=sgd optim.nesterov=true",
    "adam": "optim=adam",
    "adamw": "optim=adamw",
    "rmsprop": "optim=rmsprop",
    "lamb": "optim=lamb",
    "lion": "optim=lion",
}
SCHEDULES = {
    "steplr": "schedule.name=step",
    "cosineannealinglr": "schedule.name=cosine",
    "exponentiallr": "schedule.name=exponential",
    "plateau": "schedule.name=cosine",
    "tanh": "schedule.name=cosine",
}
POLICIES = {
    "ra": "data.policy=randaugment",
    "ta_wide": "data.policy=trivialaugment",
    "augmix": "data.policy=augmix",
    **{name: f"data.policy=autoaugment data.autoaugment={name}" for name in ("imagenet", "cifar10", "svhn")},
}
VALUES = {"optimiser": OPTIMISERS, "policy": POLICIES}  # role -> value there -> what to type here

# Names of pytorch/examples, torchvision's references, timm, torchrun, Lightning and tutorials | here | note | role.
# ! in front: it takes no value.
_TABLE = """
-a --arch --model | model.name={} | any classifier of torchvision.models
! --pretrained | model.weights=DEFAULT | the library's; a head of another number of classes is new
--weights --initial-checkpoint | model.weights={} | DEFAULT, a name of the library's weights, or a file
--lr --learning-rate --starting_lr | optim.lr={} | for optim.reference_batch images per step, and scaled to yours
--momentum | optim.momentum={} |
--wd --weight-decay | optim.weight_decay={} |
! --nesterov | optim.nesterov=true |
--opt --optimizer | optim.name={} | others: optim._target_=torch.optim.CLASS | optimiser
--epochs --num_epochs --n_epochs --max_epochs | trainer.max_epochs={} |
--start-epoch | | a resumed run knows its epoch
--lr-scheduler --sched | schedule.name={} | in each step; in each epoch: schedule.interval=epoch | schedule
--lr-step-size --decay-epochs | schedule.step_epochs={} |
--lr-gamma --decay-rate | schedule.gamma={} |
--lr-warmup-epochs --warmup-epochs | schedule.warmup_epochs={} | linear from schedule.warmup_start=0
--lr-min --min-lr | | the last learning rate is a share of the first: schedule.final_fraction=0.01
--lr-warmup-method | schedule.warmup={} | linear is the default here, constant there
--lr-warmup-decay | schedule.warmup_start={} |
--warmup-lr | | the first rate is a share of the highest: schedule.warmup_start=0.01
--label-smoothing --smoothing | loss.label_smoothing={} |
--clip-grad-norm --clip-grad | trainer.gradient_clip_val={} | by norm
! --sync-bn | trainer.sync_batchnorm=true |
! --amp | trainer.precision=16-mixed | the default, auto, is bf16-mixed where the device computes in it fast
--grad-accum-steps acc_grad | trainer.accumulate_grad_batches={} | data.batch_size is that of one forward | accumulate
--seed | seed={} | no deterministic kernels: trainer.deterministic=true
! --use-deterministic-algorithms | trainer.deterministic=true |
--model-ema-steps | averaging.every_n_steps={} |
--model-ema-decay | averaging.decay={} | torchvision scales it by the batch and the epochs
! --model-ema | averaging=ema |
--drop-path | model.drop_path={} | for torchvision's models their stochastic depth
--norm-weight-decay | optim.no_decay_on=[norm] | for 0; another value than that of the weights is not available
--bias-weight-decay | optim.no_decay_on=[bias] | the same; for both 'optim.no_decay_on=[norm,bias]'
--mixup-alpha --mixup | data.mixup_alpha={} | one draw per batch
--cutmix-alpha --cutmix | data.cutmix_alpha={} | one draw per batch
--mixup-prob | data.mix_probability={} |
--auto-augment | | what has no pixels gets the mean colour, there black | policy
--aa | | timm has a RandAugment of its own; the nearest here is data.policy=randaugment, torchvision's
--ra-magnitude | data.policy_magnitude={} |
--augmix-severity | data.policy=augmix data.policy_magnitude={} |
--random-erase --reprob | data.erasing={} | erased to the mean colour
--color-jitter | data.color_jitter={} | 0 where it is not given, in timm 0.4
--grayscale-prob | data.grayscale={} |
--gaussian-blur-prob | data.blur={} |
! --ra-sampler | data.repeats=3 | the copies are side by side, there on different ranks
--ra-reps --aug-repeats | data.repeats={} | the copies are side by side, there on different ranks
--interpolation | data.interpolation={} | bilinear or bicubic, of training and validation
--data-path --data-dir --data_dir --data --folder | data=imagenet data.root={} | or data=imagefolder | folder
--dataset | data={} | shapes, imagefolder, imagenet or stl10
--num-classes | | the classes are the folders
-b --batch-size --batch_size --bs | data.batch_size={} | per device and step; in pytorch/examples for all GPUs together
--validation-batch-size | data.val_batch_size={} |
-j --workers --num_workers | data.num_workers={} | per device; in pytorch/examples for all GPUs; auto counts cores
--train-crop-size --img-size | data.image_size={} | also of validation
--val-resize-size | data.val_resize={} |
--val-crop-size | | validation is cut to data.image_size
! --cache-dataset | | a large folder is walked once and remembered anyway
! --dummy | data=shapes | generated images that can be learned, there noise of ImageNet's size | dummy
-p --print-freq --log-interval | trainer.log_every_n_steps={} |
--resume | resume={} | a checkpoint of this program, a run folder, or auto | resume
! -e --evaluate --test-only | | a command of its own: python -m imagenet_ddp.evaluate checkpoint=FILE | evaluate
--output-dir --output | hydra.run.dir={} | the run folder itself; by default runs/NAME/TIME
--experiment | name={} | runs are in runs/NAME
! --no-accel --no-cuda --cpu | trainer.accelerator=cpu |
--device | | a GPU is taken where there is one; the CPU: trainer.accelerator=cpu
--nproc_per_node --nproc-per-node --gpus --devices -g --ngpus | trainer.devices={} | GPUs of each machine | devices
--gpu | 'trainer.devices=[{}]' | that one GPU; with --rank and --world-size of processes cluster.local_rank={} | gpu
! --multiprocessing-distributed | | what one command does anyway: a process for each GPU | one_per_gpu
--nnodes --num_nodes -n --nodes | trainer.num_nodes={} | machines | num_nodes
--node_rank --node-rank -nr --nr | cluster.node_rank={} | may be left out | node_rank
local_rank | cluster.local_rank={} | one command per process | local_rank
--world-size -ws | trainer.num_nodes={} | counted in processes: cluster.world_size={} | world_size
--rank -rn | cluster.node_rank={} | of a process: cluster.rank={} | rank
--dist-url -im init_method | cluster.address={} | where several machines meet; not needed on one | address
--master_addr --master-addr | cluster.address=tcp://{}:29500 | or MASTER_ADDR in the environment | master_addr
--master_port --master-port | cluster.address=tcp://HOST:{} | or MASTER_PORT in the environment | master_port
--dist-backend -bk backend | strategy.process_group_backend={} | by default nccl on GPUs, gloo on CPUs | backend
gpu0_bsz | strategy=balanced_dp strategy.first_device_batch={} | of one forward: gpu0_bsz // acc_grad | gpu0
"""


def _term(line: str) -> Term:
    names, here, note, role = ([cell.strip() for cell in line.split("|")] + [""])[:4]
    return Term(tuple(names.lstrip("! ").split()), here, note, role, names.startswith("!"))


TERMS = [_term(line) for line in _TABLE.strip().splitlines()]
# Names that are not those of one program, but near: key -> another that may be meant.
NEAR = {"checkpoint": "resume", "resume": "checkpoint", "dir": "data.root", "path": "data.root",
        "exif": "data.exif_orientation"}  # fmt: skip


def plain(name: str) -> str:
    """Return dist_url for --dist-url and dist_url; -b stays -b, which is not the key b."""
    bare = name.lstrip("-")
    return name if name.startswith("-") and not name.startswith("--") else bare.replace("-", "_")


BY_NAME = {plain(name): term for term in TERMS for name in term.names}


def find(name: str) -> Term | None:
    """Return the term of a name with its dashes (-b, --batch-size), or of a key without them (batch_size)."""
    return BY_NAME.get(plain(name)) or BY_NAME.get(plain(name).lower())


def key_for(name: str) -> str | None:
    """Return the key that a name stands for, or None."""
    term = find(name)
    return NEAR.get(name) if term is None or not term.here else term.here.strip("'").split()[-1].partition("=")[0]


def options(term: Term, value: str) -> list[str]:
    """Return what to type here for one value."""
    here = VALUES.get(term.role, {}).get(value.lower(), term.here)
    return [word.strip("'") for word in here.replace("{}", value).split()]
