"""docs/own_photos.ipynb: runs from its first cell to its last, on photographs of three classes."""

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


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    notebook: Any = nbformat.read(ROOT / "docs/own_photos.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
    write_images(tmp_path / "my photographs", {"cat": 10, "dog": 10, "owl": 10}, size=64)
    write_images(tmp_path, {"new": 3}, size=64)
    torch.manual_seed(0)
    torch.save(torchvision.models.get_model(NET).state_dict(), tmp_path / "net.pt")
    options = f"experiment=probe model.name={NET} model.weights=net.pt data.image_size=64 trainer.accelerator=cpu"
    choose = next(cell for cell in notebook.cells if cell.id == "choose")
    assert 'OPTIONS = "experiment=probe"' in choose.source
    choose.source = choose.source.replace("experiment=probe", options).replace('"photographs"', '"my photographs"')
    start, python = '"{sys.executable}" -m', f"{write_programs(tmp_path / 'bin')}/python -m"
    assert sum(start in cell.source for cell in notebook.cells) == 1
    for cell in notebook.cells:
        cell.source = cell.source.replace(start, python)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute(env=clean_environ(IPYTHONDIR=str(tmp_path / "ipython")))
    texts, pages = dict[str, str](), dict[str, str]()
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            texts[cell.id] = texts.get(cell.id, "") + output.get("text", "")
            pages[cell.id] = pages.get(cell.id, "") + output.get("data", {}).get("text/html", "")
    assert "checked/check.html" in texts["run-check"] and "top-1" in texts["run-train"], texts
    assert all(pages[name].startswith("<iframe srcdoc=") for name in ("run-check", "run-report"))
    lines = texts["run-predict"].splitlines()
    assert [line.split()[0] for line in lines] == [f"new/{number:03}.jpg" for number in range(3)]
    assert all(line.split()[1] in ("cat", "dog", "owl") for line in lines)
