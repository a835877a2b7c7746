"""#SBATCH lines as sbatch 22.05 reads them: each row was tried there."""

import pytest

from imagenet_ddp.submitting import directives
from imagenet_ddp.submitting.job import seconds


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        ("#SBATCH --job-name=a#b --nodes=2", ["--job-name=a"]),
        ("#SBATCH --job-name='a b' # comment --nodes=2", ["--job-name=a b"]),
        ('#SBATCH --comment="#1" -N2', ["--comment=#1", "--nodes=2"]),
        ("#SBATCH\t--job-name=tab", ["--job-name=tab"]),
        ("#SBATCH--job-name=glued", ["--job-name=glued"]),
        ("##SBATCH --job-name=double", []),
        ("# SBATCH --job-name=space", []),
        (" #SBATCH --job-name=indent", []),
        ("#sbatch --job-name=lower", []),
        ("\n   \n# x\n#SBATCH -J blank", ["--job-name=blank"]),
        ("set -e\n#SBATCH --job-name=late", []),
        ("#SBATCH --job-name value --nodes 1", ["--job-name=value", "--nodes=1"]),
        ("#SBATCH --job-name=cont \\\n#SBATCH --nodes=1", ["--job-name=cont", "--nodes=1"]),
        ("#SBATCH -N2 -n 4 -c8 -t 1:00 -p gpu -G2 -o out", [
            "--nodes=2", "--ntasks=4", "--cpus-per-task=8", "--time=1:00", "--partition=gpu", "--gpus=2",
             "--output=out",
        ]),
        ("#SBATCH --requeue --exclusive --exclusive=user", ["--requeue", "--exclusive", "--exclusive=user"]),
        ("#SBATCH --ntasks-per-no=2", ["--ntasks-per-node=2"]),
    ],
)  # fmt: skip
def test_options(lines: str, options: list[str]) -> None:
    assert [option.text for option in directives.read(f"#!/bin/sh\n{lines}\necho\n").options] == options


def test_the_later_one_wins() -> None:
    found = directives.read("#SBATCH --time=1 --nodes=1\n#SBATCH -N2\n").last("nodes")
    assert found is not None and (found.value, found.line) == ("2", 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5", 300), ("5:30", 330), ("1:00:00", 3600), ("1-0", 86400), ("1-2:30", 95400), ("1-0:0:5", 86405),
     ("UNLIMITED", float("inf")), ("1d", None), ("", None)],
)  # fmt: skip
def test_seconds(text: str, expected: float | None) -> None:
    assert seconds(text) == expected
