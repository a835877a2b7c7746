"""Search hyper-parameters with a study of trials, each of which is a run of train: python -m imagenet_ddp.tune.

Exit codes: 0 success; 1 no trial finished, or too many trials failed in a row; 2 refused (ConfigError); 128 + n stopped
by signal n, after which tune.resume resumes the study.
"""

import os
import shutil
import sys

from imagenet_ddp.cli import command
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.signals import Signals
from imagenet_ddp.system import console
from imagenet_ddp.system.text import first_line
from imagenet_ddp.tune.options import STORED, Plan, read
from imagenet_ddp.tune.space import as_override


def main() -> None:
    signals = Signals().install()
    try:
        plan = command.planned("tune", [as_override(token) for token in sys.argv[1:]], read)
        with folder.folder_errors_as_run_error(plan.folder):
            code = _tune(plan, signals)
        if slurm.should_requeue(code - 128, plan.config, os.environ):
            _requeue(plan)
        sys.exit(code)
    except ConfigError as error:
        command.refuse(error, "tune")
    except RunError as error:
        console.print_message(str(error))
        sys.exit(1)


def _tune(plan: Plan, signals: Signals) -> int:
    # imported here because they need Optuna, but --help does not
    from optuna.exceptions import StorageInternalError

    from imagenet_ddp.tune.loop import Loop

    with folder.lock(plan.folder):
        plan.store()
        try:
            loop = Loop(plan, signals)
            code = loop.run()
        except StorageInternalError as error:  # of sqlite
            raise RunError(
                f"{plan.folder / 'study.db'} cannot be read or written: {first_line(error.__cause__ or error)}. "
                f"Hint: make room there, then set tune.resume={plan.folder}."
            ) from error
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
        slurm.requeue_and_print(os.environ)
    else:
        print("This job is not requeued, because it would start another study. Hint: add tune.resume=auto "
              "and hydra.run.dir=FOLDER to the job's command.")  # fmt: skip


if __name__ == "__main__":
    main()
