"""Search hyper-parameters with a study of trials, each of which is a run of train: python -m imagenet_ddp.tune.

Exit codes: 0 success; 1 no trial finished, or too many trials failed in a row; 2 refused (ConfigError); 128 + n stopped
by signal n, after which tune.resume resumes the study.
"""

import os
import shutil
import sys

from imagenet_ddp.cli import command, mistakes
from imagenet_ddp.distributed.launchers import slurm_requeue
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.signals import Signals
from imagenet_ddp.tune.options import STORED, Plan, read
from imagenet_ddp.tune.space import as_override


def main() -> None:
    signals = Signals().install()
    try:
        plan = command.planned("tune", [as_override(token) for token in sys.argv[1:]], read)
        code = _tune(plan, signals)
        if slurm_requeue.should_requeue(code - 128, plan.config, os.environ):
            _requeue(plan)
        sys.exit(code)
    except ConfigError as error:
        mistakes.refuse(error, "tune")


def _tune(plan: Plan, signals: Signals) -> int:
    from imagenet_ddp.tune.loop import Loop  # imported here because it needs Optuna, but --help does not

    with folder.lock(plan.folder):
        plan.store()
        loop = Loop(plan, signals)
        code = loop.run()
        if loop.refused:
            print(*loop.refused, sep="\n", file=sys.stderr)
            if not plan.resumes:  # nothing was trained
                shutil.rmtree(plan.folder / "trials", ignore_errors=True)
                for name in ("study.db", STORED, ".lock"):
                    (plan.folder / name).unlink(missing_ok=True)
                folder.remove_refused(plan.folder, ConfigError(""))
        return code


def _requeue(plan: Plan) -> None:
    """Requeue the job after SIGUSR2, which SLURM sends before the time limit (sbatch --signal=B:USR2@120). Without
    tune.resume, print how to make the job resumable instead."""
    if plan.options["resume"] is not None:
        slurm_requeue.requeue_and_print(os.environ)
    else:
        print("This job is not requeued, because it would start another study. Hint: add tune.resume=auto "
              "and hydra.run.dir=FOLDER to the job's command.")  # fmt: skip


if __name__ == "__main__":
    main()
