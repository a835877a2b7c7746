"""Runs over several machines: the real commands on hosts of namespaces (helpers/hosts.py), which share no disk but the
folder of the test. Node 0 is zeta, whose name and address sort last."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
from conftest import ROOT, SMALL, small_run
from helpers import train_runs
from helpers.hosts import DISK, INTERFACE, Host, Hosts, Process, in_network, requirement
from helpers.train_runs import probe, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(requirement() is not None, reason=str(requirement())),
]

ZETA = "10.77.0.2"
AT_ZETA = {"MASTER_ADDR": ZETA}
PROBES = {"PYTHONPATH": str(ROOT / "tests/helpers/probes")}
TWO = ("trainer.num_nodes=2", "trainer.devices=1")
ALL = {epoch: list(range(29)) for epoch in range(3)}  # the images of the tree, each once


@dataclass(frozen=True)
class End:
    """How a command ended. at_s: time.time()."""

    code: int
    out: str
    err: str
    at_s: float

    @property
    def printed(self) -> str:
        return f"exit code {self.code}\n{self.out}{self.err}"

    @property
    def said(self) -> str:
        """Its standard error, on one line: refusals are wrapped."""
        return " ".join(self.err.split())


def command(*options: str, verb: str = "train") -> list[str]:
    return ["python", "-m", f"imagenet_ddp.{verb}", *options]


def ends(*processes: Process, timeout_s: float = 240) -> list[End]:
    """Waits for all; kills them and fails past timeout_s."""
    found: dict[Process, float] = {}
    deadline = time.time() + timeout_s
    while len(found) < len(processes):
        for process in processes:
            if process not in found and process.poll() is not None:
                found[process] = time.time()
        if time.time() > deadline:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            printed = "\n".join(f"== exit code {each.returncode}\n{each.out}{each.err}" for each in processes)
            pytest.fail(f"{len(found)} of {len(processes)} commands ended within {timeout_s} s:\n{printed}")
        time.sleep(0.02)
    return [End(process.wait(), process.out, process.err, found[process]) for process in processes]


def start(
    hosts: Sequence[Host], *options: str, each: Sequence[Sequence[str]] = (), env: dict[str, str] | None = None
) -> list[Process]:
    """train with the same options on every host. each: more of every host's own."""
    more = each or [()] * len(hosts)
    environ = {**PROBES, **(env or {})}
    return [host.popen(command(*options, *own), environ) for host, own in zip(hosts, more, strict=True)]


def succeeded(found: Sequence[End]) -> Sequence[End]:
    assert [end.code for end in found] == [0] * len(found), "\n".join(end.printed for end in found)
    return found


def refused(found: Sequence[End], *sentences: str) -> None:
    """Exit code 2 on all, with these words on each, and nothing that looks like a defect."""
    for end in found:
        assert end.code == 2, end.printed
        assert "Traceback" not in end.err, end.printed
        for sentence in sentences:
            assert sentence in end.said, end.printed


def nobody_is_left(hosts: Sequence[Host]) -> None:
    """Workers that are told to stop save first, and an agent's resource tracker ends a moment after it."""
    limit = time.monotonic() + 10
    while left := {host.name: host.processes() for host in hosts if host.processes()}:
        assert time.monotonic() < limit, left
        time.sleep(0.05)


def seen(folder: Path) -> dict[int, list[int]]:
    """Epoch -> the images trained on, over all ranks, sorted."""
    return {epoch: sorted(images) for epoch, images in sorted(train_runs.seen(folder).items())}


def steps(folder: Path) -> list[int]:
    """Of each rank."""
    return [len(path.read_text().splitlines()) for path in sorted(folder.glob("seen*.jsonl"))]


def files(host: Host) -> set[str]:
    """On the host's own disk, but for its temporary ones."""
    root = host.folder / "work"
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def run_folder(host: Host) -> Path:
    (found,) = (host.folder / "work/runs").glob("*/*")
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


@pytest.fixture
def small(tree: Path) -> list[str]:
    return [*SMALL, f"data.root={tree}", "trainer.max_epochs=1"]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    """(zeta, alpha), numbered as the nodes."""
    with Hosts(["alpha", "zeta"], tmp_path) as (alpha, zeta):
        assert zeta.address == ZETA
        yield zeta, alpha


