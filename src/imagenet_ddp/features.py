"""Compute what the last layer of a trained net receives for each image, in one pass: python -m imagenet_ddp.features
model.weights=DEFAULT data=imagefolder data.root=FOLDER.

The file is used by experiment=probe, by finetuning and by prepare=check, and is kept as long as net, preprocessing and
images are the same. What was interrupted goes on, and images that were added are computed alone.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

from imagenet_ddp.cli import command, overrides, parse
from imagenet_ddp.config.schema.features import FeaturesConfig
from imagenet_ddp.config.schema.learning import CompileConfig
from imagenet_ddp.curation.features import pass_name
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.job import Job, new_config
from imagenet_ddp.launch.processes import begin, run_ranks, share_job
from imagenet_ddp.launch.stored_config import checkpoint_path, from_checkpoint, require_data
from imagenet_ddp.mistakes import Mistake, must_be, setting, without
from imagenet_ddp.runs.disk_errors import disk_errors_as_run_error
from imagenet_ddp.strategies.batch_split import DATA_PARALLEL
from imagenet_ddp.use import evaluate_rank


def main() -> int | None:
    """Return the number of images. Exit codes: 1 after a failure, 2 for a refused command, 128 + n after signal n."""
    with command.run_command("features"):
        return launch(command.request("features"))


def launch(request: parse.Request) -> int | None:
    checkpoint = checkpoint_path(request.config)
    checkpoint = checkpoint and checkpoint.resolve()
    if checkpoint is None:
        require_data(request)
    place, commands = begin(request, os.environ)

    def decide() -> Job:
        if checkpoint is None:
            config = new_config(request, os.environ, FeaturesConfig)
        else:
            config = from_checkpoint(request, checkpoint, os.environ, FeaturesConfig)
        if config.strategy.name in DATA_PARALLEL:
            allowed, got = "ddp or auto for features", config.strategy.name
            raise ConfigError(must_be("strategy.name", allowed, got, setting("strategy=ddp")))
        trainer = config.trainer
        limits = {
            "limit_val_batches": str(trainer.limit_val_batches) not in ("None", "1.0"),  # 1: one batch
            "overfit_batches": trainer.overfit_batches, "fast_dev_run": trainer.fast_dev_run,
        }  # fmt: skip
        if wrong := [f"trainer.{name}" for name, is_limit in limits.items() if is_limit]:
            leave = "leaves" if len(wrong) == 1 else "leave"
            what = f"features must see all images, but {' and '.join(wrong)} {leave} some out"
            raise ConfigError(Mistake(what, tuple(wrong), (without(*wrong),)))
        config = replace(config, compile=CompileConfig())  # a compiled net has no place to read its features
        folder = Path(request.hydra.run.dir) / pass_name(config)
        with disk_errors_as_run_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return Job(config, folder, checkpoint, command=overrides.shell_line("features", sys.argv[1:]))

    job = share_job(commands, decide, request)
    with command.hydra_job(request, job.run_dir):
        return run_ranks(evaluate_rank.features, job, job.config, place, commands)


if __name__ == "__main__":
    main()
