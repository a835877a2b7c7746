"""Measure the images/s of one and two nodes over a slow link, with each option that sends less, and write
docs/benchmarks/scaling.json:

    python scripts/scaling_table.py

Requires root, two CPU cores and Linux with iproute2 and util-linux. The nodes are two processes, with one core each, in
network namespaces that are joined by a link whose speed `tc` limits. The script removes the namespaces when it ends.
The measurement takes about 10 minutes. Then run `python scripts/doc_pages.py` to renew the table in
docs/performance.md.

Each figure is the sum of both nodes. "1 node" is half the sum of both nodes when they train separately at the same
time, because they share the machine's caches in the other measurements too.
"""

import contextlib
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "scaling.json"
LINKS = {100: 2, 1000: 4}  # Mbit/s -> turns; where communication dominates, turns hardly differ
BATCH_SIZE, IMAGE_SIZE = 32, 64
ADDRESS, PORT = "10.77.0.", 29400
ACCUMULATE = 4
# options -> (strategy.*, batches per step, warm-up batches, measured batches)
VARIANTS: dict[str, tuple[dict[str, Any], int, int, int]] = {
    "": ({}, 1, 2, 3),
    "strategy.bucket_cap_mb=5": ({"bucket_cap_mb": 5.0}, 1, 2, 3),
    "strategy.gradient_as_bucket_view=false": ({"gradient_as_bucket_view": False}, 1, 2, 3),
    "strategy.comm_hook=bf16": ({"comm_hook": "bf16"}, 1, 2, 3),
    "strategy.comm_hook=fp16": ({"comm_hook": "fp16"}, 1, 2, 3),
    f"trainer.accumulate_grad_batches={ACCUMULATE}": ({}, ACCUMULATE, ACCUMULATE, 2 * ACCUMULATE),
}  # fmt: skip


# ---- the link ------------------------------------------------------------------------------------------------------


def main() -> None:
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "unshare", "nsenter", "taskset"))):
        sys.exit(
            "network namespaces require root, and ip, tc, unshare, nsenter and taskset. Hint: install iproute2 and "
            "util-linux, and run this script as root."
        )
    if len(cores := sorted(os.sched_getaffinity(0))) < 2:
        sys.exit("two nodes need two CPU cores, got one. Hint: run this script on a machine with more cores.")
    if os.environ.get("SCALING_TABLE") != "in a network of its own":
        os.environ["SCALING_TABLE"] = "in a network of its own"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    with _peer() as peer:
        links = [_measure(mbit, turns, peer, cores) for mbit, turns in LINKS.items()]
    found = {
        "command": "python scripts/scaling_table.py",
        "date": datetime.date.today().isoformat(),
        "machine": f"{_processor()}, one core per node, {_versions()}",
        "net": f"ResNet-18 with 1,000 classes at {IMAGE_SIZE} pixels, {BATCH_SIZE} images per node, fp32",
        "links": links,
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"Written to {OUT}. Run `python scripts/doc_pages.py` to renew the table.")


@contextlib.contextmanager
def _peer() -> Iterator[int]:
    """Yield the id of a process in the second node's network namespace. This process is in the first node's."""
    holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
    try:
        here = Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{holder.pid}/ns/net").readlink() == here:
            time.sleep(0.01)
        _run(f"ip link add link0 type veth peer name link1 netns {holder.pid}")
        for node, prefix in enumerate(("", f"nsenter --target={holder.pid} --net ")):
            _run(f"{prefix}ip addr add {ADDRESS}{node + 1}/24 dev link{node}")
            _run(f"{prefix}ip link set lo up")
            _run(f"{prefix}ip link set link{node} up")
        yield holder.pid
    finally:
        holder.kill()
        holder.wait()


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)


def _measure(mbit: int, turns: int, peer: int, cores: list[int]) -> dict[str, Any]:
    # the burst must cover the bytes that are sent in one tick of the kernel
    limit = f"tbf rate {mbit}mbit burst {max(64_000, mbit * 1250)} latency 100ms"
    enter = ["nsenter", f"--target={peer}", "--net"]
    for prefix, card in (([], "link0"), (enter, "link1")):
        _run(" ".join([*prefix, f"tc qdisc replace dev {card} root {limit}"]))
    nodes = []
    for rank, prefix in enumerate(([], enter)):
        environ = {**os.environ, "GLOO_SOCKET_IFNAME": f"link{rank}"}
        command = [*prefix, "taskset", "-c", str(cores[rank]), sys.executable, __file__, str(rank), str(turns)]
        nodes.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True))
    try:
        printed = [node.communicate(timeout=900)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    if any(node.returncode for node in nodes):
        sys.exit("a node failed. Hint: read its messages above.")
    return {"mbit_per_s": mbit, **json.loads(printed[0].splitlines()[-1])}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _versions() -> str:
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("torch", "lightning"))


