"""What the tests of faults share, and what scripts/reliability.py reads of each."""

from collections.abc import Callable
from pathlib import Path

import pytest
from faults import trainings
from faults.trainings import End

Told = Callable[..., None]


@pytest.fixture(autouse=True)
def _described(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """The docstring is "what is done: what must happen"."""
    record_property("fault", " ".join((request.function.__doc__ or "").split()))


@pytest.fixture
def told(record_property: Callable[[str, object], None]) -> Told:
    """told(end, words): what the user reads. said: how the page shows it; seconds: None where the fault is there from
    the start."""

    def tell(end: End | None, words: str = "", *, said: str = "", seconds: float | None = -1) -> None:
        if end is not None:
            assert words in end.said, end.out + end.err
            assert "Traceback" not in end.err, end.err
            record_property("code", end.code)
            if seconds is not None:
                record_property("seconds", round(end.said_s if seconds < 0 else seconds, 1))
        record_property("said", said or words)

    return tell


@pytest.fixture(scope="session")
def whole(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """whole(devices): the run folder of the short training to which nothing happens."""
    folder = tmp_path_factory.mktemp("wholes")
    return lambda devices=1: trainings.whole(folder, *trainings.short(tree, f"trainer.devices={devices}"))
