"""The time limit and the next turn: is the run saved, started again, and its log kept?"""

from collections.abc import Iterator

from imagenet_ddp.submitting.case import Case, Finding

_LINE = "#SBATCH --signal=USR2@120"


def signal(case: Case) -> Iterator[Finding]:
    """SLURM signals the steps; with B: the batch shell alone, which passes nothing on."""
    option, script = case.script.option("signal"), case.script
    if case.launch.verb not in ("train", "tune"):
        return
    if option is None:
        what = "without --signal the run is ended by its time limit with nothing saved since the last checkpoint."
        yield Finding(script.line_of("time"), what, _LINE)
        return
    to, _, rest = option.value.rpartition(":")
    name = rest.partition("@")[0].upper().removeprefix("SIG")
    if name not in ("USR2", "12"):
        more = " NCCL may catch USR1." if name in ("USR1", "10") else ""
        hint = f"#SBATCH --signal={f'{to}:' if to else ''}USR2@{rest.partition('@')[2] or '120'}"
        yield Finding(option.line, f"{option.text}: a run saves itself on SIGUSR2, not on SIG{name}.{more}", hint)
    if case.launch.verb == "tune" or case.launch.command.exec:
        return
    to_shell = "B" in to.upper()
    if case.launch.srun is not None and to_shell and not script.traps(script.commands):
        what = f"{option.text} signals the batch shell only, which neither traps USR2 nor passes it on to the step."
        yield Finding(option.line, what, f"#SBATCH --signal=USR2@{rest.partition('@')[2] or '120'}")
    if case.launch.srun is None and not script.traps(script.commands):
        what = f"{option.text} does not reach a command that is started without srun."
        yield Finding(case.line, what, "srun --ntasks=1 ...")


def torchrun(case: Case) -> Iterator[Finding]:
    if case.launch.torchrun is None or case.launch.verb != "train" or case.script.option("signal") is None:
        return
    if not case.script.traps([*case.launch.inner, *case.script.commands]):
        what = "torchrun dies of SIGUSR2, which its workers save themselves on."
        yield Finding(case.line, what, 'srun ... bash -c \'trap "" USR2; exec "$@"\' torchrun torchrun ...')


def requeue(case: Case) -> Iterator[Finding]:
    script = case.script
    again, never, asks = script.option("requeue"), script.option("no-requeue"), script.option("signal")
    if case.launch.verb != "train" or asks is None:
        return
    if never:
        what = f"{asks.text} has the run saved, but --no-requeue keeps it from being started again."
        yield Finding(never.line, what, "#SBATCH --requeue, where it shall go on by itself.", is_mistake=False)
    elif again is None:
        what = "whether the run is started again after its time limit hangs on the cluster's JobRequeue."
        yield Finding(asks.line, what, "#SBATCH --requeue", is_mistake=False)


def log(case: Case) -> Iterator[Finding]:
    script = case.script
    mode, output = script.option("open-mode"), script.option("output")
    if script.option("requeue") and (mode is None or not mode.value.startswith("a")):
        what = "the next turn overwrites the log of the one before."
        yield Finding(mode.line if mode else script.line_of("requeue"), what, "#SBATCH --open-mode=append")
    if case.in_array and output and not any(sign in output.value for sign in ("%a", "%j")):
        what = f"all tasks of the array write into {output.value}."
        yield Finding(output.line, what, "#SBATCH --output=slurm-%A_%a.log")


RULES = (signal, torchrun, requeue, log)
