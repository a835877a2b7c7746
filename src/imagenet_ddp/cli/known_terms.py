"""What other programs call the keys of this one: the table from which hints, and docs/coming-from.md, are made.

Data, and the few functions that read it. No torch; nothing of this project is imported.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """names: with their dashes. here: what to type, {} for the value; empty: nothing. note: what differs, or why
    nothing is typed. role: what it says of the whole line, which decides what it means. flag: it takes no value.
    several: it takes more than one, as argparse's nargs="+"."""

    names: tuple[str, ...]
    here: str
    note: str
    role: str
    flag: bool
    several: bool


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
TIMM_POLICIES = {  # the word before the first hyphen; m9 and n2 behind it are strength and operations
    "rand": "data.policy=randaugment",
    "augmix": "data.policy=augmix",
    "3a": "data.policy=three_augment",
    **dict.fromkeys(("original", "originalr", "v0", "v0r"), "data.policy=autoaugment data.autoaugment=imagenet"),
}
VALUES = {  # role -> value there -> what to type here; any other value as the term says
    "optimiser": OPTIMISERS,
    "schedule": SCHEDULES,
    "policy": POLICIES,
    "timm_policy": TIMM_POLICIES,
    "clip_mode": {each: f"trainer.gradient_clip_algorithm={each}" for each in ("norm", "value")},
    "half": {"float16": "trainer.precision=16-mixed", "bfloat16": "trainer.precision=bf16-mixed"},
    "interpolation": {"random": "data.interpolation=bilinear"},
    "tta": {"0": ""},
    "device": {"cpu": "trainer.accelerator=cpu", "mps": "trainer.accelerator=mps"},
    "metric": {"prec1": "callbacks.checkpoint.monitor=val/top1", "prec5": "callbacks.checkpoint.monitor=val/top5"},
    "any_backend": {"pil": "data.decoder=pillow", "tensor": "data.decoder=torchvision"},
}

