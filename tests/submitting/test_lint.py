"""The linter's table: a good script with one thing changed, and all that is found in it; nothing in good ones."""

import re
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT, clean_environ

from imagenet_ddp.schema import ConfigError
from imagenet_ddp.submitting import lint, wanted
from imagenet_ddp.submitting.wanted import Wanted

GOOD = """\
#!/bin/bash
# two nodes with eight GPUs each
#SBATCH --job-name=mine
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --time=24:00:00
#SBATCH --signal=USR2@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log

source .venv/bin/activate
export OMP_NUM_THREADS=1
srun --cpus-per-task=4 \\
  python -m imagenet_ddp.train \\
  trainer.num_nodes=2 trainer.devices=8 "$@"
"""
START = 'srun --cpus-per-task=4 \\\n  python -m imagenet_ddp.train \\\n  trainer.num_nodes=2 trainer.devices=8 "$@"'
ONE_NODE = {"--nodes=2": "--nodes=1", "trainer.num_nodes=2 ": ""}
ONE_TASK = {**ONE_NODE, "#SBATCH --ntasks-per-node=8\n": "#SBATCH --ntasks-per-node=1\n"}
TORCHRUN = (
    'srun --cpus-per-task=32 bash -c \'trap "" USR2; exec "$@"\' torchrun torchrun --nnodes=$SLURM_NNODES '
    '--nproc-per-node=8 --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint="$address:29500" '
    '-m imagenet_ddp.train "$@"'
)
BY_TORCHRUN = {"--ntasks-per-node=8": "--ntasks-per-node=1", "cpus-per-task=4\n": "cpus-per-task=32\n", START: TORCHRUN}
ARRAY = {**ONE_NODE, "#SBATCH --requeue\n": "#SBATCH --requeue\n#SBATCH --array=0-1\n", '"$@"': "-m seed=0,1"}

Changes = dict[str, str]


@cache
def _read(words: tuple[str, ...], torchrun: bool) -> tuple[Wanted | None, list[str]]:
    environ = clean_environ()
    try:
        return wanted.look(wanted.compose(words, environ)[0], environ, torchrun=torchrun)
    except ConfigError as error:
        return None, error.mistakes


def read(words: list[str], torchrun: bool) -> tuple[Wanted | None, list[str]]:
    return _read(tuple(words), torchrun)


def changed(changes: Changes) -> str:
    text = GOOD
    for old, new in changes.items():
        assert old in text, f"{old} is not in\n{text}"
        text = text.replace(old, new)
    return text


