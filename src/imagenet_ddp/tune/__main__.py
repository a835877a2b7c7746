"""Search hyper-parameters with a study of trials, each of which is a run of train: python -m imagenet_ddp.tune.

Exit codes: 0 success; 1 no trial finished, or too many trials failed in a row; 2 refused (ConfigError); 128 + n stopped
by signal n, after which the same command with the study's folder as hydra.run.dir resumes it.
"""

import os
import sys

from imagenet_ddp.cli import command
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.errors import RunError
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.disk_errors import folder_errors_as_run_error
from imagenet_ddp.runs.signals import Signals
from imagenet_ddp.system.process import use_utf8
from imagenet_ddp.system.text import first_line
from imagenet_ddp.tune.search_space import as_overrides
from imagenet_ddp.tune.study_plan import StudyPlan, checked, read


def main() -> None:
    use_utf8()
    signals = Signals().install()
    with command.exit_codes("tune", lambda argv: checked(as_overrides(argv), os.environ)):
        plan = command.planned("tune", as_overrides(sys.argv[1:]), read)
        with folder_errors_as_run_error(plan.folder), folder.lock(plan.folder):
            code = _run(plan, signals)
        # SLURM sends one before the time limit (sbatch --signal=B:USR2@120)
        if plan.requeue and slurm.asks_for_restart(code - 128, os.environ):
            slurm.requeue_and_print(os.environ)
        sys.exit(code)


def _run(plan: StudyPlan, signals: Signals) -> int:
    # imported here because they need Optuna, but --help does not
    from optuna.exceptions import StorageInternalError

    from imagenet_ddp.tune.study import Study

    try:
        return Study(plan, signals).run()
    except StorageInternalError as error:  # of sqlite
        raise RunError(
            f"{plan.folder / 'study.db'} cannot be read or written: {first_line(error.__cause__ or error)}. "
            "Hint: make room there, then run the same command with that folder as hydra.run.dir."
        ) from error


if __name__ == "__main__":
    main()
