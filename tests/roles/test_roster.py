"""The coordinator's books on devices: what is seen of them, who leads, who is where after a crash."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.fleet.assignment import FleetSettings
from ofl_iot.fleet.clustering import ClusteringSettings
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.lives import Account
from ofl_iot.protocol.messages import Observation, Status
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.roles.coordinator.device_record import CONTACT_S
from ofl_iot.roles.coordinator.roster import Roster
from ofl_iot.roles.coordinator.settled_record import SettledRecord, books_message, records_from, restored
from ofl_iot.roles.leader.observation import MAX_INTERVALS, MIN_ARRIVAL_BYTES, ContactWindow, Observer
from ofl_iot.roles.settings import TrainingRules
from ofl_iot.roles.storage import StoreOp
from ofl_iot.runtime.store import MemoryStore
from tests.roles.parties import A, B, C, D, chunk_of, status

E = DeviceId("e")
AWAY_S = 100.0
REPORT = Telemetry(cpu_count=4, cpu_ghz=1.5, cpu_load=0.2, memory_total_mib=4096, memory_free_mib=2048, step_s=0.1)


class Books:
    """A roster with its store: `again` is what a restart makes of it."""

    def __init__(self, *devices: DeviceId, clusters: int = 1) -> None:
        self.settings = FleetSettings(clustering=ClusteringSettings(clusters=clusters))
        self.store = MemoryStore()
        self.roster = self._new()
        for device in devices:
            self.hear(device)
        if devices:
            self.recluster(0.0)

    def _new(self) -> Roster:
        return Roster(self.settings, TrainingRules(steps=10, pause_s=2.0))

    def keep(self, ops: list[StoreOp]) -> None:
        self.store.apply(ops)

    def recluster(self, now: float) -> None:
        plan, ops = self.roster.propose(now)
        self.keep(ops)
        self.keep(self.roster.adopt(plan, now, AWAY_S))

    def hear(self, device: DeviceId, now: float = 0.0, **changes: object) -> None:
        self.keep(self.roster.heard(device, status(**changes), now))  # type: ignore[arg-type]

    def again(self, now: float = 0.0) -> Roster:
        roster = self._new()
        roster.restore(self.store.load(), now)
        return roster

    @property
    def leader(self) -> DeviceId:
        (seat,) = self.roster.seats()
        return DeviceId(seat.leader)

    @property
    def follower(self) -> DeviceId:
        return next(device for device in self.roster.devices if device != self.leader)


# --- what is seen


def test_contact_is_the_share_of_the_window_with_a_link() -> None:
    books = Books(A, B)
    books.hear(A, 60.0)
    books.hear(A, 150.0, online=False)
    books.hear(A, 240.0, online=False)
    books.hear(A, 270.0)
    assert books.roster.take_stock(CONTACT_S - 1.0) == [], "the window is not over"
    books.keep(books.roster.take_stock(CONTACT_S))
    contact = books.roster.devices[A].evidence.availability
    assert (contact.value, contact.count) == (pytest.approx((150 + 30) / 300), 1)
    assert books.roster.devices[B].evidence.availability.value == 1.0


def test_what_is_known_of_devices_outlives_the_process_and_unwatched_time_does_not_count() -> None:
    books = Books(A, B)
    books.roster.reported(A, REPORT)
    books.roster.reported(C, REPORT)
    books.roster.observed(books.leader, [Observation(books.follower, 3, 12.0)])
    books.keep(books.roster.take_stock(CONTACT_S))
    after = books.again(now=7.0)
    assert {device: record.view for device, record in after.devices.items()} == {
        device: record.view for device, record in books.roster.devices.items()
    }
    assert after.devices[A].telemetry == REPORT
    assert C not in after.devices, "a report makes no device known"
    assert (after.plan, after.terms) == (books.roster.plan, books.roster.terms)
    after.heard(A, status(), 20.0)
    after.take_stock(20.0, at_once=True)
    assert after.devices[A].contact == ContactWindow.open(20.0)


def test_pace_is_what_the_leader_timed_without_the_rest_between_trainings() -> None:
    books = Books(A, B)
    books.roster.observed(books.leader, [Observation(books.follower, 5, 7.0)])
    assert books.roster.devices[books.follower].evidence.steps_per_s.value == pytest.approx(10 / (7.0 - 2.0))


@given(st.floats(0, 100), st.integers(0, 10**9), st.floats(0, 100))
def test_no_observation_speaks_against_a_modest_claim(training_s: float, size_bytes: int, arrival_s: float) -> None:
    books = Books(A, B)
    modest = msgspec.structs.replace(REPORT, network_mbps=2.0)
    books.roster.reported(books.follower, modest)
    books.roster.observed(books.leader, [Observation(books.follower, 1, training_s, size_bytes, arrival_s)])
    evidence = books.roster.devices[books.follower].evidence
    assert evidence.steps_per_s.value <= 1 / 0.1 + 1e-9
    assert evidence.network_mbps.value <= 2.0 + 1e-9


def test_a_leader_is_no_witness_of_itself_nor_of_other_clusters() -> None:
    books = Books(A, B, C, D, clusters=2)
    leader = DeviceId(books.roster.seats()[0].leader)
    strangers = [d for d in books.roster.devices if (c := books.roster.cluster_of(d)) and c.leader != leader]
    books.roster.observed(leader, [Observation(device, 3, 12.0) for device in (leader, *strangers, "nobody")])
    assert all(record.evidence.steps_per_s.count == 0 for record in books.roster.devices.values())


# --- the leader's stop watch


def update(seq: int, update_no: int, size: int = 1) -> object:
    values = dict.fromkeys(range(size), 1.0)
    return msgspec.structs.replace(chunk_of(seq, values, size=max(12, size)), update_no=update_no)


def watch(*arrivals: tuple[float, int], size: int = 1) -> Observer:
    observer = Observer()
    for seq, (now, update_no) in enumerate(arrivals, 1):
        observer.chunk_arrived(B, update(seq, update_no, size), now)  # type: ignore[arg-type]
    return observer


def test_a_training_is_timed_from_the_first_chunk_of_an_update_to_that_of_the_next() -> None:
    observer = watch((1.0, 1), (1.2, 1), (4.0, 2), (6.0, 3), (20.0, 4))
    assert observer.report() == (Observation(B, 3, 3.0),)
    assert observer.report() == (), "told once"


def test_what_a_lost_link_delays_is_not_timed() -> None:
    observer = watch((1.0, 1), (2.0, 2))
    observer.link_lost()
    observer.chunk_arrived(B, update(3, 3), 50.0)  # type: ignore[arg-type]
    assert observer.report() == (Observation(B, 1, 1.0),)


def test_an_update_that_comes_late_is_not_timed_against_a_newer_one() -> None:
    assert watch((1.0, 5), (1.1, 4)).report() == ()


def test_the_rate_is_taken_from_large_updates_alone() -> None:
    values = MIN_ARRIVAL_BYTES // 8
    (seen,) = watch((1.0, 1), (1.5, 1), (2.0, 1), (3.0, 2), (3.5, 2), size=values).report()
    assert seen.size_bytes == 2 * 4 * values
    assert seen.arrival_s == 1.0


def test_the_stop_watch_does_not_fill_up() -> None:
    (seen,) = watch(*((float(number), number) for number in range(1, 100))).report()
    assert seen.trainings == MAX_INTERVALS


# --- who leads, who has a place


@pytest.mark.parametrize("limit", [{"battery": 0.15}, {"temperature_c": 90.0}])
def test_a_leader_beyond_its_limits_is_named_if_somebody_can_take_over(limit: dict[str, float]) -> None:
    books = Books(A, B)
    leader, follower = books.leader, books.follower
    unfit = msgspec.structs.replace(REPORT, **limit)
    assert books.roster.unfit_leaders() == []
    books.roster.reported(leader, unfit)
    assert books.roster.unfit_leaders() == [leader]
    books.roster.reported(follower, unfit)
    assert books.roster.unfit_leaders() == [], "nobody would be better"
    books.roster.reported(follower, REPORT)
    books.hear(follower, online=False)
    assert books.roster.unfit_leaders() == []


def test_who_is_fit_goes_before_the_order_of_succession() -> None:
    books = Books(A, B, C, D)
    cluster = books.roster.cluster_of(A)
    assert cluster is not None
    leader, first, second, _ = cluster.members
    books.roster.reported(first, msgspec.structs.replace(REPORT, battery=0.1))
    heir, ops = books.roster.replace_leader(leader)
    assert heir == second
    books.keep(ops)
    assert books.again().terms == {second: 2}
    served = books.roster.plan.service if books.roster.plan else {}
    assert served[second].terms == 1, "service records are part of the plan"


def test_turnover_counts_who_joined_and_who_is_gone_for_long() -> None:
    books = Books(A, B, C, D)
    assert books.roster.turnover(0.0, AWAY_S) == 0.0
    books.hear(E, 10.0)
    books.keep(books.roster.join(E))
    books.hear(D, 10.0, online=False)
    assert books.roster.turnover(50.0, AWAY_S) == 1 / 4
    assert books.roster.turnover(200.0, AWAY_S) == 2 / 4
    assert books.again(200.0).turnover(200.0, AWAY_S) == 1 / 4, "after a restart absence is counted anew"
    assert Books().roster.turnover(0.0, AWAY_S) == 0.0


def test_at_a_clustering_the_absent_keep_their_place_for_a_while() -> None:
    books = Books(A, B, C, D)
    books.hear(C, 10.0, online=False)
    books.hear(C, 70.0, online=False)  # retained, and read again: it has been away since 10
    books.hear(D, 60.0, online=False)
    books.recluster(120.0)
    assert books.roster.cluster_of(C) is None
    assert books.roster.cluster_of(D) is not None
    assert books.leader in (A, B)
    books.hear(C, 130.0)
    books.keep(books.roster.join(C))
    assert books.roster.assignment(C).leader == books.leader
    assert books.again().assignment(C) == books.roster.assignment(C)


def test_a_status_without_a_key_leaves_the_known_one() -> None:
    books = Books()
    key = bytes([7]) * 32
    books.keep(books.roster.heard(A, msgspec.structs.replace(status(), sealing_key=key), 0.0))
    books.hear(A, 1.0, online=False)
    held: Status = books.again().devices[A].status
    assert held.sealing_key == key


def test_a_renewed_certificate_is_kept_and_passed_on_with_the_key() -> None:
    books = Books()
    first = msgspec.structs.replace(status(), sealing_key=bytes([7]) * 32, certificate=b"first")
    books.keep(books.roster.heard(A, first, 0.0))
    books.keep(books.roster.heard(A, msgspec.structs.replace(first, certificate=b"renewed"), 1.0))
    books.hear(A, 2.0, online=False)
    assert books.again().devices[A].status.certificate == b"renewed"


# --- lost stores


def test_books_are_kept_by_store_and_a_past_without_a_ledger_is_still_a_past() -> None:
    books = SettledRecord().with_store(b"one").settle((1, 2, 4), b"one", Account(3, 30))
    assert books == SettledRecord(b"one", SeqSet(2, (4, 4)), Account(3, 30))
    moved = books.with_store(b"two")
    assert (moved.settled, moved.account) == (SeqSet(), Account(3, 30))
    assert moved.settled_of(b"one") == SeqSet(2, (4, 4))
    late = moved.settle((3,), b"one")
    assert late.settled_of(b"one") == SeqSet(4), "leaders may still hold chunks of the lost store"
    assert late.settled == SeqSet()
    assert late.with_store(b"one").settled == SeqSet(4), "it was found again"
    assert moved.with_store(b"") == moved, "a last will names no store"
    old = SettledRecord(settled=SeqSet(5)).with_store(b"new")
    assert old.account.version == 1, "the version before told nothing of its ledger"
    for number in range(50):
        late = late.with_store(b"%d" % number)
    assert len(late.former) == 4


def test_books_of_the_version_before_are_taken_up_and_told_on() -> None:
    rows = {"coordinator.settled": {"a": msgspec.msgpack.encode(SeqSet(7))}}
    assert restored(rows) == {A: SettledRecord(settled=SeqSet(7))}
    books = {"a": SettledRecord(b"one", SeqSet(7), Account(2, 20)), "b": SettledRecord(b"two")}
    assert records_from(books_message(5, books)) == books
    assert books_message(5, books).completed == 5
