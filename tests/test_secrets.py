"""A password in an address is in no file that a command writes, and in no line that it prints."""

import base64
import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL, Run

from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.prepare import pack
from imagenet_ddp.system.text import without_secrets

SECRET = "sesame"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("http://me:sesame@h/x", "http://USER:PASSWORD@h/x"),
        ("a s3://sesame@h, b@c", "a s3://USER:PASSWORD@h, b@c"),
        ("http://me:se@same@h", "http://USER:PASSWORD@h"),
        ("https://h/a?b=1&X-Amz-Signature=sesame&c=2", "https://h/a?b=1&X-Amz-Signature=VALUE&c=2"),
        *((text, text) for text in ("s3://bucket/a@b", "file:///a@b", "a@b", "token=x", "http://h/x?y=1", "")),
    ],
)
def test_what_is_hidden(text: str, hidden: str) -> None:
    assert without_secrets({"a": [text, 1, None]}) == {"a": [hidden, 1, None]}
    assert without_secrets(hidden) == hidden


class _Server(http.server.SimpleHTTPRequestHandler):
    """Serve a folder to those who know the password."""

    def send_head(self) -> Any:
        expected = base64.b64encode(f"me:{SECRET}".encode()).decode()
        if self.headers.get("Authorization") == f"Basic {expected}":
            return super().send_head()
        return self.send_error(401)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def address(tree: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a packed folder, with a user name and the password."""
    plan = prepare_options.read(
        [
            "prepare=pack",
            "data=imagefolder",
            f"data.root={tree}",
            f"out={tmp_path / 'pack'}",
            "prepare.num_workers=1",
            "data.exif_orientation=false",
        ],
        {},
    )
    assert plan is not None and pack.run(plan) == 0
    handler = functools.partial(_Server, directory=str(tmp_path / "pack"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://me:{SECRET}@127.0.0.1:{server.server_port}"
        server.shutdown()


def files_with_the_secret(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


@pytest.mark.slow
def test_a_run_keeps_no_password_and_is_continued_with_it(address: str, run: Run, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    streamed = [option for option in SMALL if not option.startswith("data=")]
    streamed += ["data=streamed", "logger=csv", "name=x"]
    run = functools.partial(run, XDG_CACHE_HOME=str(tmp_path / "cache"))
    done = [run("train", *streamed, f"data.root={address}", code=0)]
    (folder,) = (tmp_path / "runs/x").iterdir()
    assert "USER:PASSWORD@127.0.0.1" in (folder / "config.yaml").read_text(encoding="utf-8")
    # the same command continues the run
    (folder / "summary.json").unlink()
    done.append(run("train", *streamed, f"data.root={address}", "resume=auto", code=0))
    assert "continuing the newest unfinished run" in done[-1].stdout and "Changed" not in done[-1].stdout
    # another one asks for the one key
    more = [f"resume={folder}", "trainer.max_epochs=3"]
    done.append(run("train", *more, code=2))
    host = address.rpartition("@")[2]
    assert f"add `data.root=http://USER:PASSWORD@{host}`" in done[-1].stderr
    done.append(run("train", *more, f"data.root={address}", code=0))
    assert "data.root was" not in done[-1].stdout
    done.append(run("evaluate", f"checkpoint={folder}", f"data.root={address}", "hydra.run.dir=e", code=0))
    done.append(
        run(
            "export",
            f"checkpoint={folder}",
            f"data.root={address}",
            "format=safetensors",
            "out=o/m.safetensors",
            code=0,
        )
    )
    assert files_with_the_secret(tmp_path) == []
    assert not [each.args for each in done if SECRET in each.stdout + each.stderr]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("train", ["-m", "optim.lr=0.1,0.2", "hydra.sweep.dir=s"]),
        pytest.param(
            "tune",
            ["search=none", "search.optim.momentum={low:0.1,high:0.9}", "tune.max_failures=1", "hydra.run.dir=s"],
            marks=pytest.mark.slow(4),
        ),
        ("submit", []),
    ],
)  # fmt: skip
def test_commands_that_start_runs_keep_no_password(verb: str, options: list[str], run: Run, tmp_path: Path) -> None:
    if verb == "tune":
        pytest.importorskip("optuna")
    nobody = f"http://me:{SECRET}@127.0.0.1:9"  # the runs fail, or are refused
    done = run(verb, "data=streamed", f"data.root={nobody}", "trainer.accelerator=cpu", *options)
    assert "USER:PASSWORD@127.0.0.1" in done.stdout + done.stderr + "".join(
        path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.yaml")
    )
    assert files_with_the_secret(tmp_path) == [] and SECRET not in done.stdout + done.stderr
