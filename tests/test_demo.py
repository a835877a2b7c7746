"""A page in front of a checkpoint: what is uploaded, and what comes back."""

import csv
import shutil
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import PROBES, Run, clean_environ
from helpers import forked_commands
from helpers.browser import CHROMIUM, Browser
from helpers.ports import free_port
from helpers.train_runs import wait_for

from imagenet_ddp import demo
from imagenet_ddp.curation import unknown
from imagenet_ddp.use.prediction_words import in_words, sure_classes
from imagenet_ddp.use.predictor import Result

httpx = pytest.importorskip("httpx", reason="the extra demo is not installed")
gradio_client = pytest.importorskip("gradio_client", reason="the extra demo is not installed")
pytestmark = pytest.mark.slow


def test_a_port_in_use(run: Run, trained: Path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        refused = run("demo", f"checkpoint={trained}", "host=0.0.0.0", f"port={port}")
    said = " ".join(refused.stderr.split())
    assert refused.returncode == 2 and f"port={port} cannot be opened. Hint: set" in said
    assert f"everybody who reaches this machine can open the page and upload pictures. Hint: put a password into the " \
        f"environment variable {demo.PASSWORD}" in said  # fmt: skip
    assert "Traceback" not in refused.stderr


@contextmanager
def serving(
    module: str, checkpoint: Path, folder: Path, **environ: str
) -> Iterator[tuple[str, forked_commands.Command]]:
    """Start the page, and yield its address and its command."""
    port = free_port()
    (folder / "tmp").mkdir()
    environment = clean_environ(TMPDIR=str(folder / "tmp"), **environ)
    options = (f"checkpoint={checkpoint}", f"port={port}")
    process = forked_commands.start(module, *options, folder=folder, environment=environment)
    assert isinstance(process, forked_commands.Command)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, process.out + process.err
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/", process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def files(folder: Path) -> list[Path]:
    return [path for path in (folder / "tmp").rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def address(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("demo")
    with serving("imagenet_ddp.demo", trained, folder) as (address, process):
        yield address
    assert "Traceback" not in process.out + process.err
    assert not files(folder), "no picture is kept"


def test_a_page_for_others(trained: Path, tree: Path, tmp_path: Path):
    """Nothing answers without the password, pictures are deleted, and nobody writes to the terminal of its owner."""
    environ = {demo.PASSWORD: "sesame", "PYTHONPATH": PROBES}
    with serving("short_demo", trained, tmp_path, **environ) as (address, process), httpx.Client() as client:
        api, picture = f"{address}gradio_api", next((tree / "val").rglob("*.*")).read_bytes()
        first = client.get(address).text + client.get(f"{address}manifest.json").text
        assert not [word for word in ("owl", tree.name, "mobilenet") if word in first]
        for path in ("config", "gradio_api/info", f"gradio_api/file={trained}", "gradio_api/queue/data?session_hash=a"):
            assert client.get(address + path).status_code == 401, path
        for path in ("call/answer", "run/answer", "queue/join"):
            sent = {"data": [None], "fn_index": 0, "session_hash": "a"}
            assert client.post(f"{api}/{path}", json=sent).status_code == 401, path
        assert client.post(f"{api}/upload", files={"files": picture}).status_code == 401
        assert client.post(f"{address}login", data={"username": "user", "password": "x"}).status_code == 400

        assert client.post(f"{address}login", data={"username": "user", "password": "sesame"}).status_code == 200
        assert client.get(f"{api}/file={trained}").status_code == 403
        assert client.post(f"{api}/upload", files={"files": picture}).status_code == 200
        (private,) = (path for path in (tmp_path / "tmp").iterdir() if path.name.startswith("tmp"))
        assert private.stat().st_mode & 0o777 == 0o700
        wait_for(lambda: not files(tmp_path), process, timeout_s=60)
        for path in ("/etc/passwd\x1b[2J", str(trained)):
            sent = {"data": [{"path": path, "meta": {"_type": "gradio.FileData"}}]}
            event = client.post(f"{api}/call/answer", json=sent).json()["event_id"]
            assert "event: error" in client.get(f"{api}/call/answer/{event}").text
    assert "\x1b" not in process.out + process.err and "passwd\\x1b[2J" in process.err


def test_a_picture_gets_its_classes_and_a_bad_file_the_reason(
    address: str, tree: Path, tmp_path: Path, run: Run, trained: Path
):
    client: Any = gradio_client.Client(address, verbose=False)
    picture = next((tree / "val").rglob("*.*"))
    found, shown, _ = client.predict(gradio_client.handle_file(picture), api_name="/answer")
    result = run("predict", f"checkpoint={trained}", f"images={picture}")
    assert result.returncode == 0, result.stderr
    assert found["label"] == result.stdout.splitlines()[1].split(",")[1]
    assert len(found["confidences"]) == 3
    assert Path(shown).stat().st_size > 100
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    with pytest.raises(Exception, match="cannot be used: "):
        client.predict(gradio_client.handle_file(tmp_path / "broken.jpg"), api_name="/answer")
    (tmp_path / "large.jpg").write_bytes(bytes(21 * 2**20))
    with pytest.raises(Exception, match="exceeds the maximum"):
        client.predict(gradio_client.handle_file(tmp_path / "large.jpg"), api_name="/answer")


@pytest.mark.parametrize("is_known", [None, False, True])
@pytest.mark.parametrize("shares", [(0.9, 0.1), (0.45, 0.4), (0.7, 0.6)])
def test_it_says_what_predict_says(shares: tuple[float, float], is_known: bool | None):
    """Of a picture in doubt, whatever the reason; a sure class is said by the classes themselves."""
    result, labels = Result([*enumerate(shares)], is_known=is_known), ["a_1", "<b>"]
    for has_several in (False, True):
        words = in_words(result, labels, has_several=has_several).replace("<b>", "&lt;b&gt;").replace("_", "\\_")
        in_doubt = f"**{words[0].upper()}{words[1:]}**"
        wanted = (words if has_several else "") if sure_classes(result, has_several=has_several) else in_doubt
        assert demo.beside_classes(result, labels, has_several=has_several) == wanted
    assert demo.beside_classes(result, labels, has_several=False).startswith("**") == (
        is_known is False or shares[0] < 0.5
    )


READY = """new Promise((done) => {
  const look = () => document.querySelector("%s") ? done(document.body.innerText) : setTimeout(look, 50);
  look();
})"""
UPLOAD, ANSWER = "input[type=file]", "[data-testid=label-output-value]"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_not_sure(trained: Path, tree: Path, tmp_path: Path, run: Run):
    """Of two pictures, the threshold lies between: the page says so of the less familiar one, and not of the other."""
    shutil.copytree(trained.parent.parent, tmp_path / "r")
    checkpoint = tmp_path / "r/checkpoints/best.ckpt"
    run("features", f"checkpoint={checkpoint}", code=0)
    (tmp_path / "two").mkdir()
    for number, picture in enumerate(sorted((tree / "val").rglob("*.jpg"))[::7][:2]):
        shutil.copyfile(picture, tmp_path / f"two/{number}.jpg")
    run("predict", f"checkpoint={checkpoint}", "images=two", "out=two.csv", code=0)
    with (tmp_path / "two.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = {row["path"]: float(row["familiarity"]) for row in csv.DictReader(file)}
    strange, familiar = (tmp_path / path for path in sorted(rows, key=rows.__getitem__))
    reference = unknown.read(tmp_path / "r/known.npz")
    unknown.write(tmp_path / "r/known.npz", replace(reference, threshold=sum(rows.values()) / 2))
    (tmp_path / "p").mkdir()  # the paths of Unix sockets in it are limited
    with serving("imagenet_ddp.demo", checkpoint, tmp_path / "p") as (address, _), \
            Browser(tmp_path / "profile") as browser:  # fmt: skip
        for picture, is_sure in ((strange, False), (familiar, True)):
            browser.open(address)
            browser.evaluate(READY % UPLOAD)
            root = browser.call("DOM.getDocument")["root"]["nodeId"]
            node = browser.call("DOM.querySelector", nodeId=root, selector=UPLOAD)["nodeId"]
            browser.call("DOM.setFileInputFiles", nodeId=node, files=[str(picture)])
            text = browser.evaluate(READY % ANSWER)
            assert ("Unlike the training images; the likeliest is" in text) != is_sure
            for width, scheme in ((1200, "light"), (390, "dark")):
                browser.resize(width, scheme=scheme)
                excess = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                assert browser.evaluate(excess) <= 0


def test_only_this_machine_can_open_it(address: str):
    port = int(address.rsplit(":", 1)[1].strip("/"))
    listening = Path("/proc/net/tcp")
    if not listening.exists():
        pytest.skip("no /proc/net/tcp on this system")
    addresses = [
        line.split()[1] for line in listening.read_text(encoding="utf-8").splitlines()[1:] if line.split()[3] == "0A"
    ]
    assert [each for each in addresses if int(each.split(":")[1], 16) == port] == [f"0100007F:{port:04X}"]
