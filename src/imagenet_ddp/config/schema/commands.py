"""List the commands, each with the class of its config."""

import functools

from hydra.core.config_store import ConfigStore

from imagenet_ddp.config.schema.benchmark import BenchmarkConfig
from imagenet_ddp.config.schema.evaluate import EvaluateConfig
from imagenet_ddp.config.schema.export import ExportConfig
from imagenet_ddp.config.schema.features import FeaturesConfig
from imagenet_ddp.config.schema.predict import DemoConfig, PredictConfig
from imagenet_ddp.config.schema.prepare import PrepareConfig
from imagenet_ddp.config.schema.run import CommonConfig, RunConfig
from imagenet_ddp.config.schema.submit import SubmitConfig
from imagenet_ddp.config.schema.tune import TuneConfig
from imagenet_ddp.config.section import with_all_keys

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
