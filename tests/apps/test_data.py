"""Whatever samples return becomes records once; what cannot be used is set aside, counted and named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.apps.data import NOT_FINITE, Records, as_records
from ofl_iot.apps.dealing import Layout, deal_records, hold_out, layout_of
from ofl_iot.apps.keep import Buffer, Newest, Reservoir
from ofl_iot.apps.sources import Folder, FolderSource, Readings
from ofl_iot.errors import ConfigError


class Pairs:
    """A map-style Dataset."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, place: int) -> Any:
        return self._items[place]


def numbered(count: int, start: int = 0) -> Records:
    return as_records((np.arange(start, start + count, dtype=np.float32)[:, None], np.zeros(count, dtype=np.int64)))


def test_arrays_become_records_of_plain_types() -> None:
    records = as_records((np.zeros((3, 2)), [0, 1, 1]))
    assert (records.inputs[0].dtype, records.targets.dtype) == (np.float32, np.int64)
    assert records.shapes == ((2,), ())
    assert records.histogram().tolist() == [1, 2]
    assert as_records((np.zeros((2, 4), np.uint8), np.zeros(2))).inputs[0].dtype == np.uint8


def test_one_array_is_its_own_target_and_several_inputs_stay_several() -> None:
    alone = as_records(np.ones((4, 3)))
    assert np.array_equal(alone.targets, alone.inputs[0])
    assert alone.histogram().tolist() == [4]
    both = as_records(((np.ones((4, 3)), np.ones((4, 2))), np.zeros(4)))
    assert both.shapes == ((3,), (2,), ())


def test_a_dataset_is_read_item_by_item() -> None:
    records = as_records(Pairs([(np.ones(2), 0), (np.zeros(2), 1)]))
    assert records.inputs[0].tolist() == [[1, 1], [0, 0]]
    several = as_records(Pairs([((np.ones(2), np.ones(3)), 0.5)]))
    assert several.shapes == ((2,), (3,), ())


def test_records_that_are_not_finite_are_set_aside_and_counted() -> None:
    values = np.ones((5, 2), np.float32)
    values[1, 0], values[3, 1] = np.nan, np.inf
    records = as_records((values, np.arange(5)))
    assert records.targets.tolist() == [0, 2, 4]
    assert records.set_aside == {NOT_FINITE: 2}


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        (None, "must return"),
        ((1, 2, 3), "3 values"),
        ((np.zeros((3, 2)), np.zeros(4)), "3 inputs for 4 targets"),
        ((np.array(["a", "b"]), np.zeros(2)), "not numbers"),
        ((np.float32(3), np.zeros(1)), "single number"),
        ((iter([1]), np.zeros(1)), "not numbers"),
        (Pairs([]), "empty"),
        (Pairs([1, 2]), r"must be \(input, target\)"),
        (Pairs([(np.zeros(2), 0), (np.zeros(3), 0)]), "different shapes"),
        (([[1, 2], [3]], [0, 1]), "different shapes"),
    ],
)
def test_what_is_no_record_is_refused_in_words(given_: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        as_records(given_)


def test_the_newest_records_stay() -> None:
    buffer = Buffer(Newest(4))
    buffer.add(numbered(3))
    buffer.add(numbered(3, 3))
    assert buffer.records is not None
    assert buffer.records.inputs[0].ravel().tolist() == [2, 3, 4, 5]
    assert buffer.seen == 6
    with pytest.raises(ConfigError, match="records of shape 2"):
        buffer.add(as_records((np.zeros((1, 2)), [0])))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 8), st.booleans())
def test_a_buffer_keeps_as_many_as_it_may_and_nothing_twice(batches: list[int], most: int, newest: bool) -> None:
    buffer, start = Buffer(Newest(most) if newest else Reservoir(most, seed=1)), 0
    for count in batches:
        buffer.add(numbered(count, start))
        start += count
    held = [] if buffer.records is None else buffer.records.inputs[0].ravel().tolist()
    assert len(held) == len(set(held)) == min(most, start)
    assert set(held) <= set(range(start))


def test_a_reservoir_keeps_old_and_new_alike() -> None:
    kept = np.zeros(100)
    for seed in range(400):
        buffer = Buffer(Reservoir(10, seed=seed))
        for start in range(0, 100, 10):
            buffer.add(numbered(10, start))
        assert buffer.records is not None
        kept[buffer.records.inputs[0].ravel().astype(int)] += 1
    first, last = kept[:50].mean(), kept[50:].mean()
    assert first == pytest.approx(40, abs=4)
    assert last == pytest.approx(40, abs=4)


def write(path: Path, count: int, start: int = 0, width: int = 2) -> None:
    """Write a file as a careful writer does: whole, under its name."""
    values = np.arange(start, start + count, dtype=np.float32)
    fresh = path.with_name(f".{path.name}")
    with fresh.open("wb") as file:
        np.savez(file, x=np.repeat(values[:, None], width, axis=1), y=np.zeros(count, np.int64))
    fresh.rename(path)
    os.utime(path, ns=(start, start))


def held(source: FolderSource) -> list[float]:
    records = source.collect()
    return [] if records is None else sorted(records.inputs[0][:, 0].tolist())


