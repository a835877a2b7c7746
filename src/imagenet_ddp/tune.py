"""python -m imagenet_ddp.tune: a study of many trials, each a run of train with options that earlier trials suggest.

Exit codes: 0 done; 1 no trial finished, or too many failed in a row; 2 refused; 128 + n stopped by signal n, to be
resumed with tune.resume.
"""

import os
import shutil
import sys

import yaml

from imagenet_ddp import check, session, shell
from imagenet_ddp.distributed import scontrol
from imagenet_ddp.run import folder
from imagenet_ddp.run.signals import Signals
from imagenet_ddp.schema import ConfigError
from imagenet_ddp.tuning import plan as plans
from imagenet_ddp.tuning.loop import Loop, say
from imagenet_ddp.tuning.plan import Plan
from imagenet_ddp.tuning.space import written
from imagenet_ddp.tuning.study import Study
from imagenet_ddp.writing import write_whole


def main() -> None:
    signals = Signals().hold()
    try:
        plan = shell.planned("tune", plans.read, lambda argv: [written(token) for token in argv])
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
    say(study.counts())
    best = study.best()
    if best is None:
        return 1
    number, trial = best
    options, top1 = trial.user_attrs["options"], trial.values[0]
    longer = [f"trainer.max_epochs={2 * plan.max_epochs}"] if plan.max_epochs else []
    kept = [token for token in plan.train_argv if not (longer and token.startswith("trainer.max_epochs="))]
    line = session.command("train", [*kept, *options, *longer])
    content = {
        "trial": number, "val/top1": top1, "epoch": trial.user_attrs["epoch"], "options": options, "train_longer": line,
    }  # fmt: skip
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)
    write_whole(plan.folder / "best.yaml", f"# The finished trial with the highest val top-1.\n{text}")
    where = os.path.relpath(plan.folder)
    drawn, failed = study.draw(plan.folder / "figures")
    for sentence in failed:
        say(sentence)
    if drawn:
        say(f"Figures: {where}/figures/ with {', '.join(drawn)}")
    print(f"Leaderboard: {session.command('report', [where])}")
    say(f"Best: trial {number}, val top-1 {100 * top1:.2f} %. Train longer with its options:")
    print(f"  {line}", flush=True)
    return 0


def _start_again(plan: Plan) -> None:
    """Requeue after SIGUSR2, which SLURM sends some time before the time limit (sbatch --signal=B:USR2@120)."""
    if plan.options["resume"] is not None:
        scontrol.start_again(os.environ)
    else:
        say("SLURM is not asked to start this job again, which would begin another study. HINT: tune.resume=auto and "
            "hydra.run.dir=FOLDER in the job's command.")  # fmt: skip


def _remove(plan: Plan) -> None:
    """Leave no folder behind where nothing was trained."""
    if plan.resumes:
        return
    shutil.rmtree(plan.folder / "trials", ignore_errors=True)
    for name in ("study.db", plans.STORED, ".lock"):
        (plan.folder / name).unlink(missing_ok=True)
    folder.remove_refused(plan.folder, ConfigError(""))


if __name__ == "__main__":
    main()
