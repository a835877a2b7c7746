"""A line in the words of another program, and the whole line that is answered. That each of them can be typed is
tested in test_hints.py."""

import re
import shlex
from pathlib import Path

import pytest

from imagenet_ddp.cli.translate import Translation, translate


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for split in ("train", "val"):
        (tmp_path / "pets" / split / "cat").mkdir(parents=True)
        (tmp_path / "DIR" / split / "n01440764").mkdir(parents=True)
    (tmp_path / "x.ckpt").touch()


def answered(line: str, verb: str = "train", **environ: str) -> Translation:
    found = translate(verb, shlex.split(line), environ)
    assert found is not None
    return found


URL = "--dist-url tcp://10.0.0.1:23456"
MP = f"{URL} --dist-backend nccl --multiprocessing-distributed"
MEET = "cluster.address=tcp://10.0.0.1:23456"


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (
            "-a resnet18 --lr 0.1 --dist-url tcp://127.0.0.1:23456 --dist-backend nccl --multiprocessing-distributed "
            "--world-size 1 --rank 0 DIR",
            "train data=imagenet data.root=DIR model.name=resnet18 optim.lr=0.1",
        ),
        (f"{MP} --rank 0 --world-size 1", "train"),
        (f"{MP} --world-size 2 --rank 1", f"train trainer.num_nodes=2 cluster.node_rank=1 {MEET}"),
        (
            f"--world-size 8 --rank 3 --gpu 3 {URL}",
            f"train cluster.world_size=8 cluster.rank=3 cluster.local_rank=3 {MEET}",
        ),
        (f"-n 2 -g 4 -ws 8 -rn 5 -im {URL.split()[1]}",
         f"train trainer.devices=4 cluster.world_size=8 cluster.rank=5 cluster.local_rank=1 {MEET}"),
        (f"-n 2 -g 4 -ws 2 -rn 1 -im {URL.split()[1]}",
         f"train trainer.devices=4 trainer.num_nodes=2 cluster.node_rank=1 {MEET}"),
        ("-n 2 -g 8 -nr 1", "train trainer.devices=8 trainer.num_nodes=2 cluster.node_rank=1 "
                             "cluster.address=tcp://HOST:29500"),
        ("-n 1 -g 8 -nr 0", "train trainer.devices=8"),
        ("--nnodes=2 --node_rank=0 --nproc_per_node=8 --master_addr=10.0.0.1 --master_port=23456",
         f"train trainer.devices=8 trainer.num_nodes=2 cluster.node_rank=0 {MEET}"),
        ("-e --resume x.ckpt DIR", "evaluate data=imagenet data.root=DIR checkpoint=x.ckpt"),
        ("-a resnet18 --pretrained --evaluate DIR",
         "evaluate data=imagenet data.root=DIR model.name=resnet18 checkpoint=FILE"),
        ("model.weights=DEFAULT --test-only pets", "evaluate data=imagefolder data.root=pets checkpoint=FILE"),
        ("-e pets", "evaluate data=imagefolder data.root=pets checkpoint=FILE"),
        ("gpu0_bsz=8 acc_grad=2", "train strategy=balanced_dp strategy.first_device_batch=4 "
                                   "trainer.accumulate_grad_batches=2"),
        ("--gpus 0,3", "train 'trainer.devices=[0,3]'"),
        ("--gpu 3", "train 'trainer.devices=[3]'"),
        ("--dummy pets", "train data=shapes"),
        ("gone", "train data=imagefolder data.root=gone"),
        ("-a resnet50 gone", "train data=imagenet data.root=gone model.name=resnet50"),
        ("data=imagefolder --data-path pets", "train data=imagefolder data.root=pets"),
        ("NCCL_NET=IB GLOO_SOCKET_IFNAME=ens3", "train nccl.env.NCCL_NET=IB nccl.env.GLOO_SOCKET_IFNAME=ens3"),
        ("-m --lr 0.1 seed=1,2", "train -m seed=1,2 optim.lr=0.1"),
        ("--config-dir mine --epochs=3", "train --config-dir mine trainer.max_epochs=3"),
        ("-b256 -j4 -p 10", "train data.batch_size=256 data.num_workers=4 trainer.log_every_n_steps=10"),
        ("--data-path 'a b'", "train data=imagefolder 'data.root=\"a b\"'"),
        ("--pretrained --drop-path 0.2 --model-ema seed=1",
         "train seed=1 model.weights=DEFAULT model.drop_path=0.2 averaging=ema"),
        ("--no-pretrained amp=False --model-ema=no channels_last=0",
         "train model.weights=null trainer.precision=32-true averaging=none model.channels_last=false"),
        ("--no-no-ddp-bb --bce-loss=false --jsd-loss=false", "train strategy.forward_sync_buffers=true"),
        ("--mixup 0.2 --reprob 0.25", "train data.mixup_alpha=0.2 data.erasing=0.25"),
        ("--auto-augment ta_wide --ra-sampler", "train data.policy=trivialaugment data.repeats=3"),
        ("--lr-scheduler cosineannealinglr --norm-weight-decay 0 --bias-weight-decay 0.0 --wd 2e-5",
         "train schedule.name=cosine 'optim.no_decay_on=[norm,bias]' optim.weight_decay=2e-5"),
        ("--wd 1e-4 --norm-weight-decay 0.0001 --transformer-embedding-decay 1e-3", "train optim.weight_decay=1e-4"),
        ("--opt-betas 0.9 0.95 --opt-kwargs amsgrad=true foreach=false pets --sched tanh",
         "train data=imagefolder data.root=pets 'optim.betas=[0.9,0.95]' +optim.args.amsgrad=true "
         "+optim.args.foreach=false schedule.name=cosine"),
        ("mean=[0.5,0.5,0.5] --std=0.2,0.2,0.2", "train 'data.mean=[0.5,0.5,0.5]' 'data.std=[0.2,0.2,0.2]'"),
        ("--lr 0.5 --lr-min 0.005 --warmup-lr 0", "train optim.lr=0.5 schedule.final_fraction=0.01 "
                                                   "schedule.warmup_start=0"),
        ("--min-lr 0.001", "train schedule.final_fraction=0.01"),
        ("--img-size 160 --crop-pct 0.95", "train data.image_size=160 data.val_resize=168"),
        ("--crop-pct 0.875 data.image_size=112", "train data.image_size=112 data.val_resize=128"),
        ("--input-size 3 128 128 --interpolation random",
         "train data.image_size=128 data.interpolation=bilinear"),
        ("--train-crop-size 176 --val-crop-size 224", "train data.train_size=176 data.image_size=224"),
        ("--amp --amp-dtype bfloat16", "train trainer.precision=bf16-mixed"),
        ("--aa rand-m7-n3-mstd0.5-inc1", "train data.policy=rand-m7-n3-mstd0.5-inc1"),
        ("--aa rand --reprob 0.2 --remode pixel",
         "train data.policy=rand-m10 data.erasing=0.2 data.erasing_fill=noise"),
        ("--aa augmix-m5-w4-d2", "train data.policy=augmix data.policy_magnitude=5 data.policy_ops=4"),
        ("--input-size 3 160 160 --crop-pct 0.9", "train data.image_size=160 data.val_resize=177"),
        ("--backend tensor --device cpu", "train data.decoder=torchvision trainer.accelerator=cpu"),
        (f"-bk nccl -im {URL.split()[1]} -rn 1 -ws 2", f"train trainer.num_nodes=2 cluster.node_rank=1 {MEET}"),
        ("2 0", "train cluster.world_size=WORLD_SIZE cluster.rank=2 cluster.local_rank=0 cluster.address=tcp://HOST:29500"),
        ("num_epochs=3 trainer.backend=gloo model.pretrained=true",
         "train trainer.max_epochs=3 strategy.process_group_backend=gloo model.weights=DEFAULT"),
    ],
)  # fmt: skip
def test_the_whole_line(line: str, command: str):
    assert answered(line).text.split("\n")[-1] == f"Hint: `python -m imagenet_ddp.{command}`"


def test_each_word_has_its_meaning_and_the_line_is_at_the_end():
    text = answered("-a resnet50 --pretrained --lr 0.1 pets").text
    _, *rows, hint = text.split("\n")
    assert [re.sub(r":.*", "", row.strip()) for row in rows] == ["-a resnet50", "--pretrained", "--lr 0.1", "pets"]
    assert "model.weights=DEFAULT" in rows[1]
    assert hint == (
        "Hint: `python -m imagenet_ddp.train data=imagefolder data.root=pets model.name=resnet50 "
        "model.weights=DEFAULT optim.lr=0.1`"
    )


@pytest.mark.parametrize(
    "line",
    [
        "data=imagenet data.root=DIR", "-m optim.lr=1,2", "--cfg job", "--info all", "-i", "--config-dir x", "~data",
        "data.batchsize=3", "resume", "callbacks.mine.workers=3", "+model.args.pretrained=true", "-p data",
        "search.optim.lr={low:1}", "experiment=x", "seed=1", "strategy.timeout=1", "+logger.gpus=1",
    ],
)  # fmt: skip
def test_what_is_ours_is_left_alone(line: str):
    assert translate("train", shlex.split(line), {}) is None