# ---- ways to start --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """A run of two hosts, which are still up."""

    zeta: Host
    alpha: Host
    shared: Path  # a folder that both see
    found: Sequence[End]
    images: dict[int, list[int]]
    run_dir: Path  # on zeta's disk
    left: dict[str, set[str]]  # files on each host's disk right after it


@pytest.fixture(scope="module")
def trained(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    shared = tmp_path_factory.mktemp("trained")
    with Hosts(["alpha", "zeta"], shared) as (alpha, zeta):
        options = [*SMALL, f"data.root={tree}", "trainer.num_nodes=2", "trainer.devices=2", *probe(shared / "seen")]
        found = succeeded(ends(*start((alpha, zeta), *options, env=AT_ZETA)))
        left = {host.name: files(host) for host in (alpha, zeta)}
        yield Trained(zeta, alpha, shared, found[::-1], seen(shared / "seen"), run_folder(zeta), left)


def test_the_same_command_on_both_nodes(trained: Trained) -> None:
    """No rank is given, names resolve to 127.0.1.1 as Debian has it, and node 0's sorts last."""
    zeta, alpha = trained.found
    assert f"Rendezvous: MASTER_ADDR at {ZETA}:29500, rank 0 of 4, local rank 0 of 2, node 0 of 2." in zeta.out
    assert "GLOO_SOCKET_IFNAME=ens5: used to reach" in (trained.run_dir / "logs/rank0.log").read_text()
    assert f"Node 1 of 2 runs ranks 2 to 3. The rendezvous is at {ZETA}:29500. Node 0 (zeta) shows" in alpha.out
    assert zeta.out.rstrip().endswith("11 of 11 validation images, each once.")
    assert zeta.err == alpha.err == ""
    nobody_is_left((trained.zeta, trained.alpha))

    assert trained.images == {epoch: ALL[epoch] for epoch in (0, 1)}
    ranks = [trained.shared / f"seen/seen{rank}.jsonl" for rank in range(4)]
    assert all(path.is_file() for path in ranks)
    summary = json.loads((trained.run_dir / "summary.json").read_text())
    numbers = [summary[key] for key in ("world_size", "num_nodes", "num_train_images", "num_val_images")]
    assert numbers == [4, 2, 29, 11]

    folder = trained.run_dir.relative_to(trained.zeta.folder / "work")
    assert trained.left["alpha"] == {f"{folder}/logs/rank2.log", f"{folder}/logs/rank3.log"}
    written = {f"{folder}/{name}" for name in ("checkpoints/last.ckpt", "logs/rank0.log", "logs/rank1.log")}
    assert written <= trained.left["zeta"]


def test_a_checkpoint_of_node_0_is_sent(trained: Trained) -> None:
    """Nodes meet by a file, resume is node 0's own path."""
    hosts = trained.zeta, trained.alpha
    pointer = trained.shared / "pointers/job"
    pointer.parent.mkdir()
    resume = f"resume={trained.run_dir.relative_to(trained.zeta.folder / 'work')}"
    options = [
        resume,
        *TWO,
        "trainer.max_epochs=3",
        f"cluster.address=file://{pointer}",
        *probe(trained.shared / "more"),
    ]
    ranks = [["cluster.node_rank=0"], ["cluster.node_rank=1"]]
    zeta, _ = succeeded(ends(*start(hosts, *options, each=ranks)))
    assert "Changed: trainer.max_epochs was 2 and is now 3." in zeta.out
    assert seen(trained.shared / "more") == {2: ALL[2]}
    assert list(pointer.parent.iterdir()) == []
    rows = (trained.run_dir / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + 3
    assert not any(path.endswith(".ckpt") for path in files(trained.alpha))
    assert list((trained.alpha.folder / "tmp").rglob("*.ckpt")) == [], "what was sent is taken away at the end"


def test_on_a_shared_disk_both_nodes_have_one_run_folder(trained: Trained, tree: Path) -> None:
    """The second way of docs/two-machines.md: the same line, typed in the same folder; the nodes meet there too."""
    disk, hosts = trained.shared / "disk", (trained.alpha, trained.zeta)
    disk.mkdir()
    options = [
        *SMALL,
        *TWO,
        f"data.root={tree}",
        "trainer.max_epochs=1",
        "name=both",
        f"cluster.address=file://{disk}/meet",
    ]
    found = succeeded(ends(*(host.popen(command(*options), folder=disk) for host in hosts)))
    assert sum("11 of 11 validation images, each once." in end.out for end in found) == 1
    (folder,) = (disk / "runs/both").iterdir()
    assert sorted(path.name for path in (folder / "logs").iterdir()) == ["rank0.log", "rank1.log"]
    assert [path.name for path in disk.iterdir()] == ["runs"], "the file of the meeting is not left"


def launch(node: int, *options: str) -> list[str]:
    static = [f"--node_rank={node}", f"--master_addr={ZETA}", "--master_port=29500"]
    started = ["python", "-m", "torch.distributed.launch", "--nnodes=2", "--nproc_per_node=1", *static]
    return [*started, "-m", "imagenet_ddp.train", *options]


def one_per_terminal(node: int, *options: str) -> list[str]:
    ranks = [f"cluster.rank={node}", "cluster.local_rank=0", "cluster.world_size=2"]
    return command(*options, *ranks, f"cluster.address=tcp://{ZETA}:23456")


def test_ways_to_start(two: tuple[Host, Host], small: list[str], tmp_path: Path) -> None:
    """Without any trainer key: one world of 2, one run folder, the same weights to the bit. The last test here is of
    torchrun."""
    found: list[dict[str, torch.Tensor]] = []
    for way in (launch, one_per_terminal):
        images = tmp_path / way.__name__
        options = [*small, f"hydra.run.dir={way.__name__}", *probe(images)]
        succeeded(ends(*(host.popen(way(node, *options), PROBES) for node, host in enumerate(two))))
        assert seen(images) == {0: ALL[0]}
        assert len(steps(images)) == 2
        run_dir = two[0].folder / "work" / way.__name__
        summary = json.loads((run_dir / "summary.json").read_text())
        assert [summary["world_size"], summary["num_nodes"]] == [2, 2]
        found.append(weights(run_dir))
        nobody_is_left(two)
    assert all(torch.equal(values, found[0][name]) for name, values in found[1].items())


# ---- the world is not what was asked --------------------------------------------------------------------------------


def test_differing_options(two: tuple[Host, Host], small: list[str]) -> None:
    own = [["trainer.devices=1", "optim.lr=0.5"], ["trainer.devices=2"]]
    for node, host in enumerate(two):  # of the same name, and not the same
        (host.folder / "work/mine.py").write_text(f"from lightning import Callback as Mine\nnode = {node}\n")
    small += ["+callbacks.mine._target_=mine.Mine"]
    found = ends(*start(two, *small, "trainer.num_nodes=2", each=own, env=AT_ZETA))
    refused(
        found,
        "the nodes disagree on optim.lr: 0.5 on node 0; 0.01 on node 1.",
        "the nodes disagree on trainer.devices: 1 on node 0; 2 on node 1.",
        "the nodes disagree on the code of mine: ",
    )
    assert [files(host) for host in two] == [{"mine.py"}, {"mine.py"}]


def test_number_0_on_two_machines(two: tuple[Host, Host], small: list[str]) -> None:
    """As RANK=0 in a line that was copied to both: the one at whose address they meet is told at once."""
    both = [*small, "trainer.num_nodes=2", "trainer.devices=1", "cluster.node_rank=0"]
    begin_s = time.monotonic()
    found = ends(*start(two, *both, env=AT_ZETA))
    refused(
        found, f"{ZETA} must be an address of this machine, because node 0 and rank 0 run here, but this machine has"
    )
    assert "node 0 (alpha) was refused: " in found[0].said
    assert time.monotonic() - begin_s < 60
    nobody_is_left(two)


def test_each_node_has_its_own_folder_and_interface(two: tuple[Host, Host], tree: Path, tmp_path: Path) -> None:
    """Node 0 decides on the job for both, but not on what each machine sets for itself, in a new run or a resumed one:
    on alpha, neither the folder nor the card of zeta exists. What a node reads are the images under its own path."""
    alpha, zeta = two[1], two[0]
    roots = [Path(DISK) / name for name in ("at_zeta", "at_alpha")]
    for host, root in ((zeta, roots[0]), (alpha, roots[1])):
        shutil.copytree(tree, host.folder / root.name)
    renamed = "".join(f"link set {change}\n" for change in (f"{INTERFACE} down", f"{INTERFACE} name ens9", "ens9 up"))
    in_network(alpha.init, ["ip", "-batch", "-"], renamed)
    own = [
        [f"data.root={root}", f"nccl.env.GLOO_SOCKET_IFNAME={card}"]
        for root, card in zip(roots, (INTERFACE, "ens9"), strict=True)
    ]
    options = [*SMALL, *TWO, "hydra.run.dir=run", *probe(tmp_path / "seen")]
    succeeded(ends(*start(two, *options, "trainer.max_epochs=1", each=own, env=AT_ZETA)))
    assert seen(tmp_path / "seen") == {0: ALL[0]}
    resumed = [*TWO, "resume=run", "trainer.max_epochs=2", "allow_targets=[probe.Probe]"]
    succeeded(ends(*start(two, *resumed, each=own, env=AT_ZETA)))
    assert seen(tmp_path / "seen") == {epoch: ALL[epoch] for epoch in (0, 1)}


def test_blocked_data_ports(two: tuple[Host, Host], small: list[str]) -> None:
    """Only the rendezvous port of node 0 lets strangers in."""
    two[0].block(except_port=29500)
    found = ends(*start(two, *small, *TWO, env=AT_ZETA))
    refused(found, f"node 1 (alpha) cannot reach node 0 (zeta) at {ZETA}:", "the cloud's security group and in each")
    nobody_is_left(two)
    assert [files(host) for host in two] == [set(), set()]


@pytest.mark.parametrize(
    ("except_port", "said"),
    [
        (29500, r"node 1 \(alpha\) cannot reach node 0 \(zeta\) at 10\.77\.0\.2:\d+: small packets arrive"),
        (1, r"1 of 2 ranks met within \d+ s\. Missing: node 1\. What 1 of them sent has not arrived\. Hint: "),
    ],
)
def test_large_packets_are_lost(two: tuple[Host, Host], small: list[str], except_port: int, said: str) -> None:
    """Behind a path MTU black hole, on the way to the rendezvous or on the other ports only."""
    two[0].drop_large(1200, except_port)
    found = ends(*start(two, *small, *TWO, "cluster.timeout_s=30", env=AT_ZETA))
    assert [end.code for end in found] == [2, 2], [end.printed for end in found]
    assert re.search(said, found[0].said), found[0].printed
    assert "large packets are lost on the way, so set a smaller MTU" in found[0].said
    nobody_is_left(two)
    assert [files(host) for host in two] == [set(), set()]


def test_large_packets_are_lost_in_an_evaluation(
    two: tuple[Host, Host], trained: Trained, tree: Path, tmp_path: Path
) -> None:
    """After the network was tried: node 0 waits for the predictions of node 1, which waits for node 0. A stop of node
    1 ends both."""
    options = [f"checkpoint={trained.run_dir}", f"data.root={tree}", "data._target_=stuck_image.open_stuck", *TWO]
    options += [f"+data.args.until={tmp_path}/until", "+data.args.report_s=0.5", "data.num_workers=0"]
    processes = [host.popen(command(*options, verb="evaluate"), {**PROBES, **AT_ZETA}) for host in two]
    said = "No step has ended for "
    wait_for(lambda: said in processes[0].err or any(each.poll() is not None for each in processes))
    for host in two:
        host.drop_large(500, except_port=1)
    before = processes[0].err.count(said)
    (tmp_path / "until").touch()
    wait_for(lambda: processes[0].err.count(said) > before or any(each.poll() is not None for each in processes))
    processes[1].send_signal(signal.SIGTERM)
    found = ends(*processes, timeout_s=120)
    assert [end.code for end in found] == [128 + signal.SIGTERM] * 2, [end.printed for end in found]


# ---- the end comes from outside -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "rank"), [("kill", 0), ("crash", 1)])
def test_a_rank_that_dies_ends_all(
    two: tuple[Host, Host], small: list[str], tmp_path: Path, what: str, rank: int
) -> None:
    """In the middle of an epoch."""
    trouble = probe(tmp_path / "seen", what=what, rank=rank, step=6)
    found = ends(*start(two, *small, *TWO, "trainer.max_epochs=500", *trouble, env=AT_ZETA))
    died_at = (tmp_path / f"seen/seen{rank}.jsonl").stat().st_mtime
    assert max(end.at_s for end in found) - died_at < 10, [end.printed for end in found]
    nobody_is_left(two)
    assert [end.code for end in found] == [1, 1]
    own, other = found[rank], found[1 - rank]
    name = f"rank {rank} (node {rank}, local rank 0)"
    log = next((two[1 - rank].folder / "work/runs").rglob(f"logs/rank{1 - rank}.log")).read_text()
    assert f"rank {1 - rank} ends because rank {rank} " in log.splitlines()[-1]
    if what == "crash":
        assert "RuntimeError: the probe crashes on purpose" in own.err
        assert own.err.count("Traceback") == 1
        assert f"ends because {name} failed: RuntimeError: the probe crashes on purpose" in other.err
    else:
        assert f"rank {rank} was ended by signal 9 (SIGKILL)" in own.err
        assert f"ends because rank {rank} was ended by signal 9 (SIGKILL)" in other.err
    assert "Traceback" not in other.err


def test_a_signal_to_one_command_stops_all(two: tuple[Host, Host], small: list[str], tmp_path: Path) -> None:
    """At the same step, and saved."""
    more = ["trainer.max_epochs=500", *probe(tmp_path / "seen", slow_s=0.1)]
    processes = start(two, *small, *TWO, *more, env=AT_ZETA)
    wait_for((tmp_path / "seen/seen0.jsonl").exists)
    processes[1].send_signal(signal.SIGTERM)
    found = ends(*processes, timeout_s=30)
    nobody_is_left(two)
    assert [end.code for end in found] == [128 + signal.SIGTERM] * 2
    assert "Stopped and saved after step" in found[0].out
    assert len(set(steps(tmp_path / "seen"))) == 1
    checkpoint = torch.load(run_folder(two[0]) / "checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == steps(tmp_path / "seen")[0]
    assert not any("Traceback" in end.err for end in found)


@pytest.mark.parametrize("node", [0, 1])
def test_a_command_that_is_killed_ends_all(two: tuple[Host, Host], small: list[str], tmp_path: Path, node: int) -> None:
    """kill -9 of what was typed. The ranks save; without node 0, which serves the store, what watches for failures may
    end them before. All say why, and the command that is left says how to go on."""
    more = "trainer.max_epochs=500", "hydra.run.dir=r", *probe(tmp_path / "seen", slow_s=0.05)
    processes = start(two, *small, *TWO, *more, env=AT_ZETA)
    wait_for((two[0].folder / "work/r/checkpoints/last.ckpt").exists)
    processes[node].kill()
    found = ends(*processes, timeout_s=30)
    nobody_is_left(two)
    own = found[1 - node]
    assert own.code == 1, own.printed
    gone = f"the command of node {node} ({two[node].name}, rank {node}) is gone: its process, or its machine, no longer"
    assert gone in own.out + own.err, own.printed
    done = steps(tmp_path / "seen")
    for rank, host in enumerate(two):
        last = (host.folder / f"work/r/logs/rank{rank}.log").read_text().splitlines()[-1]
        assert f" because {gone}" in last
        assert f"Stopped and saved after step {done[0]}, in epoch " in last or not node
    if node:
        assert len(set(done)) == 1
        assert "Continue with: python -m imagenet_ddp.train resume=" in own.err, own.printed


def test_a_node_that_vanishes(two: tuple[Host, Host], small: list[str], tmp_path: Path) -> None:
    """Its processes all die at once; the other node says how to continue, if the run has saved."""
    more = ["trainer.max_epochs=500", "hydra.run.dir=r", *probe(tmp_path / "seen", slow_s=0.05)]
    processes = start(two, *small, *TWO, *more, env=AT_ZETA)
    wait_for((two[0].folder / "work/r/checkpoints/last.ckpt").exists)
    workers = psutil.Process(processes[1].pid).children(recursive=True)
    for process in (processes[1], *workers):
        process.kill()
    found = ends(*processes, timeout_s=60)
    assert found[0].code == 1 and "rank 1 (node 1, local rank 0) is gone" in found[0].err, found[0].printed
    line = found[0].err.partition("Continue with: python -m imagenet_ddp.train resume=")[2].splitlines()[0]
    assert line.endswith(f"trainer.num_nodes=2 trainer.devices=1 cluster.address={ZETA}:29500 (on each node)")


# ---- what doctor measures -------------------------------------------------------------------------------------------


def test_doctor_measures_a_slow_link(two: tuple[Host, Host], small: list[str]) -> None:
    """And reports what is wrong on the other node."""
    two[0].slow(mbit=100)
    options = [*small_run("model.name=mobilenet_v3_small", options=small), *TWO]
    first, _ = ends(
        two[0].popen(command(*options, verb="doctor"), AT_ZETA),
        two[1].popen(command(*options, "data.root=gone", verb="doctor"), AT_ZETA),
    )
    assert first.code == 1, first.printed
    checks = {line.split()[0]: line for line in first.out.splitlines()}
    assert "FAIL node 1 (alpha), data: data.root must be a folder" in checks["nodes"]
    assert float(checks["all-reduce"].split()[-2]) == pytest.approx(0.095, rel=0.25)  # Gbit/s
    measured, foretold = (int(share) for share in re.findall(r": 2 nodes (\d+) %", checks["scaling"]))
    assert foretold < 60 and measured == pytest.approx(foretold, abs=20)


# ---- nodes that come and go -----------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_a_node_leaves_and_comes_back(two: tuple[Host, Host], tree: Path, tmp_path: Path) -> None:
    """torchrun --nnodes=1:2. The node that has rank 0, not the one of the endpoint, is killed: the other goes on from
    the checkpoint, with the same images per update. The line typed again there, both go on together."""
    zeta, alpha = two
    folder, epochs = tmp_path / "r", 20
    options = [*SMALL, f"data.root={tree}", f"hydra.run.dir={folder}", "resume=auto", f"trainer.max_epochs={epochs}",
               "+callbacks.checkpoint.every_n_steps=2", *probe(tmp_path / "seen", slow_s=0.25)]  # fmt: skip
    line = ["torchrun", "--nnodes=1:2", "--nproc_per_node=1", "--max-restarts=10", "--rdzv_backend=c10d",
            f"--rdzv_endpoint={ZETA}:29500", "--rdzv_id=job7"]  # fmt: skip

    def join(host: Host) -> Process:
        own = [f"--rdzv_conf=is_host={int(host is zeta)}", f"--local_addr={host.address}", "-m", "imagenet_ddp.train"]
        return host.popen([*line, *own, *options], {**PROBES, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})

    def rows() -> int:
        metrics = folder / "metrics.csv"
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    def goes_on(*printed: str) -> None:
        """Until a rank 0 has begun with this many nodes, and another epoch has ended."""
        moment_s = time.time()
        wait_for(lambda: sum(each.out.count(printed[0]) for each in commands) == int(printed[1]), timeout_s=120)
        done = rows()
        wait_for(lambda: rows() > done + 1, timeout_s=120)
        print(f"{printed}, trained on after {time.time() - moment_s:.1f} s at most")

    commands = [join(zeta), join(alpha)]
    goes_on("1 device × 2 nodes", "1")
    os.killpg(commands[1].pid, signal.SIGKILL)
    for pid in alpha.processes():
        os.kill(pid, signal.SIGKILL)
    goes_on("1 device × 1 node × 2 accumulation = 8 images per update.", "1")
    commands.append(join(alpha))
    goes_on("1 device × 2 nodes", "2")
    (tmp_path / "seen/fast").touch()
    succeeded(ends(commands[0], commands[2], timeout_s=300))
    table = [row.split(",")[:2] for row in (folder / "metrics.csv").read_text().splitlines()[1:]]
    assert table == [[str(epoch), str(4 * epoch)] for epoch in range(1, epochs + 1)]
    assert json.loads((folder / "summary.json").read_text())["world_size"] == 2
    assert seen(tmp_path / "seen").keys() == set(range(epochs))
    nobody_is_left(two)
