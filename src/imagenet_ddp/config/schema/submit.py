"""Declare the keys of submit."""

from dataclasses import field, replace
from typing import Annotated

from imagenet_ddp.config.schema.run import RunConfig
from imagenet_ddp.config.section import Section
from imagenet_ddp.config.validators import Example, integer, matching
from imagenet_ddp.system.text import seconds_in


def _as_slurm_time(value: object) -> str | None:
    """Return a time such as 24h or 90 min as SLURM has it; None for another text."""
    minutes = round(seconds_in(str(value)) or 0) // 60
    return f"{minutes // 60}:{minutes % 60:02}:00" if minutes else None


_SLURM_WORD = matching(r"[^\s-]\S*", "a word")
_SLURM_TIME = replace(
    matching(r"(\d+-)?\d+(:\d+){0,2}", "a time such as 24:00:00 or 2-00:00:00"),
    nearest=_as_slurm_time,
)
_SLURM_OPTIONS = matching(r"-[^\n'\"\\]+", "options of sbatch, without quotes")


class SubmitOptions(Section):
    """Options of sbatch other than nodes and GPUs, which follow from trainer.num_nodes and trainer.devices. null: the
    value in scripts/train.sbatch."""

    partition: Annotated[str | None, _SLURM_WORD, Example("NAME"), "Partition (sbatch --partition)."] = None
    account: Annotated[str | None, _SLURM_WORD, Example("NAME"), "Account (sbatch --account)."] = None
    qos: Annotated[str | None, _SLURM_WORD, Example("NAME"), "Quality of service (sbatch --qos)."] = None
    constraint: Annotated[str | None, _SLURM_WORD, Example("NAME"), "Features of nodes (sbatch --constraint)."] = None
    time: Annotated[str | None, _SLURM_TIME, Example("24:00:00"), "Time limit; a requeued run resumes."] = None
    cpus_per_device: Annotated[
        int | None, integer(1), Example("8"), "CPUs per device; null: data.num_workers + 1 per process, or 8."
    ] = None
    mem_gb_per_device: Annotated[int | None, integer(1), Example("64"), "Memory per device in GB."] = None
    gpu_type: Annotated[str | None, _SLURM_WORD, Example("a100"), "GPU type, as the cluster names it."] = None
    name: Annotated[str | None, _SLURM_WORD, Example("NAME"), "Name of the job; null: the name of the run."] = None
    array_parallelism: Annotated[
        int | None, integer(1), Example("4"), "Concurrent tasks of a job array; null: no limit."
    ] = None
    extra: Annotated[str | None, _SLURM_OPTIONS, Example("--exclusive"), "Further options of sbatch."] = None
    now: Annotated[bool, "Run the sbatch command; false: only show it."] = False


class SubmitConfig(RunConfig):
    submit: SubmitOptions = field(default_factory=SubmitOptions)
