"""One party of a live chaos run, as a process: production's link, store and runtime around a counting machine.

    python -m ofl_agents.chaos.party PLAN.json NAME [--take-over]

What a device releases is noted in a journal outside its state folder: an intent before the transaction, a mark when it
is durable. After a kill between the two the store itself tells whether the transaction was.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TextIO

import msgspec

from ofl_agents.chaos.counting import FEDERATION, CountingPlan, TallyToolbox
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.jobs.toolbox import Toolbox
from ofl_iot.protocol.chunks import Chunk
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.base import Machine
from ofl_iot.roles.device.outbox import TABLE as OUTBOX
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.device import TrainLocally
from ofl_iot.roles.reports.base import Report
from ofl_iot.roles.storage import Put, Stored, StoreOp
from ofl_iot.roles.store_identity import TABLE as STORE
from ofl_iot.runtime.addressing import Wire
from ofl_iot.runtime.live import Equipment, LiveParty
from ofl_iot.runtime.store import SqliteStore
from ofl_iot.runtime.telemetry import PsutilSource
from ofl_iot.transport.mqtt import MqttLink, Will
from ofl_iot.transport.settings import MqttSettings


class LivePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What all parties of a run are told, in a file."""

    counting: CountingPlan
    mqtt: MqttSettings
    folder: str
    ports: dict[str, int]
    """Each party's way to the broker: the port of the proxy in front of it."""
    names: tuple[str, ...]
    train_s: float = 1.0

    @property
    def quiet_file(self) -> Path:
        """While it exists, training adds nothing."""
        return Path(self.folder, "quiet")

    def state(self, name: str) -> Path:
        """Return a party's state folder."""
        return Path(self.folder, "state", name)

    def journal(self, name: str) -> Path:
        """Return the file in which a party's releases are noted."""
        return Path(self.folder, f"{name}.journal")

    def reports(self, name: str) -> Path:
        """Return the file in which what a party reports is noted, by time."""
        return Path(self.folder, f"{name}.reports")


class JournalledStore:
    """A store that notes each released chunk in a file outside it."""

    def __init__(self, store: SqliteStore, journal: Path) -> None:
        self._store = store
        self._file: TextIO = journal.open("a", buffering=1)
        self._resolve(journal)

    def _resolve(self, journal: Path) -> None:
        """Mark the intents of an earlier process whose transaction turns out to be durable."""
        stored = self._store.load()
        here = stored.get(STORE, {}).get("id", b"").hex()
        if here:
            for seq, sent, total in _open_intents(journal).get(here, ()):
                if seq in stored.get(OUTBOX, {}):
                    self._note("done", here, seq, sent, total)

    def apply(self, ops: Sequence[StoreOp]) -> None:
        """Carry out all operations; intents are noted before, marks when it is durable."""
        chunks = [
            (int(op.key), len(op.value), _sum_of(op.value)) for op in ops if isinstance(op, Put) and op.table == OUTBOX
        ]
        if not chunks:
            self._store.apply(ops)
            return
        here = self._store.load(STORE).get(STORE, {}).get("id", b"").hex()
        for chunk in chunks:
            self._note("intent", here, *chunk)
        self._store.apply(ops)
        for chunk in chunks:
            self._note("done", here, *chunk)

    def load(self) -> Stored:
        """Return a snapshot of everything stored."""
        return self._store.load()

    def ping(self) -> None:
        """Return when the store answers."""
        self._store.ping()

    def close(self) -> None:
        """Release the store."""
        self._store.close()
        self._file.close()

    def _note(self, what: str, store: str, seq: int, size: int, total: float) -> None:
        self._file.write(f"{what} {store} {seq} {size} {total!r} {time.time():.2f}\n")


class Released(msgspec.Struct, frozen=True):
    """A chunk that a journal notes as durable."""

    store: bytes
    seq: int
    size: int
    total: float
    at: float


