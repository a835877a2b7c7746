"""Declare the configuration of each command: groups of this package, and the keys of the command itself."""

import functools
from dataclasses import field
from typing import Annotated, Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from imagenet_ddp.config.schema.data import DataConfig, Purpose, TransformConfig
from imagenet_ddp.config.schema.distributed import ClusterConfig, NcclConfig, StrategyConfig, SweepConfig
from imagenet_ddp.config.schema.learning import (
    AveragingConfig,
    CompileConfig,
    ModelConfig,
    ModuleConfig,
    TeacherConfig,
)
from imagenet_ddp.config.schema.losses import CrossEntropy, LossConfig
from imagenet_ddp.config.schema.optimizers import SGD, OptimConfig
from imagenet_ddp.config.schema.schedules import ScheduleConfig, Step
from imagenet_ddp.config.schema.trainer import TrainerConfig
from imagenet_ddp.config.section import Section, with_all_keys
from imagenet_ddp.config.validators import AUTO, Example, PerMachine, choice, integer, list_of, matching, number

# the rule of huggingface_hub's validate_repo_id
_REPOSITORY = matching(
    r"(?a)hf://(?!.*(?:--|\.\.|\.git$))\w(?:[\w.-]*\w)?/\w(?:[\w.-]{0,94}\w)?",
    "hf://OWNER/NAME, a repository of the hub",
)
_FOLDER_NAME = matching(r"(?!\.{1,2}$)[^/\\\0]+", "a folder name without / or \\")
_LICENSE = matching(r"[\w.+-]+", "a licence's identifier")
_SLURM_WORD = matching(r"[^\s-]\S*", "a word")
_SLURM_TIME = matching(r"(\d+-)?\d+(:\d+){0,2}", "a time such as 24:00:00 or 2-00:00:00")
_SLURM_OPTIONS = matching(r"-[^\n'\"\\]+", "options of sbatch, without quotes")

_CHECKPOINT = "Checkpoint or run folder of train, or weights of another program, with model.name; null: model.weights."
# Further metrics of evaluate: name -> (class of torchmetrics.classification, its arguments). macro is the mean over the
# classes that occur as label or prediction. auroc is computed for each class in use/further_metrics.py.
METRICS: dict[str, tuple[str, dict[str, Any]]] = {
    "f1": ("MulticlassF1Score", {"average": "macro"}),
    "f1_weighted": ("MulticlassF1Score", {"average": "weighted"}),
    "precision": ("MulticlassPrecision", {"average": "macro"}),
    "recall": ("MulticlassRecall", {"average": "macro"}),
    "per_class": ("MulticlassAccuracy", {"average": "none"}),
    "auroc": ("BinaryAUROC", {}),
    "cohen_kappa": ("MulticlassCohenKappa", {}),
    "matthews": ("MulticlassMatthewsCorrCoef", {}),
}