# Names of pytorch/examples, torchvision's references, timm, torchrun, Lightning and tutorials | here | note | role.
# In front: ! it takes no value, * it takes several.
_TABLE = """
-a --arch --model | model.name={} | any classifier of torchvision.models
! --pretrained | model.weights=DEFAULT | the library's; a head of another number of classes is new
--weights --initial-checkpoint --pretrained-path | model.weights={} | DEFAULT, a name of the library's, or a file
* --model-kwargs | +model.args.{} |
--drop | +model.args.drop_rate={} | of timm's models; of torchvision's that have one, model.args.dropout
--in-chans | | images have three channels
--gp | +model.args.global_pool={} | of timm's models
! --channels-last | model.channels_last=true | the default
! --torchcompile --torchscript | | the model runs as it is, not compiled
! --grad-checkpointing | | activations are kept; less memory: data.batch_size, trainer.accumulate_grad_batches
--bn-momentum --bn-eps | | batch norm is the model's own
--lr --learning-rate --starting_lr | optim.lr={} | for optim.reference_batch images, and scaled; null: as there | rate
--lr-base | optim.lr={} | for optim.reference_batch images, and scaled | rate
--lr-base-size | optim.reference_batch={} | global batch that optim.lr is for
--momentum | optim.momentum={} |
--wd --weight-decay | optim.weight_decay={} | | weight_decay
! --nesterov | optim.nesterov=true |
--opt --optimizer | optim.name={} | others: optim._target_=torch.optim.CLASS; timm's sgd has Nesterov's | optimiser
* --opt-betas | optim.betas=[{}] |
--opt-eps | optim.eps={} |
* --opt-kwargs | +optim.args.{} |
--layer-decay | optim.layer_decay={} |
--epochs --num_epochs --n_epochs --max_epochs | trainer.max_epochs={} |
--start-epoch | | a resumed run knows its epoch
--lr-scheduler --sched | schedule.name={} | in each step; in each epoch: schedule.interval=epoch | schedule
--lr-step-size --decay-epochs | schedule.step_epochs={} |
--lr-gamma --decay-rate | schedule.gamma={} |
! --sched-on-updates | schedule.interval=step | the default
* --decay-milestones | schedule.milestones=[{}] |
--lr-warmup-epochs --warmup-epochs | schedule.warmup_epochs={} | linear from schedule.warmup_start=0
! --warmup-prefix | | all schedules but step and multistep begin at the end of the warm-up
--cooldown-epochs | | the schedule ends with the training
--patience-epochs | | no schedule waits for a plateau; to stop there, callbacks=[default,early_stopping]
* --lr-noise | | the learning rate has no noise
--lr-min --min-lr | schedule.final_fraction={} | as a share of the highest rate, --lr or 0.1 | share_of_rate
--lr-warmup-method | schedule.warmup={} | linear is the default here, constant there
--lr-warmup-decay | schedule.warmup_start={} |
--warmup-lr | schedule.warmup_start={} | as a share of the highest rate, --lr or 0.1 | share_of_rate
--label-smoothing --smoothing | loss.label_smoothing={} |
--clip-grad-norm --clip-grad | trainer.gradient_clip_val={} | by norm
--clip-mode | | of the whole gradient; adaptive clipping (agc) is not offered | clip_mode
! --bce-loss | loss.name=bce | the mean over the classes
--bce-target-thresh | loss.bce_threshold={} |
! --bce-sum | | the mean over the classes: for the sum a learning rate as many times as high
! --jsd-loss | | no loss compares several augmented copies of an image
! --sync-bn | trainer.sync_batchnorm=true |
! --amp | trainer.precision=16-mixed | the default, auto, is bf16-mixed where the device computes in it fast | amp
--amp-dtype | | float16 or bfloat16 | half
--grad-accum-steps acc_grad | trainer.accumulate_grad_batches={} | data.batch_size is that of one forward | accumulate
--seed | seed={} | no deterministic kernels: trainer.deterministic=true
! --use-deterministic-algorithms | trainer.deterministic=true |
--model-ema-steps | averaging.every_n_steps={} |
--model-ema-decay | averaging.decay={} | torchvision scales it by batch and epochs: docs/recipes.md, torchvision_v2
! --model-ema | averaging=ema | torchvision's is a copy during the warm-up: averaging.start_epoch
! --model-ema-warmup | | the decay is the same throughout; to begin later, averaging.start_epoch
! --model-ema-force-cpu | | the average is where the model is
--drop-path | model.drop_path={} | for torchvision's models their stochastic depth
--norm-weight-decay | optim.no_decay_on=[norm] | | no_decay
--bias-weight-decay | optim.no_decay_on=[bias] | | no_decay
--transformer-embedding-decay | optim.no_decay_on=[embedding] | | no_decay
--mixup-alpha --mixup | data.mixup_alpha={} | one draw per batch
--cutmix-alpha --cutmix | data.cutmix_alpha={} | one draw per batch
--mixup-prob | data.mix_probability={} |
--mixup-switch-prob | | with both alphas, half of the batches are cut
--mixup-mode | | one draw per batch
--mixup-off-epoch | | batches are mixed throughout
* --cutmix-minmax | | the box is drawn by data.cutmix_alpha alone
--auto-augment | | what has no pixels gets the mean colour, there black | policy
--aa | | the nearest of torchvision's, three times the number: it is of 30, timm's of 10 and varies (mstd) | timm_policy
--ra-magnitude | data.policy_magnitude={} |
--augmix-severity | data.policy=augmix data.policy_magnitude={} |
--random-erase --reprob | data.erasing={} | erased to the mean colour
--remode | | erased to the mean colour; timm's default is noise
--recount | | one rectangle
! --no-aug | data.augment=none |
* --scale | data.crop_scale=[{}] |
* --ratio | | crops are between 3:4 and 4:3
--hflip | data.flip={} |
--vflip | | no image is turned upside down
--color-jitter-prob | | every image is changed
--color-jitter | data.color_jitter={} | 0 where it is not given, in timm 0.4
--grayscale-prob | data.grayscale={} |
--gaussian-blur-prob | data.blur={} |
! --ra-sampler | data.repeats=3 | the copies are side by side, there on different ranks
--ra-reps --aug-repeats | data.repeats={} | the copies are side by side, there on different ranks
--interpolation --train-interpolation | data.interpolation={} | of training and validation | interpolation
! --use-v2 | | there is one implementation of each transform
DIR --data-path --data-dir --data_dir --data --folder | data=imagenet data.root={} | or data=imagefolder | folder
--dataset | data={} | shapes, imagefolder, imagenet or stl10
--num-classes | | the classes are the folders
--train-split | data.train_dir={} |
--val-split | data.val_dir={} |
! --dataset-download | data.download=true | stl10; the default
-b --batch-size --batch_size --bs | data.batch_size={} | per device and step; in pytorch/examples for all GPUs together
--validation-batch-size -vb | data.val_batch_size={} |
-j --workers --num_workers | data.num_workers={} | per device; in pytorch/examples for all GPUs; auto counts cores
--train-crop-size | data.train_size={} | data.image_size is that of validation
--img-size --val-crop-size | data.image_size={} | also of training, unless data.train_size is set | image_size
* --input-size | data.image_size={} | of channels, height and width the last; images are square | input_size
--crop-pct | data.val_resize={} | the short side in pixels: data.image_size / VALUE | crop_share
* --mean | data.mean=[{}] |
* --std | data.std=[{}] |
--val-resize-size | data.val_resize={} |
! --cache-dataset | | a large folder is walked once and remembered anyway
! --pin-mem | data.pin_memory=true | the default with a GPU
! --no-prefetcher | | images are always flipped and normalised on the device
! --use-multi-epochs-loader | | loader processes stay from epoch to epoch anyway
! --dummy | data=shapes | generated images that can be learned, there noise of ImageNet's size | dummy
-p --print-freq --log-interval | trainer.log_every_n_steps={} |
--resume | resume={} | a checkpoint of this program, a run folder, or auto | resume
! -e --evaluate --test-only | | a command of its own: python -m imagenet_ddp.evaluate checkpoint=FILE | evaluate
--output-dir --output | hydra.run.dir={} | the run folder itself; by default runs/NAME/TIME
--experiment | name={} | runs are in runs/NAME
--checkpoint-hist | | last.ckpt and best.ckpt; for more a ModelCheckpoint of Lightning's in callbacks
--recovery-interval | | last.ckpt is written after each epoch, and where a signal stops the run
--eval-metric | callbacks.checkpoint.monitor=val/{} | loss: with callbacks.checkpoint.mode=min | metric
--tta | data.val_mirror=true | each image and its mirror image | tta
! --log-wandb | logger=wandb | needs the extra wandb
! --no-resume-opt | | to start from the weights alone, model.weights=FILE without resume=
! --no-ddp-bb | strategy.forward_sync_buffers=false |
--dist-bn | | rank 0's statistics are sent before each step (strategy.forward_sync_buffers)
! --no-accel --no-cuda --cpu | trainer.accelerator=cpu |
--device | | a GPU is taken where there is one | device
--nproc_per_node --nproc-per-node --gpus --devices -g --ngpus | trainer.devices={} | GPUs of each machine | devices
--gpu | 'trainer.devices=[{}]' | that one GPU; with --rank and --world-size of processes cluster.local_rank={} | gpu
! --multiprocessing-distributed | | what one command does anyway: a process for each GPU | one_per_gpu
--nnodes --num_nodes -n --nodes | trainer.num_nodes={} | machines | num_nodes
--node_rank --node-rank -nr --nr | cluster.node_rank={} | may be left out | node_rank
local_rank | cluster.local_rank={} | one command per process | local_rank
--world-size | trainer.num_nodes={} | counted in processes: cluster.world_size={} | world_size
-ws | trainer.num_nodes={} | machines; beside -n processes, where it is larger | world_size
--rank | cluster.node_rank={} | of a process: cluster.rank={} | rank
-rn | cluster.node_rank={} | of a machine; as -ws | rank
--dist-url -im init_method | cluster.address={} | where several machines meet; not needed on one | address
--master_addr --master-addr | cluster.address=tcp://{}:29500 | or MASTER_ADDR in the environment | master_addr
--master_port --master-port | cluster.address=tcp://HOST:{} | or MASTER_PORT in the environment | master_port
--dist-backend -bk | strategy.process_group_backend={} | by default nccl on GPUs, gloo on CPUs | backend
backend | strategy.process_group_backend={} | in torchvision the decoder; by default auto, the fastest | any_backend
gpu0_bsz | strategy=balanced_dp strategy.first_device_batch={} | of one forward: gpu0_bsz // acc_grad | gpu0
"""


