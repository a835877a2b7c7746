"""docs/own_photos.ipynb: runs from its first cell to its last, on photographs of three classes, and on its drawings."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
import torchvision
from conftest import ROOT, clean_environ, write_images
from helpers.forked_commands import write_programs
from nbclient import NotebookClient

NET = "shufflenet_v2_x0_5"


def read() -> Any:
    return nbformat.read(ROOT / "docs/own_photos.ipynb", as_version=4)


def outputs(notebook: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Return what each cell has printed, and its pages."""
    texts, pages = dict[str, str](), dict[str, str]()
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            texts[cell.id] = texts.get(cell.id, "") + output.get("text", "")
            pages[cell.id] = pages.get(cell.id, "") + output.get("data", {}).get("text/html", "")
    return texts, pages


def test_the_notebook_shows_what_it_prints():
    """As scripts/run_notebook.py has stored it: small, as pictures, which code hosts show, and without a traceback."""
    notebook = read()
    nbformat.validate(notebook)
    texts, pages = outputs(notebook)
    silent = {cell.id for cell in notebook.cells if cell.cell_type == "code"} - {*texts}
    assert silent == {"install", "choose"} and not any(pages.values())
    assert "1 label changed" in texts["run-decide"] and "top-1" in texts["run-train"]
    assert not any(word in text for text in texts.values() for word in ("Traceback", "Error", str(Path.home())))
    assert (ROOT / "docs/own_photos.ipynb").stat().st_size < 200_000


@pytest.mark.slow
@pytest.mark.parametrize("has_photographs", [True, False], ids=["photographs", "drawings"])
def test_the_notebook_runs(tmp_path: Path, *, has_photographs: bool) -> None:
    notebook = read()
    if has_photographs:
        write_images(tmp_path / "my photographs", {"cat": 10, "dog": 10, "owl": 10}, size=64)
        write_images(tmp_path, {"new": 3}, size=64)
    torch.manual_seed(0)
    torch.save(torchvision.models.get_model(NET).state_dict(), tmp_path / "net.pt")
    cells = {cell.id: cell for cell in notebook.cells}
    changes = {
        "choose": {
            "model=timm model.name=tf_efficientnet_lite0":
                f"model.name={NET} model.weights=net.pt data.image_size=64 trainer.accelerator=cpu",
            '"photographs"': '"my photographs"',
            '"{sys.executable}" -m': f"{write_programs(tmp_path / 'bin')}/python -m",
        },
        "run-decide": {'{"misfiled.jpg": "move"}': '{f"{number:03}.jpg": "move" for number in range(10)}'},
    }  # fmt: skip
    for name, of_cell in changes.items():
        for old, new in of_cell.items():
            assert cells[name].source.count(old) == 1, old
            cells[name].source = cells[name].source.replace(old, new)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute(env=clean_environ(IPYTHONDIR=str(tmp_path / "ipython")))
    texts, pages = outputs(notebook)
    assert "checked/check.html" in texts["run-check"] and "top-1" in texts["run-train"], texts
    assert all("<iframe srcdoc=" in pages[name] for name in ("run-check", "run-report", "run-predict"))
    assert ("drawings" in texts.get("drawings", "")) is not has_photographs
    classes = ("cat", "dog", "owl") if has_photographs else ("cross", "spiral", "star")
    if has_photographs:
        assert "changed" in texts["run-decide"], texts["run-decide"]
    new = [f"{number:03}" for number in range(3)] if has_photographs else [f"{name}_0049" for name in classes]
    lines = [line for line in texts["run-load"].splitlines() if line.startswith("new/")]
    assert [line.split()[0] for line in lines] == [f"new/{name}.jpg" for name in new]
    assert all(line.split()[1] in classes for line in lines)
