"""CFL, IFCA and RFL-HA: who ends up with whom, and how clusters and server work together."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.roles.commands import Command, Compute, Publish
from ofl_iot.roles.events import Evaluated, JobFailed, LinkUp, Started, Trained
from ofl_iot.roles.job_kinds.rounds import EvaluateModel
from ofl_iot.roles.reports.base import Report
from ofl_research.baselines.cfl import Cfl, CflOptions, bipartition, cosines
from ofl_research.baselines.device import DensePacking, DeviceMachine, Worker
from ofl_research.baselines.head import AsynchronousServer, HeadableDevice, SynchronousHead
from ofl_research.baselines.ifca import Ifca, IfcaOptions
from ofl_research.baselines.letters import (
    BaselineMessage,
    BaselineMessageArrived,
    Hello,
    Lead,
    Offer,
    Reply,
    Vector,
    pack_dense,
    read_letter,
    unpack_dense,
)
from ofl_research.baselines.reports import ModelsMerged
from ofl_research.baselines.rfl_ha import equal_pace
from ofl_research.baselines.server import Schedule

ANNA, BERT, CARL = DeviceId("anna"), DeviceId("bert"), DeviceId("carl")


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def letters(commands: list[Command]) -> list[tuple[str, BaselineMessage]]:
    published = [c for c in commands if isinstance(c, Publish)]
    return [(str(c.topic.receiver), read_letter(bytes(c.message))) for c in published]  # type: ignore[arg-type]


# --- CFL


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32))
def test_a_split_puts_opposite_directions_apart(ahead: int, back: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=20)
    updates = [s * direction + rng.normal(0, 0.1, 20) for s in [1.0] * ahead + [-1.0] * back]
    halves = bipartition(cosines([np.asarray(u, np.float32) for u in updates]))
    assert sorted(map(sorted, halves)) == [list(range(ahead)), list(range(ahead, ahead + back))]


@given(st.integers(2, 9), st.integers(0, 2**32))
def test_a_split_keeps_everyone_exactly_once(count: int, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    halves = bipartition(cosines(list(rows)))
    assert len(halves) == 2
    assert sorted(halves[0] + halves[1]) == list(range(count))


def test_an_update_without_length_has_no_direction() -> None:
    np.testing.assert_array_equal(cosines([vector(0, 0), vector(1, 0)]), [[0, 0], [0, 1]])


def torn(first_split_round: int = 1, **pulls: float) -> tuple[Cfl, int]:
    strategy = Cfl(vector(0, 0), CflOptions(first_split_round=first_split_round, min_members=2))
    strategy.begin({device: Hello(10) for device in pulls})
    return strategy, strategy.combine(1, {d: Reply(1, pack_dense(vector(pull, 0))) for d, pull in pulls.items()})


def test_a_cluster_whose_devices_pull_apart_is_split_and_each_half_has_its_model_from_then_on() -> None:
    strategy, work = torn(anna=1.0, bert=-1.0, carl=0.9)
    assert sorted(map(sorted, strategy.clusters)) == [["anna", "carl"], ["bert"]]
    assert work == 3 * 2 + 9 * 2
    assert sorted(judged.share for judged in strategy.judged()) == pytest.approx([1 / 3, 2 / 3])
    start = strategy.models_for("anna")[0]
    moved = {d: Reply(2, pack_dense(start + vector(x, 0))) for d, x in (("anna", 0.5), ("bert", -0.5), ("carl", 0.5))}
    strategy.combine(2, moved)
    assert strategy.models_for("anna")[0][0] > strategy.models_for("bert")[0][0]
    np.testing.assert_array_equal(strategy.models_for("anna")[0], strategy.models_for("carl")[0])


@pytest.mark.parametrize(("first", "carl"), [(1, 1.0), (5, -1.0)])
def test_a_cluster_that_agrees_or_is_young_stays_whole(first: int, carl: float) -> None:
    strategy, _ = torn(first, anna=1.0, bert=1.0, carl=carl)
    assert strategy.clusters == [["anna", "bert", "carl"]]


# --- IFCA


def test_every_model_becomes_the_mean_of_those_who_chose_it_and_one_that_nobody_chose_stays() -> None:
    strategy = Ifca(vector(1, 2, 3), IfcaOptions(clusters=3), np.random.default_rng(0))
    strategy.begin({"anna": Hello(30), "bert": Hello(10), "carl": Hello(5)})
    untouched = strategy.models_for("anna")[1].copy()
    replies = {"anna": (0.0, 0), "bert": (4.0, 0), "carl": (7.0, 2)}
    strategy.combine(1, {d: Reply(1, pack_dense(vector(v, v, v)), choice=c) for d, (v, c) in replies.items()})
    np.testing.assert_allclose(strategy.models[0], vector(1, 1, 1))
    np.testing.assert_array_equal(strategy.models[1], untouched)
    np.testing.assert_allclose(strategy.models[2], vector(7, 7, 7))
    assert [judged.share for judged in strategy.judged()] == pytest.approx([2 / 3, 1 / 3])


def test_the_models_of_ifca_start_apart() -> None:
    models = Ifca(vector(1, 2, 3), IfcaOptions(), np.random.default_rng(0)).models
    assert not np.array_equal(models[0], models[1])


# --- RFL-HA


@given(
    st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.floats(0.01, 1), min_size=1, max_size=20),
    st.integers(0, 5),
)
def test_clusters_of_equal_pace_are_equally_large_and_headed_by_their_fastest(
    paces: dict[str, float], clusters: int
) -> None:
    hellos = {device: Hello(1, pace) for device, pace in paces.items()}
    groups = equal_pace(hellos, clusters)
    assert sorted(member for members in groups.values() for member in members) == sorted(paces)
    sizes = [len(members) for members in groups.values()]
    assert max(sizes) - min(sizes) <= 1
    assert all(paces[head] == min(paces[member] for member in members) for head, members in groups.items())


def headable(name: DeviceId) -> HeadableDevice:
    return HeadableDevice(DeviceMachine(Worker(name, 10, steps=1), DensePacking()), SynchronousHead)


def test_a_head_passes_the_model_on_and_answers_with_the_mean_when_all_members_have() -> None:
    machine = headable(ANNA)
    assert machine.handle(Started(), 0)
    assert letters(machine.handle(LinkUp(), 0))
    assert not machine.handle(BaselineMessageArrived(COORDINATOR, Lead({ANNA: 30, BERT: 10})), 0)
    offered = machine.handle(BaselineMessageArrived(COORDINATOR, Offer(4, (pack_dense(vector(0)),))), 0)
    assert letters(offered) == [(BERT, Offer(4, (pack_dense(vector(0)),)))]
    assert any(isinstance(c, Compute) for c in offered)  # its own device trains too
    assert not letters(machine.handle(Trained(vector(0), vector(1), 0, 1, 0), 0))  # nothing goes through the broker
    assert machine.local is not None
    assert not machine.handle(BaselineMessageArrived(BERT, Reply(3, pack_dense(vector(9)))), 0)  # of a past round
    closed = machine.handle(BaselineMessageArrived(BERT, Reply(4, pack_dense(vector(5)))), 0)
    assert letters(closed) == [(COORDINATOR, Reply(4, pack_dense(vector(2))))]
    assert [c for c in closed if isinstance(c, Report)] == [ModelsMerged(2)]


def asynchronous(rounds: int) -> AsynchronousServer:
    schedule = Schedule(devices=3, rounds=rounds)
    return AsynchronousServer(vector(0), lambda hellos: equal_pace(hellos, 2), schedule, alpha=0.5, exponent=1.0)


def test_the_server_takes_each_cluster_in_when_it_comes_and_discounts_what_lags() -> None:
    machine = asynchronous(rounds=2)
    assert machine.handle(Started(), 0)
    commands: list[Command] = []
    for pace, device in enumerate((ANNA, BERT, CARL)):
        commands = machine.handle(BaselineMessageArrived(device, Hello(10, pace + 1.0)), 0)
    assert [letter for _, letter in letters(commands)] == [
        Lead({ANNA: 10, BERT: 10}),
        Offer(0, (pack_dense(vector(0)),)),
        Lead({CARL: 10}),
        Offer(0, (pack_dense(vector(0)),)),
    ]
    (one,) = letters(machine.handle(BaselineMessageArrived(ANNA, Reply(0, pack_dense(vector(8)))), 0))
    assert one == (ANNA, Offer(1, (pack_dense(vector(4)),)))  # (1 - 0.5)·0 + 0.5·8
    late = machine.handle(BaselineMessageArrived(CARL, Reply(0, pack_dense(vector(8)))), 0)
    assert unpack_dense(msgspec.structs.astuple(letters(late)[0][1])[1][0])[0] == 5  # a = 0.5 / 2
    assert any(isinstance(c, Compute) and isinstance(c.job, EvaluateModel) for c in late)
    machine.handle(Evaluated(1, 0.5, 1), 0)
    machine.handle(BaselineMessageArrived(ANNA, Reply(2, pack_dense(vector(8)))), 0)
    assert letters(machine.handle(BaselineMessageArrived(CARL, Reply(2, pack_dense(vector(8)))), 0)) == []
    assert machine.finished
    assert not machine.idle
    machine.handle(Evaluated(2, 0.5, 1), 0)
    assert machine.idle
    assert not machine.handle(BaselineMessageArrived(ANNA, Reply(3, pack_dense(vector(8)))), 0)
    assert machine.handle(JobFailed(EvaluateModel, "no"), 0)