def test_a_folder_grows_shrinks_and_changes(tmp_path: Path) -> None:
    source = Folder()(str(tmp_path))
    assert source.collect() is None
    write(tmp_path / "a.npz", 2)
    assert held(source) == [0, 1]
    (tmp_path / "later").mkdir()
    write(tmp_path / "later" / "b.npz", 2, 2)
    assert held(source) == [0, 1, 2, 3]
    write(tmp_path / "a.npz", 1, 7)
    assert held(source) == [2, 3, 7]
    (tmp_path / "later" / "b.npz").unlink()
    assert held(source) == [7]


def test_files_that_cannot_be_used_are_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    write(tmp_path / "good.npz", 3)
    write(tmp_path / "wide.npz", 3, 5, width=9)
    (tmp_path / "torn.npz").write_bytes((tmp_path / "good.npz").read_bytes()[:40])
    (tmp_path / "notes.txt").write_text("hello")
    np.savez(tmp_path / "nameless.npz", a=np.zeros(2))
    os.utime(tmp_path / "nameless.npz", ns=(6, 6))
    source = Folder()(str(tmp_path))
    assert held(source) == [0, 1, 2]
    aside = source.set_aside()
    assert set(aside) == {"wide.npz", "torn.npz", "notes.txt", "nameless.npz"}
    assert aside["wide.npz"] == "records of shape 9, 1, not 2, 1"
    assert "name the inputs x" in aside["nameless.npz"]
    write(tmp_path / "torn.npz", 1, 9)
    assert held(source) == [0, 1, 2, 9]
    assert "torn.npz" not in source.set_aside()


def test_pickles_in_a_file_are_never_run(tmp_path: Path) -> None:
    np.savez(tmp_path / "trap.npz", x=np.array([{"a": 1}], dtype=object), y=np.zeros(1))
    source = Folder()(str(tmp_path))
    assert source.collect() is None
    assert "allow_pickle" in source.set_aside()["trap.npz"]


def test_csv_files_with_and_without_a_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("speed,load,state\n1.5,2,0\n2.5,3,1\n")
    (tmp_path / "b.csv").write_text("3.5,4,1\n")
    (tmp_path / "c.csv").write_text("3.5,4\n1,2,3\n")
    (tmp_path / "d.csv").write_text("nan,4,1\n")
    source = Folder("*.csv")(str(tmp_path))
    records = source.collect()
    assert records is not None
    assert sorted(records.inputs[0][:, 0].tolist()) == [1.5, 2.5, 3.5]
    assert records.targets.dtype == np.int64
    aside = source.set_aside()
    assert "rows of equal length" in aside["c.csv"]
    assert aside["records"] == f"1 with values that are {NOT_FINITE}"


def test_a_reader_of_ones_own_may_raise_what_it_likes(tmp_path: Path) -> None:
    for name in ("good.bin", "bad.bin"):
        (tmp_path / name).write_bytes(b"\1\2")

    def read(path: Path) -> Any:
        if path.name == "bad.bin":
            raise RuntimeError("sensor 7 has no calibration")
        return np.frombuffer(path.read_bytes(), np.uint8)[None], [0]

    source = Folder("*.bin", read)(str(tmp_path))
    assert len(source.collect() or ()) == 1
    assert source.set_aside() == {"bad.bin": "RuntimeError: sensor 7 has no calibration"}


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        Folder()(str(tmp_path / "none"))


def test_a_program_adds_readings_itself() -> None:
    readings = Readings(Newest(3))
    assert readings("anywhere").collect() is None
    assert readings.add(np.zeros((2, 4)), [0, 1]) == 2
    assert readings.add(np.array([[np.nan] * 4, [1] * 4]), [0, 1]) == 1
    assert len(readings.collect() or ()) == 3
    assert readings.set_aside() == {f"records {NOT_FINITE}": "1"}
    with pytest.raises(ConfigError, match="records of shape 5"):
        readings.add(np.zeros((1, 5)), [0])


def test_a_folder_has_a_part_for_each_device_or_is_dealt(tmp_path: Path) -> None:
    for name in ("b", "a", ".hidden"):
        (tmp_path / name).mkdir()
    for name in ("1.npz", "2.npz", "3.npz"):
        (tmp_path / name).touch()
    assert layout_of(str(tmp_path), 2).parts == (str(tmp_path / "a"), str(tmp_path / "b"))
    assert len(layout_of(str(tmp_path), 3).parts) == 3
    assert layout_of(str(tmp_path), 4) == Layout(str(tmp_path))
    assert layout_of("", 4) == Layout("")
    (tmp_path / "holdout.npz").touch()
    assert layout_of(str(tmp_path), 3).held_out == str(tmp_path / "holdout.npz")
    with pytest.raises(ConfigError, match="ask for as many devices"):
        layout_of(str(tmp_path), 4)


def test_a_fifth_is_held_out_and_nobody_trains_on_it() -> None:
    kept, held_out = hold_out([numbered(20), numbered(3, 20)], seed=1)
    assert [len(each) for each in kept] == [16, 3]
    assert len(held_out) == 4
    everything = [value for each in (*kept, held_out) for value in each.inputs[0].ravel().tolist()]
    assert sorted(everything) == list(range(23))


@pytest.mark.parametrize("targets", [np.arange(90) % 3, np.linspace(0, 1, 90)])
def test_every_record_is_dealt_to_exactly_one_device(targets: Any) -> None:
    records = as_records((np.arange(90, dtype=np.float32)[:, None], targets))
    shares = deal_records(records, 5, seed=3, alpha=0.5)
    dealt = sorted(value for share in shares for value in share.inputs[0].ravel().tolist())
    assert dealt == list(range(90))
    assert all(len(share) for share in shares)
