import pytest

from imagenet_ddp import words


@pytest.mark.parametrize(
    ("uv", "run", "install"),
    [(False, "", "python -m pip install 'a[b]'"), (True, "uv run ", "uv pip install 'a[b]'")],
)
def test_commands_are_those_of_the_environment(uv: bool, run: str, install: str, monkeypatch: pytest.MonkeyPatch):
    """A virtual environment that `uv run` made holds no pip: `pip install` would end elsewhere, or be refused."""
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    if uv:
        monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    assert (words.uv_run(), words.install("a[b]")) == (run, install)