def found(text: str, *typed: str) -> list[str]:
    """'LINE TEXT OF THE LINE|mistake or note|what|hint' of each finding."""
    lines = text.splitlines()
    outcome = lint.lint(text, typed, read)
    return [
        f"{lines[each.line - 1]}|{'mistake' if each.is_mistake else 'note'}|{each.what}|{each.hint}"
        for each in outcome.findings
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"--ntasks-per-node=8": "--ntasks-per-node 8"},
        {"#SBATCH --nodes=2\n": "#SBATCH -N2 --comment='a b' # in one line\n"},
        {"#SBATCH --nodes=2\n": "#SBATCH -N 2\n",
         "#SBATCH --ntasks-per-node=8\n": "#SBATCH --ntasks-per-node=8 -n 16\n"},
        {"--gpus-per-node=8": "--gres=gpu:a100:8"},
        {"--gpus-per-node=8": "-G 16"},
        {"trainer.num_nodes=2 trainer.devices=8 ": ""},
        {"--ntasks-per-node=8": "--ntasks-per-node=1", "cpus-per-task=4": "cpus-per-task=32"},
        {"srun --cpus-per-task=4": "export SRUN_CPUS_PER_TASK=4\nsrun"},
        {"srun --cpus-per-task=4": "srun -c $SLURM_CPUS_PER_TASK"},
        {"#SBATCH --job-name": "##SBATCH --partition=x\n#SBATCH --job-name"},
        {"--job-name=mine": "--job-name='a b # c'"},
        {"#SBATCH --requeue\n": "#SBATCH --requeue --exclusive --mem=0\n"},
        {"trainer.devices=8": "trainer.devices=$((SLURM_NTASKS / SLURM_NNODES))"},
        {"export OMP": "gpus=8\nexport OMP", "trainer.devices=8": 'trainer.devices="${gpus:-4}"'},
        {**ONE_TASK, 'srun --cpus-per-task=4 \\\n  python': "exec python", "USR2@120": "B:USR2@120"},
        {"USR2@120": "B:USR2@120", "source": "trap 'scancel --signal=USR2 $SLURM_JOB_ID' USR2\nsource"},
        {**ONE_NODE, "#SBATCH --ntasks-per-node=8": "#SBATCH --ntasks=1"},
        BY_TORCHRUN,
        ARRAY,
        {**ARRAY, "-m seed=0,1": "seed=$SLURM_ARRAY_TASK_ID"},
        {**ONE_NODE, "#SBATCH --gpus-per-node=8\n": "",
         "trainer.devices=8": "trainer.devices=8 trainer.accelerator=cpu"},
        {"srun --cpus-per-task=4 \\\n  python": 'srun --cpus-per-task=4 bash -c "python',
         'trainer.devices=8 "$@"': 'trainer.devices=8"'},
        {"source .venv": "cat <<EOF\nsrun python -m imagenet_ddp.train\nEOF\nsource .venv"},
        {START: f"if true; then {START}; else echo no; fi"},
    ],
)  # fmt: skip
def test_good(changes: Changes) -> None:
    assert found(changed(changes)) == []


@pytest.mark.parametrize("path", sorted((ROOT / "scripts").glob("*.sbatch")), ids=lambda path: path.name)
def test_the_scripts_are_good(path: Path) -> None:
    assert found(path.read_text()) == []


