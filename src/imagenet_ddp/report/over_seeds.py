"""Average the scores of runs that differ only in the seed, or in the fold that is kept for validation."""

from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from imagenet_ddp.config.figures import Figure
from imagenet_ddp.report.compared_runs import ComparedRuns
from imagenet_ddp.report.differing_options import DRAWS, canonical, option
from imagenet_ddp.report.run_folders import Run


@dataclass(frozen=True)
class OverSeeds:
    """Finished runs on one set of validation images that differ only in seed and fold."""

    runs: list[Run]
    set_number: int
    score: Figure
    bests: dict[tuple[str, ...], float]  # seed and fold -> best score, the mean if several runs have both

    @property
    def mean(self) -> float:
        return fmean(self.bests.values())

    @property
    def std(self) -> float:
        """Return the sample standard deviation."""
        return stdev(self.bests.values())

    def differences(self, other: "OverSeeds") -> list[float]:
        """Return the score minus that of another group, for each seed and fold that both have."""
        return [best - other.bests[draw] for draw, best in self.bests.items() if draw in other.bests]


def over_seeds(compared: ComparedRuns) -> list[OverSeeds]:
    """Return the groups of at least two seeds or folds: within a set of images and a score, the best mean first."""
    alike = dict[tuple[Any, ...], list[Run]]()
    for run, number in zip(compared.runs, compared.set_of, strict=True):
        if run.state == "finished" and run.best is not None:
            options = [canonical(option(run, key)) for key in compared.differences.keys if key not in DRAWS]
            alike.setdefault((number, run.score, *options), []).append(run)
    groups = list[OverSeeds]()
    for (number, score, *_), members in alike.items():
        bests = dict[tuple[str, ...], list[float]]()
        for run in members:
            bests.setdefault(tuple(canonical(option(run, key)) for key in DRAWS), []).append(run.best or 0.0)
        if len(bests) > 1:
            groups.append(OverSeeds(members, number, score, {draw: fmean(each) for draw, each in bests.items()}))

    def order(group: OverSeeds) -> tuple[int, int, float]:
        place = compared.scores.index(group.score)
        return group.set_number, place, -group.mean if group.score.mode == "max" else group.mean

    return sorted(groups, key=order)
