"""Parse the command line of prepare into a plan, or report all of its mistakes at once.

Does not import torch.
"""

import contextlib
import math
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from imagenet_ddp.cli import parse
from imagenet_ddp.cli.overrides import quoted
from imagenet_ddp.cli.photograph_lines import RECIPE
from imagenet_ddp.config.schema.data import DataConfig, FolderData, TableData
from imagenet_ddp.config.schema.prepare import PrepareConfig
from imagenet_ddp.curation.decision_lists import DECISIONS, downloads, record_file
from imagenet_ddp.curation.wrong_labels import FILE
from imagenet_ddp.data import check_data
from imagenet_ddp.data.sources.base import Scan
from imagenet_ddp.data.sources.cells import PARQUET
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix, Mistake, did_you_mean, key_of, must_be, setting, without, without_effect
from imagenet_ddp.prepare.archives.scan import look
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.files import beside, describe_path, not_writable_reason
from imagenet_ddp.system.text import MIB, near_names


@dataclass(frozen=True)
class Plan:
    config: PrepareConfig
    out: Path  # folder to write; the run folder if prepare=check is typed without out=
    num_workers: int
    scan: Scan | None = None  # of the images, which check and pack read
    argv: Sequence[str] = ()  # as typed
    archives: Sequence[Path] = ()  # which import reads


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """Return the plan. Writes nothing. Raises ConfigError with every mistake."""
    request, config, mistakes = parse.read_single_process("prepare", PrepareConfig, argv, environ)
    options, out, scan, archives = config.prepare, config.out, None, ()
    if options.name == "imagenet":
        mistakes += _validate_archive_dir(config.archive_dir)
    elif options.name == "import":
        mistakes += (wrong := _validate_archive_dir(config.archive_dir))
        if not wrong:
            try:
                archives, scan = look(config)
            except ConfigError as error:
                mistakes += error.mistakes
    elif options.name == "relabel":
        mistakes += _validate_relabel(config)
    else:
        more, scan = check_data.inspect(config.data, config.seed, purpose=config.purpose)
        mistakes += [*_generated(config, request.typed), *more]
        inside, root = isinstance(config.data, FolderData), config.data.root
        if inside and out and root and Path(out).resolve().is_relative_to(Path(root).resolve()):
            # the new folder would be one of the classes
            fix = setting("out=FOLDER", aim="to another folder")
            mistakes.append(must_be("out", f"outside data.root ({root})", out, fix))
    if out is None and options.name == "check":
        out = request.hydra.run.dir
    mistakes += _validate_out(out) if options.name != "relabel" else []
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))
    num_workers = num_cores() if options.num_workers == "auto" else options.num_workers
    return Plan(config, Path(str(out)), num_workers, scan, request.argv, archives)


def _generated(config: PrepareConfig, typed: Sequence[str]) -> list[Mistake]:
    """Return a mistake if images would be generated only because none are named."""
    data = config.data
    if data.target or data.name != "shapes" or {"data", "data.name"} & set(map(key_of, typed)):
        return []
    what = f"prepare={config.prepare.name} needs your images, but data= is not typed; it would read generated ones"
    layout = RECIPE if config.prepare.name == "check" else "data=imagefolder"
    return [Mistake(what, ("data.name",), (setting(layout, "data.root=FOLDER"),))]


def _validate_archive_dir(value: str | None) -> list[Mistake]:
    if value and Path(value).is_dir():
        return []
    got = f"but {describe_path(Path(value))} is not one" if value else "but is not set"
    fix = setting("archive_dir=FOLDER", aim="to the folder with the archives, such as ILSVRC2012_img_train.tar")
    return [Mistake(f"archive_dir must be a folder, {got}", ("archive_dir",), (fix,))]


def can_relabel(data: DataConfig) -> bool:
    """Return whether prepare=relabel can change the labels of this kind of data."""
    return isinstance(data, FolderData | TableData) and data.labels == "one"


def _validate_relabel(config: PrepareConfig) -> list[Mistake]:
    """Return the mistakes of options whose files are read only later: an interrupted command is finished first."""
    found, data, file = list[Mistake](), config.data, config.decisions
    if config.out is not None:
        found.append(Mistake("out has no effect with prepare=relabel", ("out",), (without_effect("out"),)))
    is_page = file is not None and Path(file).suffix.lower() in (".html", ".htm")
    if not file or is_page or not Path(file).is_file():
        is_not = "is a page" if is_page and Path(file or "").is_file() else "is not a file"
        got = f"but {describe_path(Path(file))} {is_not}" if file else "but is not set"
        what = f"decisions must be the list with your decisions, a CSV file, {got}"
        saved = _saved_by_page(Path(file), is_page=is_page) if file and not config.undo else ()
        found.append(Mistake(what, ("decisions",), saved or _lists_near(Path(file or ""), undo=config.undo)))
    folder, table = setting("data=imagefolder", "data.root=FOLDER"), setting("data=table", "data.root=FILE.csv")
    if not can_relabel(data):
        got = f"data._target_={data.target}" if data.target else f"data={data.name} with data.labels={data.labels}"
        what = f"prepare=relabel needs class folders or a table, with one label per image, got {got}"
        return [*found, Mistake(what, ("data.name", "data.labels"), (folder, table))]
    if config.unlabelled is not None and data.name == "table":
        what = "unlabelled must be null for data=table, whose images have one row each"
        hint = f"add a row for each image that has got a label to {data.root}"
        found.append(Mistake(what, ("unlabelled", "data.name"), (without("unlabelled"),), hint))
    elif config.unlabelled is not None and not Path(config.unlabelled).is_dir():
        fix = setting("unlabelled=FOLDER", aim="to the folder of images that have no label yet")
        found.append(must_be("unlabelled", "a folder", describe_path(Path(config.unlabelled)), fix))
    root = Path(data.root or "")
    if data.name == "table" and not (root.is_file() and root.suffix.lower() not in PARQUET):
        found.append(must_be("data.root", "the table of the images, a CSV file", str(data.root), table))
    if data.name != "table" and not (data.root and root.is_dir()):
        found.append(must_be("data.root", "the folder of the images", str(data.root), folder))
    if file and (reason := not_writable_reason(Path(file).parent)):
        what = f"the folder of decisions must be writable, because what is changed is written there, but {reason}"
        found.append(Mistake(what, ("decisions",), hint="copy the list into a folder of your own"))
    return found