MISTAKES: list[tuple[str, Changes, list[str]]] = [
    # tasks
    ("half", {"--ntasks-per-node=8": "--ntasks-per-node=4"},
     ["#SBATCH --ntasks-per-node=4|mistake|the step has 8 tasks on 2 nodes, but trainer.devices is 8: expected are 16 "
      "(one per device) or 2 (one per node).|#SBATCH --ntasks-per-node=8, or leave trainer.devices out."]),
    ("ntasks alone", {"--ntasks-per-node=8": "--ntasks=16"},
     ["#SBATCH --ntasks=16|mistake|--ntasks=16 without --ntasks-per-node|"
      "#SBATCH --ntasks-per-node=8 without --ntasks"]),
    ("no nodes", {"#SBATCH --nodes=2\n": "", "--ntasks-per-node=8": "--ntasks=8", "trainer.num_nodes=2 ": ""},
     ["#SBATCH --ntasks=8|mistake|without --nodes, SLURM spreads --ntasks=8|#SBATCH --nodes=1"]),
    ("uneven", {"--ntasks-per-node=8": "--ntasks=3", "trainer.devices=8 ": ""},
     ["#SBATCH --ntasks=3|mistake|--ntasks=3 without --ntasks-per-node"]),
    ("nodes differ", {"--nodes=2": "--nodes=4"},
     ["#SBATCH --nodes=4|mistake|the step has 4 nodes, but trainer.num_nodes is 2.|#SBATCH --nodes=2"]),
    ("srun's nodes", {"srun --cpus": "srun --nodes=1 --ntasks=8 --cpus"},
     ["srun|mistake|the step has 1 node, but trainer.num_nodes is 2."]),
    ("multiplies nothing", {"--ntasks-per-node=8": "--ntasks-per-node=1",
     "srun --cpus": "srun --ntasks-per-node=8 --cpus",
                            "#SBATCH --cpus-per-task=4": "#SBATCH --cpus-per-task=32"},
     ["srun|mistake|srun --ntasks-per-node=8 alone changes nothing|srun --ntasks=16 --ntasks-per-node=8 ..."]),
    ("srun's tasks", {"srun --cpus": "srun -n 12 --cpus"},
     ["srun|mistake|the step has 12 tasks on 2 nodes|srun --ntasks=16 --ntasks-per-node=8 ..."]),
    ("strategy", {"trainer.devices=8": "strategy=dp trainer.devices=8", **ONE_NODE},
     ["#SBATCH --ntasks-per-node=8|mistake|the step has 8 tasks, but the strategy runs in one process."]),
    # srun
    ("no srun", {"srun --cpus-per-task=4 \\\n  python": "python"},
     ["python|mistake|python is started without srun: once, on the first node, in a job of 2 nodes."
      "|srun --ntasks=16 --ntasks-per-node=8 python ...", "python|mistake|--signal=USR2@120 does not reach"]),
    ("no srun, one node", {"srun --cpus-per-task=4 \\\n  python": "python", **ONE_NODE},
     ["python|mistake|python is started without srun: once, on the first node, in a job of 8 tasks.",
      "python|mistake|--signal=USR2@120 does not reach a command that is started without srun."]),
    ("export", {"srun --cpus": "srun --export=NONE --cpus"}, ["srun|mistake|--export=NONE: the tasks get none"]),
    ("export of the job", {"#SBATCH --requeue\n": "#SBATCH --requeue\n#SBATCH --export=NONE\n"},
     ["#SBATCH --export=NONE|mistake|--export=NONE: the tasks get none"]),
    ("own number", {"trainer.num_nodes": "cluster.node_rank=$SLURM_NODEID trainer.num_nodes"},
     ["  cluster|mistake|$SLURM_NODEID is put in by the batch script, where it is 0"]),
    # GPUs
    ("too few", {"--gpus-per-node=8": "--gpus-per-node=4"},
     ["#SBATCH --gpus-per-node=4|mistake|a node of the job has 4 GPUs, but 8 devices are needed."
      "|#SBATCH --gpus-per-node=8"]),
    ("too few by gres", {"--gpus-per-node=8": "--gres=shm:1,gpu:v100:2"},
     ["#SBATCH --gres|mistake|a node of the job has 2"]),
    ("too few in all", {"--gpus-per-node=8": "--gpus=8"}, ["#SBATCH --gpus=8|mistake|a node of the job has 4 GPUs"]),
    ("idle", {"trainer.devices=8": "trainer.devices=4", "--ntasks-per-node=8": "--ntasks-per-node=4"},
     ["#SBATCH --gpus-per-node=8|note|a node of the job has 8 GPUs, but 4 of them are used."]),
    ("none", {"#SBATCH --gpus-per-node=8\n": ""},
     ["#SBATCH --nodes=2|note|no line asks for GPUs: without them, the run"]),
    ("none, but wanted", {"#SBATCH --gpus-per-node=8\n": "",
     "trainer.devices=8": "trainer.devices=8 trainer.accelerator=gpu"},
     ["#SBATCH --nodes=2|mistake|no line asks for GPUs.|#SBATCH --gpus-per-node=8"]),
    ("not wanted", {"trainer.devices=8": "trainer.devices=8 trainer.accelerator=cpu"},
     ["#SBATCH --gpus-per-node=8|note|--gpus-per-node=8 asks for GPUs, but trainer.accelerator is cpu."]),
    ("per task", {"--gpus-per-node=8": "--gpus-per-task=1"},
     ["#SBATCH --gpus-per-task=1|mistake|--gpus-per-task=1 binds each task|"
      "#SBATCH --gpus-per-node=8, and no --gpus-per-task."]),
    ("bind none", {"srun --cpus": "srun --gpu-bind=none --cpus"},
     ["srun|mistake|--gpu-bind=none unsets CUDA_VISIBLE_DEVICES"]),
    ("bind one", {"srun --cpus": "srun --gpu-bind=single:1 --cpus"},
     ["srun|mistake|--gpu-bind=single:1 binds each task"]),
    # CPUs
    ("not inherited", {"srun --cpus-per-task=4": "srun"},
     ["srun|mistake|srun does not take over --cpus-per-task=4 since SLURM 22.05: each task gets one CPU."
      '|srun --cpus-per-task="$SLURM_CPUS_PER_TASK" ...']),
    ("not inherited by several", {"srun --cpus-per-task=4": "srun -n16 --ntasks-per-node=8",
                                  "H --ntasks-per-node=8": "H --ntasks-per-node=1",
                                  "--cpus-per-task=4": "--cpus-per-task=32"},
     ["srun|mistake|srun does not take over --cpus-per-task=32|srun --cpus-per-task=4 ..."]),
    ("too many", {"srun --cpus-per-task=4": "srun --cpus-per-task=8"},
     ["srun|mistake|the step needs 64 CPUs per node, but the job has 32: srun refuses it.|srun --cpus-per-task=4 ..."]),
    # signals, turns, logs
    ("no signal", {"#SBATCH --signal=USR2@120\n": ""},
     ["#SBATCH --time|mistake|without --signal the run is ended|#SBATCH --signal=USR2@120"]),
    ("USR1", {"USR2@120": "SIGUSR1@90"},
     ["#SBATCH --signal|mistake|--signal=SIGUSR1@90: a run saves itself on SIGUSR2, not on SIGUSR1. NCCL|"
      "#SBATCH --signal=USR2@90"]),
    ("the shell's", {"USR2@120": "B:USR2@120"},
     ["#SBATCH --signal|mistake|--signal=B:USR2@120 signals the batch shell only|#SBATCH --signal=USR2@120"]),
    ("no requeue line", {"#SBATCH --requeue\n": "", "#SBATCH --open-mode=append\n": ""},
     ["#SBATCH --signal|note|whether the run is started again|#SBATCH --requeue"]),
    ("not again", {"--requeue": "--no-requeue"}, ["#SBATCH --no-requeue|note|--signal=USR2@120 has the run saved"]),
    ("overwritten", {"#SBATCH --open-mode=append\n": ""},
     ["#SBATCH --requeue|mistake|the next turn overwrites the log|#SBATCH --open-mode=append"]),
    ("truncated", {"--open-mode=append": "--open-mode=truncate"},
     ["#SBATCH --open-mode|mistake|the next turn overwrites"]),
    ("short", {"--time=24:00:00": "--time=1"}, ["#SBATCH --time=1|mistake|the time limit (60 s) is not longer"]),
    ("no time", {"--time=24:00:00": "--time=1d"}, ["#SBATCH --time=1d|mistake|--time=1d is no time."]),
    # the lines themselves
    ("late", {"#SBATCH --signal=USR2@120\n": "", "export": "#SBATCH --signal=USR2@120\nexport"},
     ["#SBATCH --time|mistake|without --signal",
      "#SBATCH --signal|mistake|#SBATCH --signal=USR2@120 stands behind the first command, where SLURM ignores it"]),
    ("a space", {"#SBATCH --output": "# SBATCH --output"},
     ["# SBATCH|note|this is a comment: SLURM reads|#SBATCH --output"]),
    ("indented", {"#SBATCH --output": "  #SBATCH --output"}, ["  #SBATCH|note|this is a comment"]),
    ("stray", {"--output=slurm-%j.log": "--output=slurm-%j.log gpu"},
     ["#SBATCH --output|mistake|gpu is no option: sbatch"]),
    ("mistyped", {"--open-mode": "--openmode"},
     ["#SBATCH --requeue|mistake|the next turn overwrites",
      "#SBATCH --openmode|mistake|--openmode is not an option of sbatch, unless|#SBATCH --open-mode=append"]),
    ("of the cluster", {"#SBATCH --requeue\n": "#SBATCH --requeue --beeond\n"},
     ["#SBATCH --requeue|note|--beeond is not an option of sbatch"]),
    ("short and =", {"--nodes=2": "-N=2"},
     ["#SBATCH -N=2|mistake|a short option takes its value without =|#SBATCH --nodes=2"]),
    ("variable", {"slurm-%j.log": "$HOME/slurm-%j.log"}, ["#SBATCH --output|mistake|SLURM takes --output=$HOME"]),
    ("twice", {"#SBATCH --requeue\n": "#SBATCH --requeue\n#SBATCH -N 2 -t 1-0\n"},
     ["#SBATCH -N 2 -t 1-0|mistake|--time=1-0 and, in line 8, --time=24:00:00: the later one holds.|remove line 8."]),
    ("two kinds of GPUs", {"--gpus-per-node=8": "--gpus-per-node=8 --gres=gpu:8"},
     ["#SBATCH --gpus-per-node|mistake|--gres=gpu:8 and, in line 6, --gpus-per-node=8 both ask for GPUs."]),
    ("name", {"--job-name=mine": "-J interactive"},
     ["#SBATCH -J|note|Lightning by itself takes a job called interactive"]),
    ("no shebang", {"#!/bin/bash\n": "\n"}, ["|mistake|sbatch wants an interpreter|#!/usr/bin/env bash"]),
    ("DOS", {"#!/bin/bash\n": "#!/bin/bash\r\n"}, ["#!|mistake|sbatch refuses DOS line ends"]),
    ("nothing of ours", {"imagenet_ddp.train": "train"},
     ["  trainer|mistake|no line starts python -m imagenet_ddp.train"]),
    # torchrun
    ("torchrun's tasks", {**BY_TORCHRUN, "--ntasks-per-node=8": "--ntasks-per-node=8",
     "cpus-per-task=4\n": "cpus-per-task=4\n",
                          START: TORCHRUN.replace("task=32", "task=4")},
     ["srun|mistake|torchrun starts the processes of a node, but the step has 8 tasks on each.|srun --ntasks=2"]),
    ("torchrun dies", {**BY_TORCHRUN, START: re.sub(r"bash .*? torchrun ", "", TORCHRUN)},
     ["srun|mistake|torchrun dies of SIGUSR2"]),
    ("torchrun here", {**BY_TORCHRUN, START: TORCHRUN.replace("$address", "localhost")},
     ["srun|mistake|the meeting point of torchrun is localhost:29500: on each of 2 nodes that is another machine."]),
    ("torchrun's nodes", {**BY_TORCHRUN, START: TORCHRUN.replace("$SLURM_NNODES", "4")},
     ["srun|mistake|torchrun waits for --nnodes=4, but the job has 2."]),
    ("torchrun's processes", {**BY_TORCHRUN, START: TORCHRUN.replace('"$@"\'', "'").replace("exec ", "exec \"$@\"")
                              .replace('train "$@"', "train trainer.devices=4"),
                               "--gpus-per-node=8": "--gpus-per-node=4"},
     ["srun|mistake|torchrun starts 8 on each node, but trainer.devices is 4."]),
    ("torchrun without srun", {**BY_TORCHRUN, START: TORCHRUN.replace("srun --cpus-per-task=32 ", "")},
     ["bash|mistake|torchrun is started without srun", "bash|mistake|--signal=USR2@120 does not reach"]),
    ("torchrun by rank", {**BY_TORCHRUN, START: TORCHRUN.replace("--rdzv-backend=c10d", "--node-rank=$SLURM_PROCID")},
     ["srun|mistake|$SLURM_PROCID is put in by the batch script"]),
    # where they meet
    ("meet here", {"export OMP": "export MASTER_ADDR=127.0.0.1\nexport OMP"},
     ["export|mistake|MASTER_ADDR is 127.0.0.1: on each of 2 nodes that is another machine."]),
    ("one port", {**ARRAY, "export OMP": "export MASTER_PORT=29500 OMP"},
     ["export|mistake|MASTER_PORT is 29500 in all tasks of the array"]),
    # sweeps
    ("array and submitit", {**ARRAY, "-m seed": "-m hydra/launcher=submitit_slurm seed"},
     ["#SBATCH --array|mistake|--array=0-1, and hydra/launcher=submitit_slurm makes a job array too"]),
    ("-m in a step", {**ONE_NODE, '"$@"': "-m seed=0,1,2"},
     ["srun|mistake|-m runs its jobs one after the other by itself, but the step has 8 tasks.|#SBATCH --array=0-2"]),
    ("too long", {**ARRAY, "--array=0-1": "--array=0-2%1"},
     ["#SBATCH --array|mistake|--array=0-2%1 does not fit the 2 jobs of -m, 0 to 1.|#SBATCH --array=0-1%1"]),
    ("a part", {**ARRAY, "--array=0-1": "--array=1"}, ["#SBATCH --array|note|--array=1 does not fit the 2 jobs"]),
    ("the same", {**ARRAY, "-m seed=0,1": ""}, ["#SBATCH --array|note|each task of --array=0-1 runs the same"]),
    ("one log", {**ARRAY, "slurm-%j.log": "log.txt"},
     ["#SBATCH --output|mistake|all tasks of the array write into log.txt."]),
    # the command's own options
    ("value", {"trainer.devices=8": "trainer.devices=8 optim.lr=-1", "--gpus-per-node=8": "--gpus-per-node=4"},
     ["#SBATCH --gpus-per-node|mistake|a node of the job has 4", "srun|mistake|optim.lr is expected"]),
    ("option", {"trainer.devices=8": "trainer.devices=8 optim.lr=-1 nosuch=1"},
     ["srun|mistake|nosuch is not a known key."]),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES])