def read_journal(journal: Path) -> list[Released]:
    """Return the chunks that were durably released, in order; a line that a kill cut short is none."""
    done: dict[tuple[str, int], Released] = {}
    for fields in _lines(journal):
        what, store, seq, size, total, at = fields
        if what == "done":
            done.setdefault(
                (store, int(seq)), Released(bytes.fromhex(store), int(seq), int(size), float(total), float(at))
            )
    return list(done.values())


def _open_intents(journal: Path) -> dict[str, list[tuple[int, int, float]]]:
    done = {(each.store.hex(), each.seq) for each in read_journal(journal)}
    opened: dict[str, list[tuple[int, int, float]]] = {}
    for what, store, seq, size, total, _ in _lines(journal):
        if what == "intent" and (store, int(seq)) not in done:
            opened.setdefault(store, []).append((int(seq), int(size), float(total)))
    return opened


def _lines(journal: Path) -> list[list[str]]:
    if not journal.exists():
        return []
    split = [line.split(" ") for line in journal.read_text().splitlines()]
    return [fields for fields in split if len(fields) == 6]


def _sum_of(value: bytes) -> float:
    chunk = decode(Kind.UPDATE, value)
    return float(chunk.read_values().sum()) if isinstance(chunk, Chunk) else 0.0


class FileRhythm:
    """Training adds a step until the run's folder has a file `quiet`."""

    def __init__(self, plan: LivePlan) -> None:
        self.step = plan.counting.step
        self._file = plan.quiet_file

    @property
    def busy(self) -> bool:
        """Whether training adds anything."""
        return not self._file.exists()


class SlowTraining:
    """Training takes a fixed time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def seconds(self, job: Job) -> float:
        """Return how long a job takes."""
        return self._seconds if isinstance(job, TrainLocally) else 0.0


def _toolbox(plan: LivePlan, slot: int | None) -> Toolbox:
    counting = plan.counting
    tally = TallyToolbox(counting.size, slot, FileRhythm(plan), counting.width)
    if not counting.encrypted:
        return tally
    from ofl_agents.chaos.encrypted import CryptoToolbox  # compiles kernels

    return CryptoToolbox(tally, None, counting.protection)


async def run(plan: LivePlan, name: str, *, take_over: bool) -> None:
    """Run one party until SIGTERM."""
    wire, counting = Wire(FEDERATION), plan.counting
    device = DeviceId(name)
    slot = None if name == COORDINATOR else plan.names.index(name)
    drawn = os.urandom(8)

    def make() -> Machine:
        if slot is None:
            return counting.coordinator(drawn, take_over=take_over)
        return counting.agent(device, drawn)

    will = None
    if slot is not None:
        status = counting.agent(device, drawn).device.status(online=False)
        will = Will(wire.topics.build(Topic(Kind.STATUS, device)), encode(status))
    state = plan.state(name)
    state.mkdir(parents=True, exist_ok=True)
    settings = msgspec.structs.replace(plan.mqtt, port=plan.ports[name])
    link = MqttLink(settings, device, will, echo_topic=wire.topics.build(Topic(Kind.ECHO, device)))
    with (
        ThreadPoolExecutor(2) as jobs,
        ThreadPoolExecutor(1) as stores,
        plan.reports(name).open("a", buffering=1) as reports,
    ):

        def listen(_name: str, report: Report, _now: float) -> None:
            reports.write(json.dumps([round(time.time(), 3), type(report).__name__]) + "\n")

        equipment = Equipment(
            link=link,
            store=JournalledStore(SqliteStore(state / f"{name}.sqlite"), plan.journal(name)),
            toolbox=_toolbox(plan, slot),
            wire=wire,
            executor=jobs,
            store_executor=stores,
            pace=SlowTraining(plan.train_s),
            meter=None if slot is None else PsutilSource(),
            listener=listen,
        )
        party = LiveParty(name, make, equipment)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, party.stop)
        await party.run()


def main(arguments: Sequence[str]) -> int:
    """Run the party that the command line names."""
    plan = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=LivePlan)
    asyncio.run(run(plan, arguments[1], take_over="--take-over" in arguments[2:]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
