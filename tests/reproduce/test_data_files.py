"""Data files of cells: one digest, and cells that are not mixed with those of other files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.catalogue import DATA_SETS
from ofl_iot.workloads.idx import FILES
from ofl_research.reproduction.cells import Cell, Finished
from ofl_research.reproduction.data_files import fingerprint, refuse_other_files


def svhn(folder: Path, train: bytes = b"train", test: bytes = b"test") -> Path:
    """A data folder with files of SVHN, whose contents need not be the published ones."""
    known = DATA_SETS["svhn"]
    for file, content in zip(known.files, (train, test), strict=True):
        path = known.path(folder, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def finished(dataset: str, data_files: str) -> Finished:
    cell = Cell(work="w", dataset=dataset, system="ofl", seed=1)
    return Finished(cell=cell, result={}, wall_s=1.0, commit="abc", data_files=data_files)


def test_the_same_files_have_the_same_digest_in_any_folder(tmp_path: Path) -> None:
    here = fingerprint("svhn", svhn(tmp_path / "here"))
    assert here
    assert here == fingerprint("svhn", svhn(tmp_path / "there"))


def test_other_contents_of_the_same_sizes_have_another_digest(tmp_path: Path) -> None:
    digests = {
        fingerprint("svhn", svhn(tmp_path / str(place), *contents))
        for place, contents in enumerate([(b"train", b"test"), (b"brain", b"test"), (b"traint", b"est")])
    }
    assert len(digests) == 3


def test_nothing_is_known_of_bundled_data_without_a_folder_and_of_files_that_are_missing(tmp_path: Path) -> None:
    assert fingerprint("digits", tmp_path) == ""
    assert fingerprint("svhn", None) == ""
    assert fingerprint("svhn", tmp_path) == ""


def test_mnist_is_found_wherever_the_learning_bench_reads_it(tmp_path: Path) -> None:
    for home in (tmp_path / "flat", tmp_path / "usual" / "MNIST" / "raw"):
        home.mkdir(parents=True)
        for name in FILES:
            (home / name).write_bytes(name.encode())
    assert fingerprint("mnist", tmp_path / "flat") == fingerprint("mnist", tmp_path / "usual") != ""


def test_finished_cells_of_other_files_are_refused_with_what_to_do(tmp_path: Path) -> None:
    data = svhn(tmp_path)
    same = finished("svhn", fingerprint("svhn", data))
    refuse_other_files([same], data)
    with pytest.raises(ConfigError, match=r"1 of svhn.*--out.*cells/svhn-\*\.json"):
        refuse_other_files([same, finished("svhn", "of before")], data)


def test_what_cannot_be_compared_passes(tmp_path: Path) -> None:
    refuse_other_files([finished("svhn", ""), finished("digits", "")], svhn(tmp_path))
    refuse_other_files([finished("svhn", "of before")], None)
    refuse_other_files([finished("cora", "of before")], tmp_path)
