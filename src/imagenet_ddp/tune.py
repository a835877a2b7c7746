"""python -m imagenet_ddp.tune: a study of many trials, each a run of train with options that earlier trials suggest.

Exit codes: 0 done; 1 no trial finished, or too many failed in a row; 2 refused; 128 + n stopped by signal n, to go on
with tune.resume.
"""

import os
import shutil
import subprocess
import sys

from imagenet_ddp import check, session, shell
from imagenet_ddp.distributed import scontrol
from imagenet_ddp.run import folder
from imagenet_ddp.run.signals import Signals
from imagenet_ddp.schema import ConfigError
from imagenet_ddp.tuning import asked, board
from imagenet_ddp.tuning.asked import Plan
from imagenet_ddp.tuning.board import percent, say
from imagenet_ddp.tuning.loop import Loop
from imagenet_ddp.tuning.space import written
from imagenet_ddp.tuning.study import Study

REPORT_S = 300.0


def main() -> None:
    signals = Signals().hold()
    try:
        plan = shell.planned("tune", asked.read, lambda argv: [written(token) for token in argv])
        code = _tune(plan, signals)
        if scontrol.is_due(code - 128, plan.config, os.environ):
            _start_again(plan)
        sys.exit(code)
    except ConfigError as error:
        check.refuse(error)


def _tune(plan: Plan, signals: Signals) -> int:
    locked = folder.lock(plan.folder)
    plan.store()
    study = Study(plan.folder, plan.options, plan.config.seed, plan.parameters, plan.max_epochs)
    num, once = plan.options["num_trials"], len(plan.places)
    say(f"Study folder: {plan.folder}")
    say(f"{num} trials, {once} at once. Sampler: {plan.options['sampler']}, seed {plan.config.seed}. Pruner: "
        f"{plan.options['pruner']}. Each trial is judged by its highest val top-1.")  # fmt: skip
    loop = Loop(plan, study, signals)
    code = loop.run()
    if loop.refused:
        _remove(plan)
        print(*loop.refused, sep="\n", file=sys.stderr)
    if code is None:
        code = _end(plan, study)
    del locked
    return code


def _end(plan: Plan, study: Study) -> int:
    tried = study.tried()
    best = board.best_of(tried)
    say(board.counts(tried))
    if best is None:
        return 1
    print(board.table(tried))
    line = board.write_best(plan.folder / "best.yaml", best,
                            session.command("train", _without_epochs(plan)), plan.max_epochs)  # fmt: skip
    drawn, left_out = study.draw(plan.folder / "figures")
    for text in left_out:
        say(text)
    say(f"Figures: {os.path.relpath(plan.folder)}/figures/ with {', '.join(path.name for path in drawn)}")
    if _report(plan):
        say(f"Leaderboard of all trials, with their curves: {os.path.relpath(plan.folder)}/report.html")
    say(f"Best: trial {best.number}, val top-1 {percent(best.top1)}. Train longer with its options:")
    print(f"  {line}", flush=True)
    return 0


def _report(plan: Plan) -> bool:
    """In a process of its own: it draws for seconds, and a study is not worth less where it cannot."""
    command = [sys.executable, "-m", "imagenet_ddp.report", str(plan.folder), f"out={plan.folder}"]
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, timeout=REPORT_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _start_again(plan: Plan) -> None:
    """After SIGUSR2, which SLURM sends some time before the time limit (sbatch --signal=B:USR2@120)."""
    if plan.options["resume"] is not None:
        scontrol.start_again(os.environ)
    else:
        say("SLURM is not asked to start this job again, which would begin another study. HINT: tune.resume=auto and "
            "hydra.run.dir=FOLDER in the job's command.")  # fmt: skip


def _without_epochs(plan: Plan) -> list[str]:
    return [token for token in plan.train_argv if not (plan.max_epochs and token.startswith("trainer.max_epochs="))]


def _remove(plan: Plan) -> None:
    """Nothing was trained, so nothing is left."""
    if plan.goes_on:
        return
    shutil.rmtree(plan.folder / "trials", ignore_errors=True)
    for name in ("study.db", asked.STORED, ".lock"):
        (plan.folder / name).unlink(missing_ok=True)
    folder.remove_refused(plan.folder, ConfigError(""))


if __name__ == "__main__":
    main()
