"""A command line without any mistake that can be found before torch is imported."""

from dataclasses import dataclass, field

from omegaconf import DictConfig

from imagenet_ddp.cli.options import Option
from imagenet_ddp.distributed.place import Place


@dataclass(frozen=True)
class Request:
    """A command line, read and checked."""

    verb: str
    argv: list[str]  # as typed, without --local-rank
    typed: list[str]  # the key=value options of argv
    options: list[Option]  # the same, read
    multirun: bool
    passthrough: bool  # something is only printed (--help, --cfg, ...) and no job runs
    shown: str | None = None  # the value of --cfg
    is_resolved: bool = False  # --resolve
    names: list[str] = field(default_factory=lambda: [""])  # with -m: the options that distinguish each job
    jobs: list[list[str]] = field(default_factory=list[list[str]])  # the options of each job
    configs: list[DictConfig] = field(default_factory=list[DictConfig])  # one per job, without the hydra node
    hydra_nodes: list[DictConfig] = field(default_factory=list[DictConfig])  # of each job; interpolations resolve
    again: bool = False  # a job of a resumed sweep: it continues in its own folder if there is one
    # one per config; None where no launcher is recognised
    places: list[Place | None] = field(default_factory=list[Place | None])

    @property
    def flags(self) -> list[str]:
        """The words of argv that are no options: -m, --config-dir and its folder, and so on."""
        words = list(self.typed)
        return [word for word in self.argv if not (word in words and not words.remove(word))]

    @property
    def hydra(self) -> DictConfig:
        """The hydra node of the first job."""
        return self.hydra_nodes[0]