def _term(line: str) -> Term:
    names, here, note, role = ([cell.strip() for cell in line.split("|")] + [""])[:4]
    return Term(tuple(names.lstrip("!* ").split()), here, note, role, names.startswith("!"), names.startswith("*"))


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
    """Return what to type here for one value, or for several with spaces between."""
    values, here = [value], _by_value(term, value.lower())
    if term.several:
        values = value.strip("[]()").replace(",", " ").split()
        values = [",".join(values)] if "[{}]" in here else values
    found = [word.strip("'").replace("{}", each) for each in values for word in here.split()]
    if term.role == "timm_policy" and found:  # rand-m9-n3-mstd0.5-inc1
        parts = {kind: int(number) for kind, number in re.findall(r"-([mnw])(\d+)(?=-|$)", value)}
        is_rand = value.startswith("rand")  # its strength is of 10, torchvision's of 30
        magnitude = min(3 * parts.get("m", 10), 30) if is_rand else parts.get("m")
        numbers = {"policy_magnitude": magnitude, "policy_ops": parts.get("n" if is_rand else "w")}
        found += [f"data.{key}={number}" for key, number in numbers.items() if number is not None]
    return found


def _by_value(term: Term, value: str) -> str:
    known = VALUES.get(term.role, {})
    if term.role == "timm_policy":
        value = value.partition("-")[0]
    return known.get(value, term.here)
