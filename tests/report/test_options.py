"""Read the command line: folders and options."""

from pathlib import Path

import pytest

from imagenet_ddp.report.options import read


def test_folders_and_options_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "optim.lr=0.1,seed=1"):
        Path(name).mkdir()
    options, mistakes = read(["format=csv", "a", "optim.lr=0.1,seed=1", "out=b/c", "sort=loss"])
    assert mistakes == []
    assert options.folders == [Path("a"), Path("optim.lr=0.1,seed=1")]
    assert (options.format, options.out_folder, options.sort) == ("csv", Path("b/c"), "loss")
    assert read(["a"])[0].out_folder == Path("a")
    assert read(["a", "a"])[0].out_folder == Path("report")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a folder must be given. Hint: run `python -m imagenet_ddp.report runs`."),
        (["a", "format=pdf"], "format must be text, markdown or csv, got pdf. Hint: set format=markdown."),
        (["a", "watch=true"], "watch was removed. Hint: run `tail -f RUN/logs/rank0.log`."),
        (["a", "by=recipe"], "by=recipe was removed. Hint: run `python scripts/recipe_table.py DIR`."),
        (["a", "against=b"], "against was removed. Hint: run `python scripts/recipe_table.py DIR against=RECIPE`."),
        (["a", "formt=csv"], "formt=csv is neither an option nor a folder. Hint: did you mean format=csv?"),
        (["a", "-v"], "-v is neither an option nor a folder. Hint: use an option such as format=markdown, out=FOLDER"),
        (["a", "file"], "file must be a folder, but is a file. Hint: pass runs/<name>/<time>, or any folder above it."),
        (["a", "out=file/b"], "out must be a writable folder, but "),
    ],
)
def test_mistakes(words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    Path("file").touch()
    (mistake,) = read(words)[1]
    assert mistake.startswith(message)
