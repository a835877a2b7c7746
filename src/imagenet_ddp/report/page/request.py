"""Decide whether a page was requested, and make it from the given folders. Runs without predictions are evaluated
first."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.report.options import Options
from imagenet_ddp.report.page import evaluation
from imagenet_ddp.report.page.assemble import Page, build
from imagenet_ddp.report.run import RUN_FILES, NotARunError, Run, as_number, find_runs, read_run

FOLD = "data.val_fold"


def wants_page(options: Options) -> bool:
    """Return whether the command requests one page: by=fold, or a single folder that is itself a run or an
    evaluation."""
    if options.by == "fold":
        return True
    is_single = len(options.folders) == 1 and options.format == "text" and options.by == "run"
    return is_single and any((options.folders[0] / name).is_file() for name in (*RUN_FILES, "evaluation.json"))


def make_page(options: Options) -> Page:
    """Make the page of one run, or of several evaluations. Raises ConfigError if the folders are neither, or do not
    belong to one data set."""
    if options.by == "fold":
        return _of_folds(options.folders, maps=options.maps)
    folder = options.folders[0]
    name = str(folder if folder.name.strip(".") else folder.resolve())
    if (folder / "evaluation.json").is_file() and not (folder / "metrics.csv").exists():
        return build(name, None, evaluation.read(folder), maps=options.maps)
    try:
        run = read_run(folder)
    except NotARunError as reason:
        raise ConfigError(
            f"{folder} must be a run folder, but has {reason}. Hint: pass runs/<name>/<time>, or a folder above it."
        ) from reason
    found, missing = evaluation.of_run(folder, is_running=run.state == "running")
    return build(name, run, found, missing, maps=options.maps)


def _of_folds(folders: Sequence[Path], *, maps: bool) -> Page:
    runs = _runs_of_folds(folders)
    parts, notes = [], _missing_folds(runs)
    for folder in (run.folder for run in runs.values()):
        found, missing = evaluation.of_run(folder, is_running=False)
        if found is None:
            raise ConfigError(f"by=fold needs predictions of {folder}, but there are none. {missing}")
        parts.append(found)
        notes += [missing] if missing else []
    return build(", ".join(map(str, folders)), None, evaluation.join(parts), " ".join(notes), maps=maps)


def _missing_folds(runs: Mapping[object, Run]) -> list[str]:
    """Return a sentence on the folds that no finished run has held out; [] if there are none."""
    fraction = as_number((next(iter(runs.values())).options or {}).get("data.val_fraction"))
    lacking = [str(fold) for fold in range(round(1 / fraction) if fraction else 0) if fold not in runs]
    if not lacking:
        return []
    return [f"No finished run held out these folds: {', '.join(lacking)} ({FOLD}). Their images are missing here."]


def _runs_of_folds(folders: Sequence[Path]) -> dict[object, Run]:
    """Return fold -> the finished run that held it out."""
    runs: dict[object, Run] = {}
    for folder in dict.fromkeys(path for top in folders for path in find_runs(top)):
        try:
            run = read_run(folder)
        except NotARunError:
            continue
        fold = (run.options or {}).get(FOLD)
        if fold is None or run.state != "finished":
            continue
        if other := runs.get(fold):
            raise ConfigError(
                f"by=fold needs one run of each fold, but {other.folder} and {folder} both have {FOLD}={fold}. "
                "Hint: pass the folder of one sweep."
            )
        runs[fold] = run
    if len(runs) < 2:
        raise ConfigError(
            f"by=fold needs finished runs that differ in {FOLD}, got {len(runs)}. "
            f"Hint: run `python -m imagenet_ddp.train -m {FOLD}=0,1,2,3,4`."
        )
    return runs
