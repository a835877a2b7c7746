"""Average the scores of runs that differ only in the seed."""

from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from imagenet_ddp.config.figures import Figure
from imagenet_ddp.report.compared_runs import ComparedRuns
from imagenet_ddp.report.differing_options import canonical, option
from imagenet_ddp.report.run_folders import Run


@dataclass(frozen=True)
class OverSeeds:
    """Finished runs on one set of validation images that differ only in the seed."""

    runs: list[Run]
    set_number: int
    score: Figure
    values: list[float]  # best score of each seed, the mean if several runs have the seed

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def std(self) -> float:
        """Return the sample standard deviation."""
        return stdev(self.values)


def over_seeds(compared: ComparedRuns) -> list[OverSeeds]:
    """Return the groups of at least two seeds: within a set of images and a score, the best mean first."""
    alike = dict[tuple[Any, ...], list[Run]]()
    for run, number in zip(compared.runs, compared.set_of, strict=True):
        if run.state == "finished" and run.best is not None:
            options = [canonical(option(run, key)) for key in compared.differences.keys if key != "seed"]
            alike.setdefault((number, run.score, *options), []).append(run)
    groups = list[OverSeeds]()
    for (number, score, *_), members in alike.items():
        bests = dict[str, list[float]]()
        for run in members:
            bests.setdefault(canonical(option(run, "seed")), []).append(run.best or 0.0)
        if len(bests) > 1:
            groups.append(OverSeeds(members, number, score, [*map(fmean, bests.values())]))

    def order(group: OverSeeds) -> tuple[int, int, float]:
        place = compared.scores.index(group.score)
        return group.set_number, place, -group.mean if group.score.mode == "max" else group.mean

    return sorted(groups, key=order)
