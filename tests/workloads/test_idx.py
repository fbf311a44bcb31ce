"""MNIST's files are read as they are published, and what is missing or broken is named."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.idx import FILES, data_folder, halved, load_idx, read_idx


def packed(values: npt.NDArray[np.uint8]) -> bytes:
    head = bytes((0, 0, 8, values.ndim)) + b"".join(extent.to_bytes(4, "big") for extent in values.shape)
    return gzip.compress(head + values.tobytes())


def write_set(folder: Path, *, train: int = 6, test: int = 3, side: int = 4) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, count in zip(FILES, (train, train, test, test), strict=True):
        shape = (count, side, side) if "images" in name else (count,)
        (folder / name).write_bytes(packed(rng.integers(0, 10, shape, dtype=np.uint8)))


@pytest.mark.parametrize("place", ["", "raw", "MNIST/raw"])
def test_the_four_files_are_found_in_a_folder_or_below_it(tmp_path: Path, place: str) -> None:
    write_set(tmp_path / place)
    data = load_idx(tmp_path)
    assert data.train.shape == (6, 4, 4)
    assert data.test.shape == (3, 4, 4)
    assert data.train_labels.dtype == np.int64
    assert len(data.test_labels) == 3


def test_values_survive_the_way_through_a_file(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "some.gz").write_bytes(packed(values))
    assert np.array_equal(read_idx(tmp_path / "some.gz"), values)


def test_missing_files_are_named(tmp_path: Path) -> None:
    write_set(tmp_path)
    (tmp_path / FILES[3]).unlink()
    with pytest.raises(ConfigError, match=FILES[3]):
        load_idx(tmp_path)
    with pytest.raises(ConfigError, match="four official files"):
        load_idx(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"not gzip",
        gzip.compress(b"\0\0\x08\x01\0\0\0\x05abc"),
        gzip.compress(b"\0\0\x0d\x01\0\0\0\x03abc"),
        gzip.compress(b"\0\0\x08\x03\0\0"),
        packed(np.zeros(9, np.uint8))[:-9],
    ],
    ids=["empty", "not packed", "too short", "of another type", "without its sizes", "cut off"],
)
def test_a_broken_file_is_refused(tmp_path: Path, blob: bytes) -> None:
    (tmp_path / "broken.gz").write_bytes(blob)
    with pytest.raises(ConfigError, match=r"broken\.gz"):
        read_idx(tmp_path / "broken.gz")


def test_images_and_labels_must_belong_together(tmp_path: Path) -> None:
    write_set(tmp_path)
    (tmp_path / FILES[1]).write_bytes(packed(np.zeros(5, np.uint8)))
    with pytest.raises(ConfigError, match="labels"):
        load_idx(tmp_path)
    write_set(tmp_path)
    (tmp_path / FILES[2]).write_bytes(packed(np.zeros((3, 2, 2), np.uint8)))
    with pytest.raises(ConfigError, match="alike"):
        load_idx(tmp_path)


def test_the_folder_given_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OFL_DATA", raising=False)
    assert data_folder() is None
    monkeypatch.setenv("OFL_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    assert data_folder(tmp_path / "own") == tmp_path / "own"


def test_halving_averages_squares_of_pixels() -> None:
    images = np.array([[[0, 255, 1, 1], [255, 0, 1, 1]]], np.uint8)
    assert np.allclose(halved(images), [[[0.5, 1 / 255]]])
