"""Many parties, one file: each has its tables, all that wait together are synced once, and a failure reaches each."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import StoreError
from ofl_iot.roles.storage import Delete, DeleteTable, Put, StoreOp
from ofl_iot.runtime.shared_store import SharedStore
from ofl_iot.runtime.store import MemoryStore, SqliteStore

names = st.sampled_from(["a", "a-1", "a0", "b"])
ops = st.one_of(
    st.builds(Put, st.sampled_from(["t", "u"]), st.integers(0, 3), st.binary(max_size=3)),
    st.builds(Delete, st.sampled_from(["t", "u"]), st.integers(0, 3)),
    st.builds(DeleteTable, st.sampled_from(["t", "u"])),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(names, st.lists(ops, max_size=3)), max_size=20))
def test_parties_do_not_see_each_other(story: list[tuple[str, list[StoreOp]]]) -> None:
    with tempfile.TemporaryDirectory() as folder, SqliteStore(Path(folder) / "all.sqlite") as file:
        shared = SharedStore(file)
        alone: dict[str, MemoryStore] = {name: MemoryStore() for name in ("a", "a-1", "a0", "b")}
        for name, batch in story:
            shared.of(name).apply(batch)
            alone[name].apply(batch)
        for name, store in alone.items():
            assert shared.of(name).load() == store.load()


class SlowFile:
    """A store whose first sync lasts until others wait."""

    def __init__(self, file: SqliteStore) -> None:
        self._file = file
        self.syncs: list[int] = []
        self.entered, self.go_on = threading.Event(), threading.Event()

    def apply(self, ops: Sequence[StoreOp]) -> None:
        self.syncs.append(len(ops))
        self.entered.set()
        assert self.go_on.wait(30)
        self._file.apply(ops)


def test_all_who_wait_while_one_syncs_are_synced_together(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "all.sqlite") as file, ThreadPoolExecutor(9) as threads:
        slow = SlowFile(file)
        shared = SharedStore(slow)  # type: ignore[arg-type]
        first = threads.submit(shared.of("p0").apply, [Put("t", 0, b"0")])
        assert slow.entered.wait(30)
        others = [threads.submit(shared.of(f"p{n}").apply, [Put("t", n, b"x")]) for n in range(1, 9)]
        while len(shared._waiting) < 8:
            threading.Event().wait(0.001)
        slow.go_on.set()
        for each in (first, *others):
            each.result(30)
        assert slow.syncs == [1, 8]
        assert shared.commits == 2
        assert file.load("p8/") == {"p8/t": {8: b"x"}}


def test_a_full_disk_is_told_to_each_and_the_next_write_works(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "all.sqlite", max_bytes=60_000) as file:
        shared = SharedStore(file)
        shared.of("a").apply([Put("t", 1, b"kept")])
        with pytest.raises(StoreError):
            shared.of("b").apply([Put("t", 1, bytes(200_000))])
        shared.of("b").apply([Put("t", 1, b"small")])
        assert shared.of("a").load() == {"t": {1: b"kept"}}
        assert shared.of("b").load() == {"t": {1: b"small"}}