class CommonConfig(Section):
    """Keys that all commands share."""

    name: Annotated[str, _FOLDER_NAME, Example("my_run"), "Name of the run, whose folder is runs/<name>/<time>."] = (
        "${data.name}_${model.name}"
    )
    seed: Annotated[int, integer(0, 2**32 - 1), "Seed of weights, image order and augmentation."] = 0
    allow_targets: Annotated[
        list[str],
        Example("[mypkg.nets.Small]"),
        "Classes that a checkpoint may name in a _target_, beside those of this program.",
    ] = field(default_factory=list[str])
    budget_min: Annotated[
        float | None,
        number(above=0),
        Example("10"),
        "Minutes for a run from model.weights; epochs, up to trainer.max_epochs, and images are chosen to fit.",
    ] = None
    val_log_every_n_steps: Annotated[int, integer(1), "Validation steps between two lines of metrics."] = 100
    csv_delimiter: Annotated[
        str,
        choice("comma", "semicolon", "tab"),
        "Between the cells of CSV files for people; spreadsheets of countries with decimal commas want a semicolon.",
    ] = "comma"
    data: DataConfig = field(default_factory=DataConfig)
    transform: TransformConfig = field(default_factory=TransformConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=SGD)
    schedule: ScheduleConfig = field(default_factory=Step)
    loss: LossConfig = field(default_factory=CrossEntropy)
    module: ModuleConfig = field(default_factory=ModuleConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    averaging: AveragingConfig = field(default_factory=AveragingConfig)
    compile: CompileConfig = field(default_factory=CompileConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    nccl: NcclConfig = field(default_factory=NcclConfig)
    callbacks: Annotated[dict[str, Any], "Callbacks, each as NAME: {_target_: CLASS, further arguments}."] = field(
        default_factory=dict[str, Any]
    )
    logger: Annotated[dict[str, Any], "Loggers, each as NAME: {_target_: CLASS, further arguments}."] = field(
        default_factory=dict[str, Any]
    )

    @property
    def purpose(self) -> Purpose | None:
        """What the command wants the images of data for; None if it needs no data set."""
        return Purpose.TRAIN


class RunConfig(CommonConfig):
    """Keys of train, doctor, tune and submit."""

    sweep: SweepConfig = field(default_factory=SweepConfig)
    resume: Annotated[
        str | None,
        Example("auto"),
        PerMachine(),
        "Run folder or checkpoint to resume; auto: the newest unfinished run of this name and these options.",
    ] = None


class TrainedConfig(CommonConfig):
    """Keys of the commands that read a trained net."""

    checkpoint: Annotated[str | None, Example("FILE"), PerMachine(), _CHECKPOINT] = None

    @property
    def purpose(self) -> Purpose | None:
        return None


class EvaluateConfig(TrainedConfig):
    predictions: Annotated[str, choice("csv", "none"), "Write predictions.csv, a row per image."] = "csv"
    metrics: Annotated[
        list[str] | None,
        list_of(choice(*METRICS), f"a list of {', '.join(METRICS)}"),
        Example("[f1,auroc]"),
        "Further metrics (docs/evaluating.md).",
    ] = None
    classes: Annotated[
        str, choice("all", "subset"), "Classes that may be predicted: all, or those of the data set."
    ] = "all"
    real_labels: Annotated[
        str | None, Example("real.json"), "File of ImageNet's reassessed labels (ReaL), for a second top-1."
    ] = None

    @property
    def purpose(self) -> Purpose:
        return Purpose.EVALUATE


class FeaturesConfig(TrainedConfig):
    out: Annotated[
        str | None,
        matching(r"(?s).+\.(npz|parquet)", "a file that ends in .npz or .parquet"),
        Example("features.npz"),
        PerMachine(),
        "Also write the file here; null: only in runs/features, where the other commands find it.",
    ] = None

    @property
    def purpose(self) -> Purpose:
        return Purpose.CHECK


class PredictConfig(TrainedConfig):
    images: Annotated[str, Example("FOLDER"), "Images: a file, a folder (searched recursively) or a pattern."] = MISSING
    out: Annotated[str | None, "File to write; null: standard output."] = None
    format: Annotated[
        str,
        choice("auto", "csv", "jsonl", "xlsx", "html"),
        "One row of CSV or Excel, or one line of JSON, per image, or a page with the pictures (html); auto: by the "
        "suffix of out, else csv, and words on a terminal.",
    ] = "auto"
    top_k: Annotated[int, integer(1), "Number of classes per image, most likely first."] = 5
    label_next: Annotated[
        int | None,
        integer(1),
        Example("50"),
        "Write only this many images, those to label next: uncertain, and unlike each other; null: all images. "
        "prepare=relabel reads the list.",
    ] = None


class DemoConfig(TrainedConfig):
    checkpoint: Annotated[str | None, Example("FILE"), _CHECKPOINT.replace(",", ", exported file,", 1)] = None
    host: Annotated[str, "Address to listen on; 0.0.0.0: the whole network can open the page."] = "127.0.0.1"
    port: Annotated[int, integer(1, 65535), "Port to listen on."] = 7860


class ExportConfig(TrainedConfig):
    format: Annotated[
        str | None,
        "onnx, onnx_fp16 (half the size), openvino, torch_export (.pt2), safetensors (weights only), or html (a page "
        "that classifies pictures in a browser); null: onnx, with push safetensors.",
    ] = None
    out: Annotated[
        str | None,
        Example("model.onnx"),
        "File to write; null: export/model.* in the run folder, with push in export/hub/.",
    ] = None
    push: Annotated[
        str | None,
        _REPOSITORY,
        Example("hf://OWNER/NAME"),
        "Repository of the Hugging Face hub to upload the file, config.json and the model card to.",
    ] = None
    preprocessing: Annotated[
        str | None,
        choice("inside", "normalise", "outside"),
        Example("normalise"),
        "Steps in the exported graph: inside (null), normalise or outside; see docs/export.md.",
    ] = None
    batch_size: Annotated[int | None, integer(1), Example("8"), "Fixed batch size of the model; null: any."] = None
    images: Annotated[str | None, Example("FOLDER"), "Images for the comparison; null: the validation images."] = None
    num_images: Annotated[int, integer(1), "Number of images for the comparison."] = 256
    max_difference: Annotated[
        float | None,
        number(above=0),
        Example("0.01"),
        "Largest difference of probabilities; null: 0.02 for onnx_fp16, 0.01 for html or a resizing onnx, else 0.001.",
    ] = None
    card: Annotated[bool, "Write the model card README.md and the program classify.py beside the file."] = True
    license: Annotated[str | None, _LICENSE, Example("apache-2.0"), "Licence to state in the model card."] = None
    overwrite: Annotated[bool, "Replace an existing file and the model card of an earlier export."] = False


class TuneOptions(Section):
    num_trials: Annotated[int, integer(1), "Trials, including pruned and failed ones."] = 20
    num_at_once: Annotated[int, integer(1), "Concurrent trials, each with its share of GPUs and CPU cores."] = 1
    sampler: Annotated[str, choice("tpe", "random"), "How options are suggested; tpe learns from trials."] = "tpe"
    num_random_trials: Annotated[int, integer(1), "tpe: random trials at the start."] = 10
    pruner: Annotated[
        str, choice("median", "none"), "median: end a trial that is below the median of earlier ones at the same epoch."
    ] = "median"
    pruner_num_trials: Annotated[int, integer(1), "Trials that must finish before any is pruned."] = 4
    pruner_num_epochs: Annotated[int, integer(1), "Epochs before a trial may be pruned."] = 3
    timeout_s: Annotated[
        float | None, number(above=0), Example("3600"), "Seconds after which no further trial starts; null: no limit."
    ] = None
    max_failures: Annotated[int, integer(1), "Consecutive failed trials that end the study."] = 3


class TuneConfig(RunConfig):
    tune: TuneOptions = field(default_factory=TuneOptions)
    search: Annotated[dict[str, Any], "Keys to search (docs/tuning.md)."] = field(default_factory=dict[str, Any])


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


class PrepareOptions(Section):
    name: Annotated[
        str,
        choice("imagenet", "pack", "import", "check", "relabel"),
        "imagenet: extract ImageNet's archives; pack: write packed images; import: the same, of Parquet or tar files; "
        "check: decode every image; relabel: correct labels, or give them, as a list says.",
    ] = MISSING
    num_workers: Annotated[
        Any, AUTO | integer(1), "pack, import, check: number of processes; auto: one per CPU core."
    ] = "auto"
    timeout_s: Annotated[
        float, number(above=0), "pack, import, check: seconds after which an image counts as unreadable."
    ] = 60.0
    short_side: Annotated[int, integer(0), "pack, import: largest short side in pixels; 0: the original size."] = 256
    quality: Annotated[int, integer(1, 100), "pack, import: JPEG quality."] = 90
    form: Annotated[str, choice("jpeg", "raw"), "pack, import: store images as jpeg, or raw as uint8 pixels."] = "jpeg"
    shard_mib: Annotated[int, integer(1), "pack, import: approximate size of one file in MiB."] = 64


class PrepareConfig(CommonConfig):
    name: Annotated[str, _FOLDER_NAME, Example("my_run"), "check: the report is in runs/<name>/check_<time>."] = (
        "${data.name}"
    )
    prepare: PrepareOptions = field(default_factory=PrepareOptions)
    archive_dir: Annotated[str | None, "imagenet, import: folder of the archives."] = None
    labels: Annotated[
        str | None,
        Example("FILE.csv"),
        "import: table with the columns path and label, for tar files without class folders; null: ImageNet's devkit "
        "or Kaggle's list in archive_dir.",
    ] = None
    names: Annotated[
        str | None, Example("FILE"), "import: names of the classes, one per line; null: those in the Parquet files."
    ] = None
    decisions: Annotated[
        str | None, "relabel: list of a check, or of predict's label_next, with your decisions, CSV."
    ] = None
    unlabelled: Annotated[
        str | None,
        Example("FOLDER"),
        "relabel: folder of images without labels, which the list may move into the class folders.",
    ] = None
    undo: Annotated[bool, "relabel: take the decisions of the list back."] = False
    out: Annotated[str | None, "Folder to write."] = None

    @property
    def purpose(self) -> Purpose:
        return {"check": Purpose.CHECK, "relabel": Purpose.RELABEL}.get(self.prepare.name, Purpose.TRAIN)


BENCHMARKS = ("loader", "train", "step")


class BenchmarkOptions(Section):
    name: Annotated[str, choice(*BENCHMARKS), "What to measure."] = MISSING
    num_images: Annotated[int, integer(8), "loader, train: number of training images to read."] = 500
    num_steps: Annotated[int, integer(1), "Training steps in each measurement."] = 20
    repeats: Annotated[int, integer(1), "Repetitions of each measurement; the median is reported."] = 5
    num_workers: Annotated[
        list[int] | None,
        list_of(integer(0), "a list of numbers of loader processes"),
        Example("[0,1,2]"),
        "loader: numbers to compare; null: 0, 1, 2, 4, ... up to the number of cores.",
    ] = None
    short_side: Annotated[int, integer(8), "loader: short side of the packed images in pixels."] = 256
    quality: Annotated[int, integer(1, 100), "loader: JPEG quality of the packed images."] = 90


class BenchmarkConfig(CommonConfig):
    benchmark: BenchmarkOptions = field(default_factory=BenchmarkOptions)


USE_MODEL = ("predict", "export", "demo")  # commands that read a model file and need no data set
OF_RANKS = ("train", "evaluate", "features")  # commands of any number of processes, which open the images of data
COMMANDS: dict[str, type[CommonConfig]] = {
    "train": RunConfig,
    "evaluate": EvaluateConfig,
    "features": FeaturesConfig,
    "predict": PredictConfig,
    "export": ExportConfig,
    "demo": DemoConfig,
    "doctor": RunConfig,
    "tune": TuneConfig,
    "submit": SubmitConfig,
    "prepare": PrepareConfig,
    "benchmark": BenchmarkConfig,
}


@functools.cache  # a process that reads several command lines would convert the classes each time
def register(command: str) -> None:
    """Store the config class of a command under schema/<command>, where conf/<command>.yaml finds it.

    Classes of other commands are not stored: Hydra copies the whole store about a hundred times for --help, and three
    classes would cost a third of a second.
    """
    ConfigStore.instance().store(
        group="schema", name=command, package="_global_", node=with_all_keys(COMMANDS[command])
    )