# ---- one node ------------------------------------------------------------------------------------------------------


def node(rank: int, turns: int) -> None:
    """Measure all variants in turns, and print the results as JSON. rank: this node's rank."""
    import torch
    from torch import distributed
    from torch.distributed import TCPStore

    from imagenet_ddp.distributed.strategies.process_group import init_process_group
    from imagenet_ddp.engine import step_timer

    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    timeout = datetime.timedelta(seconds=300)
    store = TCPStore(f"{ADDRESS}1", PORT, 2, rank == 0, timeout=timeout)
    init_process_group(rank, 2, store, cpu, "gloo", timeout.total_seconds())
    training = _training()
    times = step_timer.time_steps(training, [(training.net, False)], budget_s=8.0)[0]
    num_bytes = sum(4 * each.numel() for each in training.net.parameters())
    all_reduce = step_timer.time_all_reduce(num_bytes, cpu, budget_s=12.0)
    seen: dict[str, list[float]] = {name: [] for name in ("1 node", *VARIANTS)}
    for _ in range(turns):
        for name, reached in seen.items():
            rate = torch.tensor(_images_per_s(rank, store, None if name == "1 node" else VARIANTS[name]))
            distributed.all_reduce(rate)
            reached.append(float(rate) / (2 if name == "1 node" else 1))
            print(
                f"{name or '2 nodes'}: {reached[-1]:.1f} images/s", file=sys.stderr if rank == 0 else None, flush=True
            )
    alone = statistics.median(seen["1 node"])
    compute_s = BATCH_SIZE / alone
    backward_s = compute_s * times.backward_s / times.compute_s
    rows = [{"name": "1 node", "images_per_s": seen["1 node"], "predicted": None}]
    for name, (strategy, batches, _, _) in VARIANTS.items():
        share = 0.5 if "comm_hook" in strategy else 1.0
        step = step_timer.Step(batches * compute_s, backward_s, share * num_bytes)
        efficiency = step_timer.efficiency(step, share * all_reduce.seconds)
        rows.append({"name": name, "images_per_s": seen[name], "predicted": 2 * alone * efficiency})
    found = {"all_reduce_s": all_reduce.seconds, "gradient_bytes": num_bytes, "step_s": compute_s, "rows": rows}
    print(json.dumps({**found, "backward_s": backward_s}))
    sys.stdout.flush()
    distributed.barrier()
    os._exit(0)


def _training() -> Any:
    import torch
    from torchvision.models import resnet18

    from imagenet_ddp.engine.step_timer import Training

    torch.manual_seed(0)
    net = resnet18().to(memory_format=torch.channels_last)
    images = torch.randint(0, 256, (BATCH_SIZE, 3, IMAGE_SIZE, IMAGE_SIZE), dtype=torch.uint8)
    images = images.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    return Training(net, optimizer, images, torch.randint(0, 1000, (BATCH_SIZE,)), lambda images: images / 255)


def _images_per_s(rank: int, store: Any, variant: tuple[dict[str, Any], int, int, int] | None) -> float:
    """Train some batches with Lightning and this project's strategy, and return this node's images/s. With
    variant=None, the node trains alone."""
    import lightning.pytorch as L
    from torch import distributed

    from imagenet_ddp.config.schema.distributed import StrategyConfig
    from imagenet_ddp.distributed.launchers.world_info import WorldInfo
    from imagenet_ddp.distributed.strategies import ddp
    from imagenet_ddp.distributed.strategies.ddp import DetectedEnvironment

    strategy, accumulate, warm_up, counted = variant or ({}, 1, 2, 3)
    training, marks = _training(), []

    class Module(L.LightningModule):
        net = training.net

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return training.forward(self.net)

        def configure_optimizers(self) -> Any:
            return training.optimizer

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == warm_up:
                distributed.barrier()
                marks.append(time.perf_counter())

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx + 1 == warm_up + counted:
                marks.append(time.perf_counter())

    module = Module()
    module.net = training.net
    world = 1 if variant is None else 2
    own = rank if world == 2 else 0
    info = WorldInfo(rank=own, node_rank=own, world_size=world, num_nodes=world, address=f"{ADDRESS}1", port=PORT)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, num_nodes=world, plugins=[DetectedEnvironment(info)], max_epochs=1,
        strategy=ddp.make_strategy(StrategyConfig(**{"init_sync": False, **strategy}), world, store, kind="cpu"),
        accumulate_grad_batches=accumulate, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # as callbacks/graceful_stop.py does
    trainer.fit(module, [0] * (warm_up + counted))
    return counted * BATCH_SIZE / (marks[1] - marks[0])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        node(*map(int, sys.argv[1:]))
    else:
        main()
