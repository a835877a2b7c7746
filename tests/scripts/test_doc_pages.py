import json
from pathlib import Path

import pytest
from helpers.fake_runs import make_run

from imagenet_ddp.benchmark.results import row
from imagenet_ddp.report.differences import find_differences
from imagenet_ddp.report.run import find_runs, read_run
from imagenet_ddp.system.text_table import as_csv
from scripts import doc_pages
from scripts.doc_pages import DOCS, PAGES, recipes
from scripts.recipe_table import group_recipes, recipe_table


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str):
    renew = "python scripts/doc_pages.py"
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), f"renew it: {renew}"


def test_what_was_measured_is_in_the_page_of_recipes(tmp_path: Path):
    for lr, reached in ((0.1, (0.5, 0.52)), (0.2, (0.8, 0.81))):
        for seed, top1 in enumerate(reached):
            make_run(
                tmp_path / f"{lr}_{seed}", {"optim.lr": lr, "seed": seed}, top1=top1, train_cpu_s=200 * lr + seed,
                command=f"python -m imagenet_ddp.train experiment=a_b data.root=/x/y optim.lr={lr}", experiment="a_b",
                hardware="Some CPU, 2 cores, with bf16 units", finished_at=f"2026-01-0{seed + 1}T10:00:00+0000",
            )  # fmt: skip
    runs = [read_run(path) for path in find_runs(tmp_path)]
    results = tmp_path / "results.csv"
    results.write_bytes(as_csv(recipe_table(group_recipes(runs, find_differences(runs)))))
    section = recipes(results).partition("## Measured here\n")[2].partition("\n## ")[0]
    assert "| a\\_b lr=0.1 | 2 | 51.00 (50.00 to 52.00) | - | - |" in section
    assert "| a\\_b lr=0.2 | 2 | 80.50 (80.00 to 81.00) | +29.50 | 0.006 |" in section
    assert "- Hardware: Some CPU, 2 cores, with bf16 units.\n- Date: 2026-01-02.\n" in section
    assert "python -m imagenet_ddp.train -m experiment=a_b data.root=FOLDER optim.lr=0.2 seed=0,1\n```" in section


def test_tables_of_benchmarks_are_those_of_the_stored_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stored = {
        "rows": [row("Start", "bare script", "seconds", [4.0, 6.0, 5.0], 1.0)], "notes": [], "conclusion": "Imports.",
        "repeats": 3, "machine": {"cpu": "Some CPU", "num_cores": 2}, "finished_at": "2026-01-02T10:00:00+0000",
        "versions": {"torch": "2.15.0", "lightning": "2.6.6"}, "command": "python -m imagenet_ddp.benchmark",
    }  # fmt: skip
    (tmp_path / "start.json").write_text(json.dumps(stored))
    begins = [f"<!-- begin: benchmark {name} -->" for name in ("start", "missing")]
    end = "<!-- end: benchmark -->"
    page = f"Before.\n{begins[0]}\nold\n{end}\nBetween.\n{begins[1]}\nold\n{end}\nAfter.\n"
    (tmp_path / "performance.md").write_text(page)
    monkeypatch.setattr(doc_pages, "DOCS", tmp_path)
    monkeypatch.setattr(doc_pages, "BENCHMARKS", tmp_path)
    text = doc_pages.performance()
    assert text.startswith(f"Before.\n{begins[0]}\n| Start | seconds | range | ratio |\n")
    assert "| bare script | 5 | 4 to 6 | 1.00 |" in text and "old" not in text
    assert text.endswith(f"\n{end}\nBetween.\n{begins[1]}\n{end}\nAfter.\n")