def _saved_by_page(file: Path, *, is_page: bool) -> tuple[Fix, ...]:
    """Return what to do about the list that the page of the check makes, if that is meant: browsers save it elsewhere,
    or under another name. No list is read."""
    if not (is_page or _is_decisions(file.name)) or not file.parent.is_dir():
        return ()
    page = file.with_name("check.html")
    pages = [page] if page.is_file() else [*Path().glob(f"*/{page.name}")]
    folder = pages[0].parent if len(pages) == 1 else file.parent
    if here := newest_decisions(file.parent) or newest_decisions(folder) or newest_decisions(Path()):
        return (did_you_mean(quoted(f"decisions={here}")),)
    wanted = folder / DECISIONS
    option = quoted(f"decisions={wanted}")
    if there := newest_decisions(downloads()):
        move = shlex.join(["mv", str(there), str(wanted)])
        said = f"run `{move}`, and set {shlex.quote(option)}"
        return (Fix(run=move) if wanted == file else Fix((option,), said=said, is_example=True),)
    said = f"the button below the pictures of {folder / page.name} makes it, and browsers save it in Downloads: move it"
    return (Fix((option,), said=f"{said} to {wanted}", is_example=True),) if len(pages) == 1 else ()


def _is_decisions(name: str) -> bool:
    """Return whether a file has the name that a page gives to its list, or "decisions (1).csv", as browsers call the
    second one."""
    stem, suffix = map(re.escape, (Path(DECISIONS).stem, Path(DECISIONS).suffix))
    return re.fullmatch(rf"{stem}([ _-]?\(?\d+\)?)?{suffix}", name, re.I) is not None


def newest_decisions(folder: Path) -> Path | None:
    """Return the newest list of a page in a folder."""
    try:
        found = [at for at in folder.iterdir() if _is_decisions(at.name)]
        return max(filter(Path.is_file, found), key=lambda at: at.stat().st_mtime_ns, default=None)
    except OSError:  # no such folder
        return None


def _lists_near(file: Path, *, undo: bool) -> tuple[Fix, ...]:
    """Return what can be meant by a folder, or by a file that does not exist, in place of a list. undo: one that was
    carried out is meant."""
    folder = file if file.is_dir() else file.parent
    takes = _was_carried_out if undo else _takes_decisions
    lists = [path.name for path in sorted(folder.glob("*.csv")) if takes(path)]
    of_folder = lists if len(lists) == 1 else [DECISIONS, FILE]
    near = of_folder if file.is_dir() else near_names(file.name, lists, 1)
    if not lists:
        found = beside(file, takes) if file.name else None
        aim = (
            "" if undo else "to your list; a page's button saves it in Downloads: move it into the folder of check.html"
        )
        return (did_you_mean(f"decisions={found}") if found else setting("decisions=FILE.csv", aim=aim),)
    meant = [name for name in near if name in lists][:1]
    others = f"{'Other' if meant else 'The'} lists in {folder} are {', '.join(sorted({*lists} - {*meant}))}"
    if not meant:
        return (Fix(("decisions=FILE.csv",), said=others),)
    fix = did_you_mean(f"decisions={folder / meant[0]}")
    return (replace(fix, said=f"{fix.said} {others}") if len(lists) > 1 else fix,)


def _was_carried_out(file: Path) -> bool:
    return record_file(file).is_file()


def _takes_decisions(file: Path) -> bool:
    with contextlib.suppress(OSError):
        if file.is_file():
            with file.open(encoding="utf-8", errors="replace") as text:
                return "decision" in text.readline()
    return False


def _validate_out(value: str | None) -> list[Mistake]:
    fixes = (setting("out=FOLDER"),)
    if value is None:
        return [Mistake("out must be the folder to write, but is not set", ("out",), fixes)]
    path = Path(value).absolute()
    reason = not_writable_reason(path)
    what = f"out must be a folder that can be created ({path}), but {reason}"
    return [Mistake(what, ("out",), fixes)] if reason else []


def require_free_space(out: Path, num_bytes: float, hint: str = "") -> None:
    """Raise ConfigError if the disk of the folder `out` has less than num_bytes free. hint: end of the hint."""
    if (free := shutil.disk_usage(out).free) < num_bytes:
        raise ConfigError(
            f"out must have {math.ceil(num_bytes / MIB):,} MiB free, got {free // MIB:,} MiB in {out}. Hint: free some "
            f"disk space, or set out=FOLDER on another disk{hint}."
        )
