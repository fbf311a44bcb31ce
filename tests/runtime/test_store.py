"""A store holds whole batches, whatever happens; both stores obey the same laws."""

from __future__ import annotations

import functools
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError, OflError, StoreError
from ofl_iot.roles.storage import Delete, DeleteTable, Key, Put, StoreOp, in_key_order
from ofl_iot.runtime.store import MAX_LOG_BYTES, MemoryStore, SqliteStore, Store

Model = dict[str, dict[Key, bytes]]

TABLES = st.sampled_from(["outbox", "merged", ""])
KEYS = (
    st.integers(-3, 3)
    | st.sampled_from(["", "a", "3", "truck-017", "é", "a\0b"])
    | st.sampled_from([2**63 - 1, -(2**63)])
)
OPS = st.one_of(
    st.builds(Put, TABLES, KEYS, st.binary(max_size=40)),
    st.builds(Delete, TABLES, KEYS),
    st.builds(DeleteTable, TABLES),
)
BATCHES = st.lists(st.lists(OPS, max_size=8), max_size=6)


def carry_out(model: Model, ops: Sequence[StoreOp]) -> Model:
    """What a batch means, written as plainly as possible."""
    after = {name: dict(table) for name, table in model.items()}
    for op in ops:
        if isinstance(op, Put):
            after.setdefault(op.table, {})[op.key] = op.value
        elif isinstance(op, Delete):
            after.get(op.table, {}).pop(op.key, None)
        else:
            after.pop(op.table, None)
    return {name: {key: table[key] for key in in_key_order(table)} for name, table in after.items() if table}


def prefixes(batches: Sequence[Sequence[StoreOp]]) -> list[Model]:
    """The state after no batch, after the first, ... after all."""
    states: list[Model] = [{}]
    for batch in batches:
        states.append(carry_out(states[-1], batch))
    return states


def same_in_order(stored: object, model: Model) -> bool:
    return repr(stored) == repr(dict(sorted(model.items())))


def numbered_batch(n: int) -> list[StoreOp]:
    """A batch that writes, overwrites and deletes, and differs for every n."""
    ops: list[StoreOp] = [
        Put("state", "last", str(n).encode()),
        Put("outbox", n, bytes([n % 251]) * (n % 7 * 900)),
    ]
    ops += [Delete("outbox", n - 4)]
    if n % 11 == 0:
        ops += [DeleteTable("outbox"), Put("outbox", -n, b"after")]
    return ops


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest, path: Path) -> Iterator[Store]:
    opened: Store = SqliteStore(path) if request.param == "sqlite" else MemoryStore()
    yield opened
    opened.close()


# Laws


@given(BATCHES)
def test_memory_store_is_its_model(batches: list[list[StoreOp]]) -> None:
    store = MemoryStore()
    for batch in batches:
        store.apply(batch)
    assert same_in_order(store.load(), prefixes(batches)[-1])


