"""python -m imagenet_ddp.predict checkpoint=PATH images=FILE|FOLDER|PATTERN: predict the top classes of each image.

Exit codes: 0 done, also where single files cannot be read (the error is in their row); 2 refused.
"""

import csv
import io
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from imagenet_ddp.cli import command, parse
from imagenet_ddp.cli.overrides import plain
from imagenet_ddp.data.sources.folder.scan import find_images
from imagenet_ddp.engine import job
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.heavy_imports import import_torch

if TYPE_CHECKING:
    from imagenet_ddp.engine.predictor import Predictor

EXPORTED = (".onnx", ".pt2")  # files of export


def main() -> None:
    with command.run_command("predict"):
        request = parse.command_line("predict", sys.argv[1:], os.environ)
        if request.passthrough:
            command.with_hydra("predict", request.argv, lambda config: None)
            return
        checkpoint = Path(request.configs[0].checkpoint)
        exported = checkpoint.suffix in EXPORTED
        config = plain(request.configs[0]) if exported else job.from_checkpoint(request, checkpoint, os.environ)
        num_images, num_unreadable = _predict(config)
    where = f" to {config['out']}" if config["out"] else ""
    print(f"{num_images} images{where}, {num_unreadable} of them could not be read.", file=sys.stderr)


def _predict(config: dict[str, Any]) -> tuple[int, int]:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may not be UTF-8
    paths = find_images(config["images"])
    if not paths:
        raise ConfigError(f"images={config['images']} must match image files, got none. Hint: 'images=FOLDER/*.jpg'.")
    predictor = _predictor(config)
    top_k = min(config["top_k"], len(predictor.classes))
    num_unreadable = 0
    with ExitStack() as stack:
        stream = (
            stack.enter_context(Path(config["out"]).open("w", newline="", encoding="utf-8", errors="backslashreplace"))
            if config["out"]
            else sys.stdout
        )
        writer = {"csv": CsvWriter, "jsonl": JsonLinesWriter}[config["format"]](stream, top_k)
        pool = stack.enter_context(ThreadPoolExecutor(os.cpu_count()))
        size = config["data"]["batch_size"]
        for chunk in (paths[start : start + size] for start in range(0, len(paths), size)):
            results = predictor.predict(list(pool.map(predictor.read, chunk)), top_k)
            for path, (top, error) in zip(chunk, results, strict=True):
                num_unreadable += bool(error)
                named = [(predictor.classes[i], predictor.labels[i], probability) for i, probability in top]
                writer.write(path, named, error)
    return len(paths), num_unreadable


def _predictor(config: dict[str, Any]) -> "Predictor":
    with import_torch():
        from imagenet_ddp.engine import exported
        from imagenet_ddp.engine.predictor import load_net, make_predictor
        from imagenet_ddp.runs.checkpoint_file import KEY, read

    path = Path(config["checkpoint"])
    if path.suffix in EXPORTED:
        return exported.make_predictor(path, config["data"]["decoder"])
    stored = read(path)
    return make_predictor(config, stored[KEY], load_net(config, stored[KEY], stored["state_dict"]))


class CsvWriter:
    """Write columns path, class_1, probability_1, ..., error; a class as its label.

    classes: (name, label, probability), most likely first; empty where error says why the file cannot be read.
    """

    def __init__(self, stream: IO[str], top_k: int):
        self._writer = csv.writer(stream, lineterminator="\n")
        self._top_k = top_k
        columns = [f"{what}_{rank}" for rank in range(1, top_k + 1) for what in ("class", "probability")]
        self._writer.writerow(["path", *columns, "error"])

    def write(self, path: str, classes: list[tuple[str, str, float]], error: str) -> None:
        cells = [cell for _, label, probability in classes for cell in (label, f"{probability:.6f}")]
        cells += [""] * (2 * self._top_k - len(cells))
        self._writer.writerow([path, *cells, error])


class JsonLinesWriter:
    """Write one object per line: path, classes (class, label, probability), error or null."""

    def __init__(self, stream: IO[str], top_k: int):
        self._stream = stream

    def write(self, path: str, classes: list[tuple[str, str, float]], error: str) -> None:
        rows = [
            {"class": name, "label": label, "probability": round(probability, 6)}
            for name, label, probability in classes
        ]
        line = json.dumps({"path": path, "classes": rows, "error": error or None}, ensure_ascii=False)
        self._stream.write(line + "\n")


if __name__ == "__main__":
    main()
