"""Declare the configuration of each command: the groups of `schema` and the command's own keys."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from imagenet_ddp.config.schema.data import DataConfig, LoaderConfig
from imagenet_ddp.config.schema.distributed import ClusterConfig, NcclConfig, StrategyConfig, SweepConfig
from imagenet_ddp.config.schema.learning import (
    AveragingConfig,
    CompileConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    ScheduleConfig,
    TeacherConfig,
)
from imagenet_ddp.config.validators import AUTO, Example, choice, integer, list_of, matching, number

_FOLDER_NAME = matching(r"(?!\.{1,2}$)[^/\\\0]+", "a folder name without / or \\")
_LICENSE = matching(r"[\w.+-]+", "a licence's identifier")
_SLURM_WORD = matching(r"[^\s-]\S*", "a word")
_SLURM_TIME = matching(r"(\d+-)?\d+(:\d+){0,2}", "a time such as 24:00:00 or 2-00:00:00")
_SLURM_OPTIONS = matching(r"-[^\n'\"\\]+", "options of sbatch, without quotes")

METRICS = ("f1", "precision", "recall", "per_class", "auroc", "cohen_kappa", "matthews")  # of models/metrics.py


@dataclass
class CommonConfig:
    """Keys that all commands share."""

    name: Annotated[str, _FOLDER_NAME, Example("my_run"), "Run folders are runs/<name>/<time>."] = (
        "${data.name}_${model.name}"
    )
    seed: Annotated[int, integer(0, 2**32 - 1), "Seed of weights, order of images, augmentation."] = 0
    allow_targets: Annotated[list[str], Example("[mypkg]"), "Packages that a _target_ may name."] = field(
        default_factory=list
    )
    val_log_every_n_steps: Annotated[int, integer(1), "Validation steps between two lines of figures."] = 100
    data: DataConfig = field(default_factory=DataConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    averaging: AveragingConfig = field(default_factory=AveragingConfig)
    compile: CompileConfig = field(default_factory=CompileConfig)
    trainer: Annotated[dict[str, Any], "Keys of Lightning's Trainer."] = field(default_factory=dict)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    nccl: NcclConfig = field(default_factory=NcclConfig)
    callbacks: Annotated[dict[str, Any], "Name of a callback: {_target_: ..., arguments}."] = field(
        default_factory=dict
    )
    logger: Annotated[dict[str, Any], "Name of a logger: {_target_: ..., arguments}."] = field(default_factory=dict)


@dataclass
class RunConfig(CommonConfig):
    """Keys of train that the commands around it take too."""

    sweep: SweepConfig = field(default_factory=SweepConfig)
    resume: Annotated[
        str | None, Example("auto"), "Run folder or checkpoint to resume; auto: this run's last one, if any."
    ] = None


@dataclass
class TrainConfig(RunConfig):
    show: Annotated[
        str | None,
        choice("augmented"),
        Example("augmented"),
        "augmented: only write train_batch.png, do not train.",
    ] = None


@dataclass
class EvaluateConfig(CommonConfig):
    checkpoint: Annotated[str, Example("FILE"), "Checkpoint written by train."] = MISSING
    predictions: Annotated[
        str, choice("csv", "parquet", "none"), "File of each image's prediction: predictions.csv or .parquet, or none."
    ] = "csv"
    metrics: Annotated[
        list[str] | None,
        list_of(choice(*METRICS), f"a list of {', '.join(METRICS)}"),
        Example("[f1,auroc]"),
        f"Further metrics: {', '.join(METRICS)}.",
    ] = None
    classes: Annotated[
        str, choice("all", "subset"), "Classes that may be predicted: all of the checkpoint's, or those of the data."
    ] = "all"
    real_labels: Annotated[
        str | None,
        Example("real.json"),
        "File of ImageNet's reassessed labels (ReaL), against which top-1 is computed too.",
    ] = None


@dataclass
class DoctorConfig(RunConfig):
    format: Annotated[str, choice("text", "json"), Example("json"), "Output: text, or json for scripts."] = "text"


@dataclass
class PredictConfig(CommonConfig):
    checkpoint: Annotated[str, Example("FILE"), "Checkpoint written by train."] = MISSING
    images: Annotated[str, "A file, a folder (searched recursively) or a pattern."] = MISSING
    out: Annotated[str | None, "File to write, *.png: a contact sheet; null: standard output."] = None
    format: Annotated[str, choice("csv", "jsonl"), "Format of the output."] = "csv"
    explain: Annotated[
        str | None,
        choice("layercam", "gradcam"),
        Example("layercam"),
        "Contact sheet: method for a second picture that shows where the first class was found; null: none.",
    ] = None
    top_k: Annotated[int, integer(1), "Classes per image, most likely first."] = 5


@dataclass
class DemoConfig(CommonConfig):
    checkpoint: Annotated[str, Example("FILE"), "Checkpoint written by train, or an exported file."] = MISSING
    host: Annotated[str, "Address to listen on; 0.0.0.0: every machine of the network can use it."] = "127.0.0.1"
    port: Annotated[int, integer(1, 65535), "Port to listen on."] = 7860


@dataclass
class ExportConfig(CommonConfig):
    checkpoint: Annotated[str, Example("FILE"), "Checkpoint written by train."] = MISSING
    format: Annotated[
        str, choice("onnx", "torch_export", "safetensors"), "onnx; torch_export: .pt2; safetensors: weights only."
    ] = "onnx"
    out: Annotated[str | None, Example("model.onnx"), "File to write; null: export/model.* in the run folder."] = None
    preprocessing: Annotated[
        str | None,
        choice("inside", "normalise", "outside"),
        Example("normalise"),
        "Input: inside (null): uint8 of any size; normalise: uint8 of image_size; outside: normalised, logits out.",
    ] = None
    batch_size: Annotated[int | None, integer(1), Example("8"), "Fixed batch size of the file; null: any."] = None
    images: Annotated[
        str | None,
        Example("FOLDER"),
        "Images to compare on, in predict's form; null: the checkpoint's validation images.",
    ] = None
    num_images: Annotated[int, integer(1), "Images to compare on; int8: and to calibrate on."] = 256
    max_difference: Annotated[
        float,
        number(above=0),
        "Largest allowed difference of a probability from the checkpoint's; above it, no file is kept.",
    ] = 1e-3
    int8: Annotated[bool, Example("true"), "onnx: 8-bit weights and activations, calibrated on training images."] = (
        False
    )
    card: Annotated[bool, Example("false"), "Write the model card README.md beside the file."] = True
    license: Annotated[str | None, _LICENSE, Example("apache-2.0"), "Licence for metadata and model card."] = None
    overwrite: Annotated[bool, Example("true"), "Replace an existing file and the model card of an earlier export."] = (
        False
    )


@dataclass
class TuneOptions:
    num_trials: Annotated[int, integer(1), "Trials of the whole study, pruned and failed ones included."] = 20
    num_at_once: Annotated[int, integer(1), "Concurrent trials, each with its share of GPUs and CPU cores."] = 1
    launcher: Annotated[
        str, choice("auto", "local", "srun"), "srun: one step per trial; auto: srun in an allocation."
    ] = "auto"
    resume: Annotated[str | None, "Folder of a study to resume; auto: the newest unfinished one, else a new one."] = (
        None
    )
    sampler: Annotated[str, choice("tpe", "random"), "tpe learns from earlier trials."] = "tpe"
    num_random_trials: Annotated[int, integer(1), "tpe: random trials before it learns."] = 10
    pruner: Annotated[str, choice("median", "none"), "Which trials end early."] = "median"
    pruner_num_trials: Annotated[int, integer(1), "Trials that finish before any is pruned."] = 4
    pruner_num_epochs: Annotated[int, integer(1), "Epochs before a trial may be pruned."] = 3
    timeout_s: Annotated[float | None, number(above=0), Example("3600"), "Seconds after which no trial is started."] = (
        None
    )
    max_failures: Annotated[int, integer(1), "Failed trials in a row that end the study."] = 3


@dataclass
class TuneConfig(RunConfig):
    tune: TuneOptions = field(default_factory=TuneOptions)
    search: Annotated[dict[str, Any], "Key: {low: A, high: B, log, step} or [A,B]; see docs/tuning.md."] = field(
        default_factory=dict
    )


@dataclass
class SubmitOptions:
    """Options of sbatch besides nodes and GPUs (trainer.num_nodes, trainer.devices). null: as in the script."""

    partition: Annotated[str | None, _SLURM_WORD, Example("NAME"), "sbatch --partition."] = None
    account: Annotated[str | None, _SLURM_WORD, Example("NAME"), "sbatch --account."] = None
    qos: Annotated[str | None, _SLURM_WORD, Example("NAME"), "sbatch --qos."] = None
    constraint: Annotated[str | None, _SLURM_WORD, Example("NAME"), "sbatch --constraint: features of the nodes."] = (
        None
    )
    time: Annotated[str | None, _SLURM_TIME, Example("24:00:00"), "Time limit of one job; a requeued run resumes."] = (
        None
    )
    cpus_per_device: Annotated[
        int | None, integer(1), Example("8"), "CPUs per process; null: data.num_workers + 1, or 8 where that is auto."
    ] = None
    mem_gb_per_device: Annotated[int | None, integer(1), Example("64"), "Memory per process in GB."] = None
    gpu_type: Annotated[str | None, _SLURM_WORD, Example("a100"), "GPU type, as the cluster names it."] = None
    name: Annotated[str | None, _SLURM_WORD, Example("NAME"), "Name of the job; null: that of the run."] = None
    array_parallelism: Annotated[
        int | None, integer(1), Example("4"), "Concurrent tasks of a job array; null: no limit."
    ] = None
    extra: Annotated[str | None, _SLURM_OPTIONS, Example("--exclusive"), "Further options of sbatch."] = None
    now: Annotated[bool, Example("true"), "Run the command."] = False


@dataclass
class SubmitConfig(RunConfig):
    submit: SubmitOptions = field(default_factory=SubmitOptions)


@dataclass
class PrepareOptions:
    name: Annotated[str, choice("imagenet", "pack", "check"), "What to do."] = MISSING
    num_workers: Annotated[Any, AUTO | integer(1), "Processes; auto: the cores of this machine."] = "auto"
    timeout_s: Annotated[
        float, number(above=0), Example("60"), "check: seconds after which an image counts as bad."
    ] = 60.0
    memory_mib: Annotated[int, integer(64), "check: memory limit for one image in MiB."] = 4096
    short_side: Annotated[
        int, integer(0), Example("256 (0: as it is)"), "pack: pixels of the short side, never enlarged; 0: as it is."
    ] = 256
    quality: Annotated[int, integer(1, 100), "pack: JPEG quality."] = 90
    form: Annotated[str, choice("jpeg", "raw"), "pack: jpeg, or raw (uint8 pixels)."] = "jpeg"
    shard_mib: Annotated[int, integer(1), "pack: approximate size of one file in MiB."] = 64


@dataclass
class PrepareConfig(CommonConfig):
    name: Annotated[str, _FOLDER_NAME, Example("my_run"), "The report of check is in runs/<name>/check_<time>."] = (
        "${data.name}"
    )
    prepare: PrepareOptions = field(default_factory=PrepareOptions)
    archive_dir: Annotated[str | None, "imagenet: folder of the archives."] = None
    out: Annotated[str | None, "Folder to write."] = None


BENCHMARKS = ("loader", "step", "train", "start", "strategies", "profile")


@dataclass
class BenchmarkOptions:
    name: Annotated[str, choice(*BENCHMARKS), "What to measure."] = MISSING
    num_images: Annotated[int, integer(8), "loader, train: training images that are read, evenly from all."] = 500
    num_steps: Annotated[int, integer(1), "Training steps of each measurement."] = 20
    repeats: Annotated[int, integer(1), "Repetitions of each measurement; the median is reported."] = 5
    num_workers: Annotated[
        list[int] | None,
        list_of(integer(0), "a list of numbers of loader processes"),
        Example("[0,1,2]"),
        "loader: numbers of loader processes to compare; null: 0, 1, 2, 4, ... up to the cores.",
    ] = None
    short_side: Annotated[int, integer(8), "loader: pixels of the short side of the packed images."] = 256
    quality: Annotated[int, integer(1, 100), "loader: JPEG quality of the packed images."] = 90
    model: Annotated[bool, Example("true"), "loader: measure the model's own speed too."] = True


@dataclass
class BenchmarkConfig(CommonConfig):
    benchmark: BenchmarkOptions = field(default_factory=BenchmarkOptions)


USE_MODEL = ("predict", "export", "demo")  # commands that take a model's file, and need no data set
COMMANDS: dict[str, type] = {
    "train": TrainConfig,
    "evaluate": EvaluateConfig,
    "predict": PredictConfig,
    "export": ExportConfig,
    "demo": DemoConfig,
    "doctor": DoctorConfig,
    "tune": TuneConfig,
    "submit": SubmitConfig,
    "prepare": PrepareConfig,
    "benchmark": BenchmarkConfig,
}


def register(command: str) -> None:
    """Store the typed node under schema/<command>, where conf/<command>.yaml finds it. Only this one: Hydra copies the
    whole store about a hundred times for --help, and three nodes would cost a third of a second."""
    ConfigStore.instance().store(group="schema", name=command, package="_global_", node=COMMANDS[command])
