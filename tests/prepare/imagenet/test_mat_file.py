"""meta.mat, as another program writes such files, and as MATLAB does."""

import contextlib
import zlib
from pathlib import Path

import numpy as np
import pytest
from helpers import fake_imagenet

from imagenet_ddp.prepare.imagenet import mat_file

# scipy.io.savemat, do_compression=True, of a struct array, a cell array and a matrix of doubles
BY_SCIPY = (Path(__file__).parent / "meta_scipy.mat").read_bytes()


def test_what_scipy_has_written():
    found = mat_file.read(BY_SCIPY)
    assert list(found) == ["synsets", "cells", "big"]
    assert [row["WNID"] for row in found["synsets"]] == ["n02119789", "n01440764", "n00001740"]
    assert [int(row["ILSVRC2012_ID"][0]) for row in found["synsets"]] == [1, 2, 3]
    assert found["synsets"][2]["words"] == "entity — é"
    assert found["synsets"][1]["num_train_images"].tolist() == [1300]
    assert found["synsets"][2]["children"].tolist() == [1, 2]
    assert found["synsets"][0]["children"].size == 0
    assert found["cells"][0] == "a"
    np.testing.assert_array_equal(found["cells"][1], np.arange(300.0))
    assert found["big"].tolist() == [1.5, 70000]


def test_as_matlab_writes_numbers_and_text():
    rows = mat_file.read(fake_imagenet.meta())["synsets"]
    assert [row["WNID"] for row in rows] == list(fake_imagenet.IDS.values())
    assert [int(row["num_children"][0]) for row in rows] == [0, 0, 0, 0, 4]


def test_nothing_is_read_out_of_a_broken_file():
    """Cut anywhere, and with any byte changed, it is read or refused, and no other error comes up."""
    generator = np.random.default_rng(0)
    plain = zlib.decompress(fake_imagenet.meta()[136:])
    for end in range(0, len(BY_SCIPY), 7):
        with contextlib.suppress(mat_file.MatlabError):
            assert len(mat_file.read(BY_SCIPY[:end])) < 3
    for _ in range(300):
        broken = bytearray(plain)
        broken[generator.integers(len(broken))] = generator.integers(256)
        with contextlib.suppress(mat_file.MatlabError):
            mat_file.read(fake_imagenet.file_of(bytes(broken)))


def test_another_kind_of_file():
    with pytest.raises(mat_file.MatlabError, match=r"is no MATLAB 5\.0 file"):
        mat_file.read(b"\x89HDF\r\n\x1a\n" + bytes(1000))  # MATLAB's version 7.3
