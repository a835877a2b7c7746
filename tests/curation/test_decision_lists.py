"""Lists of a person's decisions are not replaced before they are carried out, or where they cannot be read."""

from pathlib import Path

import pytest

from imagenet_ddp.curation.decision_lists import record_file, require_carried_out, require_readable
from imagenet_ddp.errors import ConfigError

HEAD = "rank,path,suggested,decision\n"
LIST = f"{HEAD}1,in/été.jpg,cat,dog\n2,in/b.jpg,cat,\n"


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    Path("in/été.jpg").touch()
    return Path("next.csv")


@pytest.mark.parametrize("folder", ["", "in"])
@pytest.mark.parametrize("text", [LIST, LIST.replace(",", ";"), f"\ufeff{LIST}"])
def test_decisions_that_were_not_carried_out(
    text: str, folder: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Wherever the command is typed."""
    file.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path / folder)
    with pytest.raises(ConfigError, match=r"next.csv has 1 decision. Hint: set out=PATH to another place, or have"):
        require_carried_out(tmp_path / file)


def test_decisions_that_were_carried_out(file: Path):
    file.write_text(LIST, encoding="utf-8")
    record_file(file).touch()
    with pytest.raises(ConfigError):
        require_carried_out(file)
    Path("in/été.jpg").unlink()
    require_carried_out(file)


@pytest.mark.parametrize(
    "content",
    [LIST.encode("cp1252"), LIST.replace(",", "\t").encode("utf-16"), b"PK\3\4\xff\0", f"{HEAD}1,a.jpg,c,d,\n".encode(),
     f'{HEAD}1,"a.jpg,c,d\n'.encode()],
)  # fmt: skip
def test_a_list_that_cannot_be_read(content: bytes, file: Path):
    """As other programs save it."""
    file.write_bytes(content)
    require_carried_out(file)
    with pytest.raises(ConfigError, match=r"it may have decisions, got next.csv. Hint: .* as CSV in UTF-8"):
        require_readable(file)


@pytest.mark.parametrize("text", [None, "", HEAD, f"{HEAD}1,a.jpg,cat,\n", "path,class_1\na.jpg,cat\nb.jpg,a,b\n"])
def test_what_may_be_replaced(text: str | None, file: Path):
    if text is not None:
        file.write_text(text, encoding="utf-8")
    require_carried_out(file)
    require_readable(file)
