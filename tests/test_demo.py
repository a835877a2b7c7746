"""A page in front of a checkpoint: what is uploaded, and what comes back."""

import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, clean_environ
from helpers import forked_commands
from helpers.ports import free_port

gradio_client = pytest.importorskip("gradio_client", reason="the extra demo is not installed")
pytestmark = pytest.mark.slow


def test_a_port_in_use(run: Run, trained: Path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        refused = run("demo", f"checkpoint={trained}", f"port={port}")
    assert refused.returncode == 2 and f"port={port} cannot be opened. Hint: set" in " ".join(refused.stderr.split())
    assert "Traceback" not in refused.stderr


@pytest.fixture(scope="module")
def address(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port, folder = free_port(), tmp_path_factory.mktemp("demo")
    (folder / "tmp").mkdir()
    environ = clean_environ(TMPDIR=str(folder / "tmp"))
    options = (f"checkpoint={trained}", f"port={port}")
    process = forked_commands.start("imagenet_ddp.demo", *options, folder=folder, environment=environ)
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
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
    assert "Traceback" not in process.out + process.err
    assert not [path for path in (folder / "tmp").rglob("*") if path.is_file()], "no picture is kept"


def test_a_picture_gets_its_classes_and_a_bad_file_the_reason(
    address: str, tree: Path, tmp_path: Path, run: Run, trained: Path
):
    client: Any = gradio_client.Client(address, verbose=False)
    picture = next((tree / "val").rglob("*.*"))
    found, shown = client.predict(gradio_client.handle_file(picture), api_name="/answer")
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


def test_only_this_machine_can_open_it(address: str):
    port = int(address.rsplit(":", 1)[1].strip("/"))
    listening = Path("/proc/net/tcp")
    if not listening.exists():
        pytest.skip("no /proc/net/tcp on this system")
    addresses = [
        line.split()[1] for line in listening.read_text(encoding="utf-8").splitlines()[1:] if line.split()[3] == "0A"
    ]
    assert [each for each in addresses if int(each.split(":")[1], 16) == port] == [f"0100007F:{port:04X}"]
