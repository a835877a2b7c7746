"""Declare the keys that all commands share, and those of training and of a trained net."""

from dataclasses import field
from typing import Annotated, Any

from imagenet_ddp.config.schema.data import DataConfig, TransformConfig
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
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.config.schema.schedules import ScheduleConfig, Step
from imagenet_ddp.config.schema.trainer import TrainerConfig
from imagenet_ddp.config.section import Section
from imagenet_ddp.config.validators import Example, PerMachine, choice, integer, matching, number

CHECKPOINT = "Checkpoint or run folder of train, or weights of another program, with model.name; null: model.weights."
FOLDER_NAME = matching(r"(?!\.{1,2}$)[^/\\\0]+", "a folder name without / or \\")


class CommonConfig(Section):
    """Keys that all commands share."""

    name: Annotated[str, FOLDER_NAME, Example("my_run"), "Name of the run, whose folder is runs/<name>/<time>."] = (
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

    @property
    def ends_with_features(self) -> bool:
        """Return whether a training ends with a pass over its images, after which predict tells those that are unlike
        them."""
        return self.model.head == "regression" and self.data.labels == "one"


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

    checkpoint: Annotated[str | None, Example("FILE"), PerMachine(), CHECKPOINT] = None

    @property
    def purpose(self) -> Purpose | None:
        return None