@settings(max_examples=40, deadline=None)
@given(BATCHES)
def test_sqlite_store_is_its_model_after_every_reopening(batches: list[list[StoreOp]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        for batch, expected in zip(batches, prefixes(batches)[1:], strict=True):
            with SqliteStore(path) as store:
                store.apply(batch)
            with SqliteStore(path) as store:
                assert same_in_order(store.load(), expected)


@settings(max_examples=60, deadline=None)
@given(batches=BATCHES, cut=st.floats(0, 1))
def test_a_log_cut_off_at_any_byte_leaves_a_prefix_of_whole_batches(batches: list[list[StoreOp]], cut: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, copy = Path(folder) / "store.db", Path(folder) / "copy.db"
        with SqliteStore(path) as store:
            for batch in batches:
                store.apply(batch)
            shutil.copy(path, copy)
            log = Path(f"{path}-wal").read_bytes()
        Path(f"{copy}-wal").write_bytes(log[: round(cut * len(log))])
        with SqliteStore(copy) as store:
            found = store.load()
        assert any(same_in_order(found, state) for state in prefixes(batches))


def test_kill_9_at_any_point_leaves_every_confirmed_batch_and_no_half_batch(path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import sys
        sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
        from pathlib import Path
        from test_store import SqliteStore, numbered_batch
        store = SqliteStore(Path({str(path)!r}))
        n = int(store.load().get("state", {{}}).get("last", b"0"))
        while True:
            n += 1
            store.apply(numbered_batch(n))
            print(n, flush=True)
        """
    )
    confirmed = 0
    for confirmations in (0, 1, 40, 3, 250):
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as writer:  # noqa: S603
            assert writer.stdout is not None
            for _ in range(confirmations):
                confirmed = int(writer.stdout.readline())
            writer.kill()
        with SqliteStore(path) as store:
            found = store.load()
        last = int(found.get("state", {}).get("last", b"0"))
        assert last >= confirmed
        assert same_in_order(found, prefixes([numbered_batch(n) for n in range(1, last + 1)])[-1])
    assert confirmed >= 294


NINE_BATCHES = [numbered_batch(n) for n in range(1, 10)]


@functools.cache
def file_of_nine_batches() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        with SqliteStore(path) as store:
            for batch in NINE_BATCHES:
                store.apply(batch)
        return path.read_bytes()


@settings(max_examples=150, deadline=None)
@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_harmless(position: float, bit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        content = bytearray(file_of_nine_batches())
        content[int(position * len(content))] ^= 1 << bit
        path.write_bytes(content)
        try:
            with SqliteStore(path) as store:
                found = store.load()
        except OflError:
            return
        assert same_in_order(found, prefixes(NINE_BATCHES)[-1])


# Stories of both stores


def test_what_was_loaded_does_not_change_with_the_store(store: Store) -> None:
    store.apply([Put("t", 1, b"old")])
    before = store.load()
    store.apply([Put("t", 1, b"new"), Put("t", 2, b"x")])
    assert before == {"t": {1: b"old"}}


def test_an_empty_batch_and_the_deletion_of_nothing_are_no_errors(store: Store) -> None:
    store.apply([])
    store.apply([Delete("t", 1), DeleteTable("u")])
    assert store.load() == {}


def test_the_number_3_and_the_text_3_are_two_keys(store: Store) -> None:
    store.apply([Put("t", "3", b"text"), Put("t", 20, b"twenty"), Put("t", 3, b"number")])
    assert list(store.load()["t"].items()) == [(3, b"number"), (20, b"twenty"), ("3", b"text")]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Put("t", 2**63, b""), ValueError),
        (lambda: Delete("t", "\ud800"), ValueError),
        (lambda: DeleteTable("\ud800"), ValueError),
        (lambda: Put("t", 1.5, b""), TypeError),  # type: ignore[arg-type]
        (lambda: Put("t", True, b""), TypeError),
        (lambda: Put("t", 1, bytearray(b"changes later")), TypeError),  # type: ignore[arg-type]
    ],
)
def test_an_operation_that_no_store_can_hold_cannot_be_made(
    make: Callable[[], StoreOp], error: type[Exception]
) -> None:
    with pytest.raises(error):
        make()


def test_a_memory_store_set_full_refuses_and_keeps_its_state() -> None:
    store = MemoryStore()
    store.apply([Put("t", 1, b"kept")])
    store.full = True
    with pytest.raises(StoreError, match="full"):
        store.apply([DeleteTable("t")])
    assert store.load() == {"t": {1: b"kept"}}


# Stories of the file


def test_a_full_store_refuses_the_whole_batch_and_goes_on_when_there_is_room(path: Path) -> None:
    with SqliteStore(path, max_bytes=64 * 1024) as store:
        store.apply([Put("outbox", 1, bytes(20_000)), Put("state", "n", b"1")])
        before = store.load()
        with pytest.raises(StoreError, match=r"full.*free disk space"):
            store.apply([Delete("outbox", 1), Put("state", "n", b"2"), Put("outbox", 2, bytes(100_000))])
        assert store.load() == before
        store.apply([Delete("outbox", 1), Put("outbox", 2, bytes(30_000))])
    with SqliteStore(path) as store:
        assert store.load() == {"outbox": {2: bytes(30_000)}, "state": {"n": b"1"}}


def test_a_file_that_cannot_grow_any_more_leaves_the_store_whole(path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import resource, sys
        sys.path[:] = {sys.path!r}
        from pathlib import Path
        from ofl_iot.errors import StoreError
        from ofl_iot.roles.storage import Put
        from ofl_iot.runtime.store import SqliteStore
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
        store, n = SqliteStore(Path({str(path)!r})), 0
        try:
            while True:
                store.apply([Put("outbox", n, bytes(9_000)), Put("state", "n", b"%d" % n)])
                n += 1
        except StoreError as error:
            assert len(store.load()["outbox"]) == n, "half a batch"
            print(n)
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.apply([Put("state", "room", b"again")])
        """
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)  # noqa: S603
    count, message = done.stdout.splitlines()
    assert "cannot write to the store" in message
    with SqliteStore(path) as store:
        found = store.load()
    assert list(found["outbox"]) == list(range(int(count)))
    assert found["state"] == {"n": b"%d" % (int(count) - 1), "room": b"again"}


def test_a_second_process_is_told_that_the_store_is_in_use(path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import sys
        sys.path[:] = {sys.path!r}
        from pathlib import Path
        from ofl_iot.runtime.store import SqliteStore
        SqliteStore(Path({str(path)!r}))
        """
    )
    with SqliteStore(path) as store:
        store.apply([Put("t", 1, b"mine")])
        second = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)  # noqa: S603
        assert "ConfigError: another process uses the store" in second.stderr
        with pytest.raises(ConfigError, match="another process uses"):
            SqliteStore(path)
        store.apply([Put("t", 2, b"still mine")])
    with SqliteStore(path) as store:
        assert list(store.load()["t"]) == [1, 2]


def test_only_the_owner_can_read_the_file_and_its_log(path: Path) -> None:
    with SqliteStore(path) as store:
        store.apply([Put("keys", "share", b"secret")])
        for file in (path, Path(f"{path}-wal")):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("garbage", [b"not a database at all" * 400, b"SQLite format 3\0" + bytes(8000)])
def test_a_corrupt_file_is_refused_with_its_name_and_left_in_place(path: Path, garbage: bytes) -> None:
    path.write_bytes(garbage)
    with pytest.raises(StoreError, match=r"store\.db is damaged.*move it"):
        SqliteStore(path)
    assert path.read_bytes() == garbage


def test_a_damaged_page_is_found_on_opening(path: Path) -> None:
    with SqliteStore(path) as store:
        store.apply([Put("t", n, bytes(500)) for n in range(100)])
    content = path.read_bytes()
    path.write_bytes(content[:8192] + os.urandom(4096) + content[12288:])
    with pytest.raises(StoreError, match="damaged"):
        SqliteStore(path)


def test_a_changed_value_is_found_on_loading(path: Path) -> None:
    with SqliteStore(path) as store:
        store.apply([Put("t", 1, b"precious value")])
    path.write_bytes(path.read_bytes().replace(b"precious", b"Precious"))
    with SqliteStore(path) as store, pytest.raises(StoreError, match="wrong checksum of key 1 in table 't'"):
        store.load()


def test_a_changed_table_definition_is_damage(path: Path) -> None:
    SqliteStore(path).close()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE extra (x)")
    other.close()
    with pytest.raises(StoreError, match="table definition"):
        SqliteStore(path)


def test_a_store_of_a_newer_version_asks_for_an_upgrade(path: Path) -> None:
    SqliteStore(path).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 2")
    other.close()
    with pytest.raises(ConfigError, match="upgrade ofl-iot"):
        SqliteStore(path)


def test_the_database_of_another_program_is_refused_and_not_changed(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE bookmarks (x)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another program"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="directory must exist"):
        SqliteStore(tmp_path / "nowhere" / "store.db")


def test_a_directory_in_place_of_the_file_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot open"):
        SqliteStore(tmp_path)


def test_a_closed_store_says_so_and_may_be_closed_again(path: Path) -> None:
    store = SqliteStore(path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.apply([Put("t", 1, b"")])
    with pytest.raises(StoreError, match="closed"):
        store.load()


def test_threads_take_turns(path: Path) -> None:
    start = threading.Barrier(4)

    def write(thread: int) -> None:
        start.wait(timeout=10)
        for n in range(20):
            store.apply([Put(f"thread-{thread}", n, b"x"), Put("all", thread * 100 + n, b"y")])

    with SqliteStore(path) as store, ThreadPoolExecutor(4) as executor:
        list(executor.map(write, range(4)))
        found = store.load()
    assert len(found["all"]) == 80
    assert all(len(found[f"thread-{thread}"]) == 20 for thread in range(4))


def test_an_interrupt_inside_a_batch_undoes_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(table: str, key: Key, value: bytes) -> int:
        raise KeyboardInterrupt

    with SqliteStore(path) as store:
        store.apply([Put("t", 1, b"kept")])
        with monkeypatch.context() as patch:
            patch.setattr("ofl_iot.runtime.store._checksum", interrupt)
            with pytest.raises(KeyboardInterrupt):
                store.apply([Delete("t", 1), Put("t", 2, b"half")])
        assert store.load() == {"t": {1: b"kept"}}


def test_a_commit_survives_a_power_cut_whatever_sqlite_was_compiled_with(path: Path) -> None:
    """Only `synchronous = FULL` (2) syncs the log at each commit; a killed process cannot show the difference."""
    store = SqliteStore(path)
    try:
        (level,) = store._connection.execute("PRAGMA synchronous").fetchone()
        (journal,) = store._connection.execute("PRAGMA journal_mode").fetchone()
    finally:
        store.close()
    assert (level, journal) == (2, "wal")


@pytest.mark.parametrize("large", [False, True])
def test_a_wiped_value_is_nowhere_in_the_files_while_the_store_is_open(tmp_path: Path, large: bool) -> None:
    """Without it a deleted key share stays in the log until that is folded, which may take days."""
    secret = bytes(range(1, 250)) * (400 if large else 1)
    with SqliteStore(tmp_path / "s.sqlite") as store:
        store.apply([Put("keys", "share", secret), Put("keys", "other", b"stays")])
        store.apply([Put("noise", number, bytes(1000)) for number in range(20)])
        assert found(secret, tmp_path)
        store.apply([Delete("keys", "share", wipe=True), Put("keys", "share", b"the next one")])
        assert not found(secret, tmp_path)
        assert store.load()["keys"] == {"other": b"stays", "share": b"the next one"}


def test_what_is_deleted_is_overwritten_in_the_file(tmp_path: Path) -> None:
    secret = bytes(range(1, 250)) * 40
    with SqliteStore(tmp_path / "s.sqlite") as store:
        store.apply([Put("outbox", 1, secret), Put("outbox", 2, b"stays")])
    assert found(secret, tmp_path)
    with SqliteStore(tmp_path / "s.sqlite") as store:
        store.apply([Delete("outbox", 1)])
    assert not found(secret, tmp_path)


def found(secret: bytes, folder: Path) -> bool:
    """Whether any run of the secret is in any file."""
    pieces = [secret[at : at + 60] for at in range(0, len(secret), 60)]
    return any(piece in file.read_bytes() for file in folder.iterdir() for piece in pieces[:5] if len(piece) == 60)


def test_the_log_of_a_small_store_stays_small(path: Path) -> None:
    """Without a bound it grew to thousands of pages for a few kilobytes of data, and filled small disks."""
    log = path.with_name(path.name + "-wal")
    with SqliteStore(path) as store:
        for number in range(300):
            store.apply([Put("state", number % 5, bytes(1000))])
            assert log.stat().st_size <= MAX_LOG_BYTES
        store.apply([Put("model", "values", bytes(4 * MAX_LOG_BYTES))])
        for number in range(100):
            store.apply([Put("state", number % 5, bytes(1000))])
        assert log.stat().st_size <= MAX_LOG_BYTES, "a large transaction's log is cut again"