def test_mistakes(changes: Changes, expected: list[str]) -> None:
    said = found(changed(changes))
    assert len(said) == len(expected), said
    for one, parts in zip(said, expected, strict=True):
        pieces, wanted_pieces = one.split("|"), parts.split("|")
        assert all(piece.startswith(want) for piece, want in zip(pieces, wanted_pieces, strict=False)), one


def test_every_rule_is_in_the_table() -> None:
    """Without any one of them, the table would fail."""
    silent = []
    for rules in ("OF_A_SCRIPT", "OF_A_LAUNCH"):
        for rule in getattr(lint, rules):
            kept = tuple(each for each in getattr(lint, rules) if each is not rule)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(lint, rules, kept)
                alike = all(len(found(changed(changes))) == len(expected) for _, changes, expected in MISTAKES)
            silent += [rule.__name__] if alike else []
    assert silent == []


def test_what_was_typed() -> None:
    """Behind the script's name it is the command's; without "$@" it must stand there."""
    typed = ("optim.lr=0.5",)
    assert found(GOOD, *typed) == []
    (one,) = found(changed({' "$@"': " seed=1"}), *typed)
    assert "this line does not train what was typed: it lacks optim.lr=0.5." in one
    text = changed({"trainer.devices=8 ": "", "--gpus-per-node=8": "--gpus-per-node=4"})
    (one,) = found(text, "trainer.devices=4")
    assert "the step has 16 tasks on 2 nodes, but trainer.devices is 4" in one


def test_what_is_not_known_is_left_alone() -> None:
    text = changed({"--cpus-per-task=4 \\": "$OPTIONS \\", "trainer.devices=8": "data.root=$DATA/x"})
    outcome = lint.lint(text, [], read)
    assert outcome.findings == []
    assert outcome.not_looked_at == ["line 16: $OPTIONS", "line 16: data.root=$DATA/x"]
    text = changed({"trainer.devices=8": "data=imagenet data.root=$DATA", "--gpus-per-node=8": "--gpus-per-node=4"})
    (finding,) = lint.lint(text, [], read).findings
    assert finding.what.startswith("a node of the job has 4 GPUs")
    text = changed({"srun --cpus-per-task=4 \\\n  python": "mpirun -np 16 python"})
    assert lint.lint(text, [], read).not_looked_at == ["line 16: mpirun"]
