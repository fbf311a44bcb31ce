"""Images are read from the published files only, and what is missing or broken is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.catalogue import DATA_SETS
from ofl_iot.workloads.images import evened, load_images
from tests.workloads.datafiles import know, packed_idx, write_idx_set, write_svhn


def test_the_parts_follow_the_order_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx_set(tmp_path / "MNIST/raw", train=24, test=6)
    know(monkeypatch, tmp_path, "mnist")
    data = load_images("mnist", tmp_path)
    assert data.train.pixels.shape == (22, 1, 28, 28)
    assert data.train.labels.tolist() == [i % 10 for i in range(22)]
    assert data.validation.labels.tolist() == [2, 3]
    assert data.test.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.test.mean == data.validation.mean == pytest.approx(data.train.pixels.mean())


def test_what_a_network_sees_has_mean_0_and_deviation_1(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    write_svhn(tmp_path / "SVHN")
    train = load_images("svhn", tmp_path).train
    inputs = train.inputs(np.arange(len(train.labels))).numpy()
    assert inputs.mean() == pytest.approx(0, abs=1e-3)
    assert inputs.std() == pytest.approx(1, abs=1e-3)


def test_evened_images_do_not_depend_on_the_light() -> None:
    colours = np.random.default_rng(0).integers(40, 160, (3, 3, 32, 32), dtype=np.uint8)
    even = evened(colours)
    assert even.shape == (3, 1, 32, 32)
    assert even.mean(axis=(1, 2, 3)) == pytest.approx(128, abs=0.5)
    assert even.std(axis=(1, 2, 3)) == pytest.approx(40, abs=1)
    assert np.abs(even.astype(int) - evened((colours // 2 + 70).astype(np.uint8))).max() <= 3
    assert np.array_equal(evened(np.full((1, 3, 32, 32), 7, np.uint8)), np.full((1, 1, 32, 32), 128))


def test_the_label_ten_of_house_numbers_is_the_digit_zero(tmp_path: Path) -> None:
    write_svhn(tmp_path / "SVHN", train=24)
    assert load_images("svhn", tmp_path).train.labels[:11].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_without_a_folder_the_error_says_how_to_name_one() -> None:
    with pytest.raises(ConfigError, match="--data DIR or OFL_DATA"):
        load_images("mnist", None)


def test_missing_files_are_named_with_all_that_are_expected(tmp_path: Path) -> None:
    (tmp_path / "SVHN").mkdir()
    (tmp_path / "SVHN/train_32x32.mat").write_bytes(b"")
    with pytest.raises(
        ConfigError, match=r"holds no test_32x32.mat: .*train_32x32.mat, test_32x32.mat.*ofl data fetch"
    ):
        load_images("svhn", tmp_path)


def test_files_other_than_the_published_are_refused(tmp_path: Path) -> None:
    write_idx_set(tmp_path / "MNIST/raw")
    with pytest.raises(ConfigError, match=r"train-images.* is not the published file \(its md5 differs\)"):
        load_images("mnist", tmp_path)


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_svhn(tmp_path / "SVHN")

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigError, match=r"train_32x32.mat \(Permission denied\)"):
        load_images("svhn", tmp_path)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"X": np.zeros((32, 32, 3, 4), np.uint8)}, "'y'"),
        ({"X": np.zeros((32, 32, 4), np.uint8), "y": np.ones((4, 1))}, "32 x 32 x 3"),
        ({"X": np.zeros((32, 32, 3, 4)), "y": np.ones((4, 1))}, "float64"),
        ({"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.ones((3, 1))}, "3 labels"),
        ({"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.zeros((4, 1))}, "labels other than 1 to 10"),
        ({"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.ones((4, 1))}, "too few"),
    ],
)
def test_tables_of_another_layout_are_refused(tmp_path: Path, table: dict[str, np.ndarray], words: str) -> None:
    (tmp_path / "SVHN").mkdir()
    for file in DATA_SETS["svhn"].files:
        savemat(tmp_path / "SVHN" / file.name, table)
    with pytest.raises(ConfigError, match=words):
        load_images("svhn", tmp_path)


def test_rubbish_is_not_taken_for_house_numbers(tmp_path: Path) -> None:
    write_svhn(tmp_path / "SVHN")
    (tmp_path / "SVHN/test_32x32.mat").write_bytes(b"rubbish" * 100)
    with pytest.raises(ConfigError, match=r"SVHN/test_32x32\.mat is not a file of the cropped house numbers"):
        load_images("svhn", tmp_path)


@pytest.mark.parametrize("place", [200, 2000])
def test_a_damaged_compressed_table_is_named(tmp_path: Path, place: int) -> None:
    write_svhn(tmp_path / "SVHN")
    pixels = np.random.default_rng(1).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    path = tmp_path / "SVHN/test_32x32.mat"
    savemat(path, {"X": pixels, "y": np.ones((4, 1))}, do_compression=True)
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"SVHN/test_32x32\.mat is not a file .* fetch it again"):
        load_images("svhn", tmp_path)


def test_images_that_do_not_fit_their_labels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx_set(tmp_path / "MNIST/raw", train=24, test=6)
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte.gz").write_bytes(packed_idx(np.zeros(5, np.uint8)))
    know(monkeypatch, tmp_path, "mnist")
    with pytest.raises(ConfigError, match="labels"):
        load_images("mnist", tmp_path)
