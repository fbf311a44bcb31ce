"""FedAvg: devices and server back to back, and the laws of the mean."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError, DecodeError, RefusedError
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId
from ofl_iot.roles.commands import Command, Compute, Publish, Subscribe
from ofl_iot.roles.events import Evaluated, JobFailed, LinkUp, Started, Trained
from ofl_iot.roles.job_kinds.device import TrainLocally
from ofl_iot.roles.job_kinds.rounds import EvaluateModel
from ofl_iot.roles.reports.base import JobFailure, Report
from ofl_iot.roles.reports.coordinator import ModelEvaluated
from ofl_iot.roles.reports.device import DeviceTrained
from ofl_research.baselines.device import DensePacking, DeviceMachine, Worker
from ofl_research.baselines.fedavg import FedAvg
from ofl_research.baselines.letters import (
    BaselineMessage,
    BaselineMessageArrived,
    Hello,
    LetterWire,
    Offer,
    Reply,
    Shares,
    Vector,
    pack_dense,
    post,
    read_letter,
    unpack_dense,
)
from ofl_research.baselines.means import mixed, staleness_share, weighted_mean
from ofl_research.baselines.reports import ModelsCombined
from ofl_research.baselines.server import RoundServer, Schedule

ANNA, BERT = DeviceId("anna"), DeviceId("bert")


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def letters(commands: list[Command]) -> list[tuple[str, BaselineMessage]]:
    """Receivers and letters of what is published."""
    published = [c for c in commands if isinstance(c, Publish)]
    return [(str(c.topic.receiver), read_letter(bytes(c.message))) for c in published]  # type: ignore[arg-type]


def jobs(commands: list[Command]) -> list[object]:
    return [c.job for c in commands if isinstance(c, Compute)]


R = TypeVar("R", bound=Report)


def told(commands: list[Command], kind: type[R]) -> list[R]:
    return [c for c in commands if isinstance(c, kind)]


# --- the mean

vectors = st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3).map(lambda v: np.array(v, np.float32))
weighed = st.lists(st.tuples(vectors, st.integers(1, 1000)), min_size=1, max_size=8)


@given(weighed, st.randoms(use_true_random=False))
def test_a_mean_does_not_depend_on_the_order(parts: list[tuple[Vector, int]], random: object) -> None:
    shuffled = list(parts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, two = (weighted_mean([v for v, _ in each], [w for _, w in each]) for each in (parts, shuffled))
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-3)


@given(weighed)
def test_a_mean_lies_between_the_least_and_the_largest(parts: list[tuple[Vector, int]]) -> None:
    rows = np.array([v for v, _ in parts])
    mean = weighted_mean([v for v, _ in parts], [w for _, w in parts])
    assert (mean >= rows.min(axis=0) - 1e-3).all()
    assert (mean <= rows.max(axis=0) + 1e-3).all()


@pytest.mark.parametrize(("count", "weights"), [(0, []), (1, [0.0]), (1, [1.0, 2.0]), (2, [3.0, -1.0])])
def test_a_mean_that_does_not_exist_is_refused(count: int, weights: list[float]) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        weighted_mean([vector(1, 2)] * count, weights)


@given(st.floats(0, 1))
def test_mixing_goes_from_the_old_model_to_the_new_one(share: float) -> None:
    np.testing.assert_allclose(
        mixed(vector(0, 10), vector(10, 0), share), vector(10 * share, 10 - 10 * share), atol=1e-4
    )


def test_a_share_outside_zero_and_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="share"):
        mixed(vector(0), vector(1), 1.5)


@given(st.integers(0, 100), st.floats(0, 2))
def test_what_is_more_stale_counts_less(lag: int, exponent: float) -> None:
    assert staleness_share(0.5, lag + 1, exponent) <= staleness_share(0.5, lag, exponent) <= 0.5


# --- letters


@given(st.binary(max_size=200))
def test_bytes_that_are_no_letter_raise_and_nothing_else(payload: bytes) -> None:
    try:
        letter = read_letter(payload)
    except DecodeError:
        return
    assert read_letter(msgspec.msgpack.encode(letter)) == letter


def test_a_dense_model_takes_four_bytes_a_parameter_and_comes_back() -> None:
    model = vector(1.5, -2, 3)
    assert len(pack_dense(model)) == 12
    np.testing.assert_array_equal(unpack_dense(pack_dense(model)), model)
    with pytest.raises(DecodeError, match="float32"):
        unpack_dense(b"12345")


def test_a_letter_travels_on_the_topics_of_production() -> None:
    wire = LetterWire(FederationId("demo"))
    up, down = post(ANNA, COORDINATOR, Reply(1, b"x")), post(COORDINATOR, ANNA, Offer(1, (b"y",)))
    assert wire.outgoing(up)[0] == "ofl/v1/demo/cluster/coordinator/update/anna"
    topic, payload = wire.outgoing(down)
    assert topic == "ofl/v1/demo/device/anna/blocks/coordinator"
    assert wire.incoming(topic, payload) == BaselineMessageArrived(COORDINATOR, Offer(1, (b"y",)))
    with pytest.raises(TypeError, match="encoded"):
        wire.outgoing(Publish(up.topic, Hello(1)))  # type: ignore[arg-type]


# --- the device


def device(packing: DensePacking | None = None) -> DeviceMachine:
    return DeviceMachine(Worker(ANNA, 30, steps=5, step_s=0.1), packing or DensePacking())


def test_a_device_listens_says_hello_trains_what_it_is_offered_and_answers() -> None:
    machine = device()
    subscribed = machine.handle(Started(), 0)
    assert all(isinstance(c, Subscribe) and c.receiver == ANNA for c in subscribed)
    assert letters(machine.handle(LinkUp(), 0)) == [(COORDINATOR, Hello(30, 0.1))]
    (job,) = jobs(machine.handle(BaselineMessageArrived(COORDINATOR, Offer(7, (pack_dense(vector(1, 2)),))), 1))
    assert isinstance(job, TrainLocally)
    assert job.steps == 5
    np.testing.assert_array_equal(job.params, vector(1, 2))
    answer = machine.handle(Trained(job.params, vector(3, 4), 0.5, 5, 1.0), 2)
    assert letters(answer) == [(COORDINATOR, Reply(7, pack_dense(vector(3, 4))))]
    assert told(answer, DeviceTrained)[0].steps == 5


def test_of_several_models_a_device_trains_the_one_with_the_least_loss() -> None:
    machine = device()
    models = tuple(pack_dense(vector(value)) for value in (1, 2, 3))
    asked = jobs(machine.handle(BaselineMessageArrived(COORDINATOR, Offer(1, models)), 0))
    assert all(isinstance(job, EvaluateModel) for job in asked)
    assert len(asked) == 3
    for number, loss in enumerate((0.9, 0.2, 0.5)):
        commands = machine.handle(Evaluated(number, 0.0, loss), 0)
    (job,) = jobs(commands)
    assert isinstance(job, TrainLocally)
    np.testing.assert_array_equal(job.params, vector(2))
    answer = letters(machine.handle(Trained(job.params, vector(5), 0, 5, 0), 0))
    assert answer == [(COORDINATOR, Reply(1, pack_dense(vector(5)), choice=1))]


def test_a_training_that_fails_is_told() -> None:
    assert told(device().handle(JobFailed(TrainLocally, "diverged"), 0), JobFailure)


# --- the server


def server(rounds: int = 2, eval_every: int = 1) -> RoundServer:
    return RoundServer(FedAvg(vector(0, 0)), Schedule(devices=2, rounds=rounds, eval_every=eval_every))


def all_reply(machine: RoundServer, round_no: int) -> list[Command]:
    machine.handle(BaselineMessageArrived(ANNA, Reply(round_no, pack_dense(vector(1, 0)))), 0)
    return machine.handle(BaselineMessageArrived(BERT, Reply(round_no, pack_dense(vector(0, 2)))), 0)


def greeted(machine: RoundServer) -> list[Command]:
    assert machine.handle(Started(), 0)
    assert not machine.handle(BaselineMessageArrived(ANNA, Hello(30)), 0)
    return machine.handle(BaselineMessageArrived(BERT, Hello(10)), 0)


def test_the_server_opens_the_first_round_when_all_devices_are_there() -> None:
    offers = letters(greeted(server()))
    assert offers == [(name, Offer(1, (pack_dense(vector(0, 0)),))) for name in (ANNA, BERT)]


def test_the_server_averages_by_samples_when_all_have_answered_judges_and_goes_on() -> None:
    machine = server()
    greeted(machine)
    closed = all_reply(machine, 1)
    (job,) = jobs(closed)
    assert isinstance(job, EvaluateModel)
    np.testing.assert_allclose(job.params, vector(0.75, 0.5))
    assert told(closed, ModelsCombined) == [ModelsCombined(round_no=1, models=1, multiply_adds=4)]
    assert letters(closed)[0] == (ANNA, Offer(2, (pack_dense(vector(0.75, 0.5)),)))
    assert told(machine.handle(Evaluated(1, 0.9, 0.3), 0), ModelEvaluated)[0].metrics["accuracy"] == 0.9


def test_an_answer_of_another_round_is_not_taken() -> None:
    machine = server()
    greeted(machine)
    assert not all_reply(machine, 2)


def test_after_the_last_round_the_server_rests_once_it_is_judged() -> None:
    machine = server(rounds=1, eval_every=10)
    greeted(machine)
    closed = all_reply(machine, 1)
    assert machine.finished
    assert not machine.idle
    assert not letters(closed)
    machine.handle(Evaluated(1, 0.9, 0.3), 0)
    assert machine.idle


def test_models_between_evaluations_are_not_judged() -> None:
    machine = server(rounds=9, eval_every=2)
    greeted(machine)
    assert not jobs(all_reply(machine, 1))
    assert jobs(all_reply(machine, 2))


def test_shares_are_refused_where_nothing_is_secret() -> None:
    with pytest.raises(RefusedError, match="secret"):
        server().handle(BaselineMessageArrived(ANNA, Shares(1, {})), 0)
    assert told(server().handle(JobFailed(EvaluateModel, "no"), 0), JobFailure)
