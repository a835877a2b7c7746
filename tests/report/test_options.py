"""The words of the command line: folders and options."""

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
    assert (options.format, options.folder, options.sort) == ("csv", Path("b/c"), "loss")
    assert read(["a"])[0].folder == Path("a")
    assert read(["a", "a"])[0].folder == Path("report")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "a folder is needed, but none is given. Hint: python -m imagenet_ddp.report runs"),
        (
            ["a", "format=pdf"],
            "format must be text, markdown, csv or html, got pdf. Hint: set format=text.",
        ),
        (["a", "format="], "format= lacks its value. Hint: format=markdown."),
        (["a", "formt=csv"], "formt is not a known key, and formt=csv no folder. Hint: did you mean format=csv?"),
        (
            ["a", "colour=red"],
            "colour is not a known key, and colour=red no folder. Hint: the options are format, out, sort.",
        ),
        (["a", "--out=b"], "--out=b is not an option. Hint: did you mean out=b?"),
        (["a", "-v"], "-v is not an option. Hint: options are typed as key=value."),
        (["a", "file"], "file must be a folder, but is a file. Hint: ."),
        (["a", "out=file/b"], "out must be a folder that can be made or written in, but "),
        (["a", "out=~/b"], "out=~/b is a folder called ~. Hint: out=$HOME/b"),
        (["a", "x=1/2"], "x is not a known key, and x=1/2 no folder. Hint: the options are format, out, sort."),
        (["runs/x=1"], "runs/x=1 must be a folder, but does not exist ("),
    ],
)
def test_mistakes(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    Path("file").touch()
    (mistake,) = read(words)[1]
    assert mistake.startswith(said)
