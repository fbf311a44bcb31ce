"""The jobs of a party: what they return, that a failure is an event, that the clear sum is a weighted mean."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.ids import DeviceId, FederationId
from ofl_iot.jobs.clear_round import aggregate_clear
from ofl_iot.jobs.coordinator_crypto import CoordinatorCrypto
from ofl_iot.jobs.decrypt import DecryptorCrypto
from ofl_iot.jobs.leader_crypto import LeaderCrypto
from ofl_iot.jobs.toolbox import CoordinatorToolbox, DecryptorToolbox, DeviceToolbox, TypePace
from ofl_iot.privacy.ledger import Ledger
from ofl_iot.protocol.chunks import ChunkHead
from ofl_iot.protocol.key_messages import KeyOpen, ServerDecAsk
from ofl_iot.roles.events import (
    ContributionProtected,
    Evaluated,
    JobFailed,
    LedgerOpened,
    ReleasePrepared,
    RoundAggregated,
    Trained,
)
from ofl_iot.roles.job_kinds.base import Job, Role, every_job, failure_of
from ofl_iot.roles.job_kinds.device import OpenLedger, PrepareRelease, TrainLocally
from ofl_iot.roles.job_kinds.keys import FinalDecrypt, MakeKeys
from ofl_iot.roles.job_kinds.rounds import AggregateRound, Contributed, EvaluateModel, ProtectContribution, WeighRound
from ofl_iot.roles.settings import ProtectionRules
from ofl_iot.runtime.settings import Settings
from ofl_iot.workloads.base import Workload
from ofl_iot.workloads.digits import digits_federation

SIZE = 6
FEDERATION = FederationId("harbour")
CLEAR = ProtectionRules(mode="clear")
OPENED = KeyOpen(4, 9, (), 2, "main")


@pytest.fixture(scope="module")
def workload() -> Workload:
    (first, _), _ = digits_federation(2, 0, model="softmax")
    return first


def device_toolbox(workload: Workload, seed: int = 0, **sections: dict[str, str]) -> DeviceToolbox:
    settings = msgspec.convert(sections, Settings)
    rules = settings.device_rules()
    crypto = LeaderCrypto(FEDERATION, CLEAR, SeededEntropy(1))
    return DeviceToolbox(workload, rules, crypto, np.random.default_rng(seed), density=settings.upload.density)


def coordinator_toolbox(judge: Workload) -> CoordinatorToolbox:
    return CoordinatorToolbox(judge, CoordinatorCrypto(FEDERATION, CLEAR, SeededEntropy(2)), CLEAR)


def head(workload: Workload) -> ChunkHead:
    return ChunkHead(term=1, model=workload.digest, size=workload.size, base_round=0, weight=1.0)


def release(workload: Workload, update: np.ndarray) -> PrepareRelease:
    synced = workload.initial(0)
    return PrepareRelease(head(workload), update, synced, synced, 0.1)


# --- a device's jobs


def test_training_returns_the_vector_it_was_given_and_a_better_one(workload: Workload) -> None:
    start = workload.initial(0)
    trained = device_toolbox(workload).run(TrainLocally(start, 30))
    assert isinstance(trained, Trained)
    assert trained.start is start
    assert trained.steps == 30
    assert trained.seconds > 0
    assert workload.evaluate(trained.params).loss < workload.evaluate(start).loss
    assert np.array_equal(start, workload.initial(0))


def test_the_same_seed_trains_alike(workload: Workload) -> None:
    job = TrainLocally(workload.initial(0), 5)
    first, second = (device_toolbox(workload, seed=7).run(job) for _ in range(2))
    assert isinstance(first, Trained)
    assert isinstance(second, Trained)
    assert np.array_equal(first.params, second.params)


def test_private_training_clips_and_adds_noise(workload: Workload) -> None:
    start = workload.initial(0)
    plain, noisy = (device_toolbox(workload, seed=7).run(TrainLocally(start, 1, noise)) for noise in (0.0, 50.0))
    assert isinstance(plain, Trained)
    assert isinstance(noisy, Trained)
    assert np.linalg.norm(noisy.params - start) > np.linalg.norm(plain.params - start)


def test_a_release_holds_a_part_of_the_update_and_nothing_else(workload: Workload) -> None:
    update = np.zeros(workload.size, np.float32)
    update[3:40] = 0.5
    prepared = device_toolbox(workload).run(release(workload, update))
    assert isinstance(prepared, ReleasePrepared)
    chosen = np.concatenate([piece.chunk.read_indices() for piece in prepared.pieces])
    assert 0 < len(chosen) <= np.ceil(0.1 * workload.size)
    assert len(set(chosen.tolist())) == len(chosen)


@pytest.mark.parametrize(("values", "dtype"), [("byte", "b"), ("half", "e"), ("single", "f")])
@pytest.mark.parametrize("mode", ["off", "rigorous", "paper"])
def test_values_leave_as_the_rules_say_in_every_mode_of_privacy(
    workload: Workload, values: str, dtype: str, mode: str
) -> None:
    toolbox = device_toolbox(workload, upload={"values": values}, privacy={"mode": mode})
    prepared = toolbox.run(release(workload, np.linspace(-1, 1, workload.size, dtype=np.float32)))
    assert isinstance(prepared, ReleasePrepared)
    assert {piece.chunk.dtype for piece in prepared.pieces} == {dtype}


def test_a_job_that_fails_comes_back_with_its_reason(workload: Workload) -> None:
    failed = device_toolbox(workload).run(TrainLocally(np.zeros(3, np.float32), 1))
    assert isinstance(failed, JobFailed)
    assert failed.job is TrainLocally
    assert "Error" in failed.reason
    diverged = device_toolbox(workload).run(TrainLocally(np.full(workload.size, np.nan, np.float32), 1))
    assert isinstance(diverged, JobFailed)


@pytest.mark.parametrize(
    ("job", "which"),
    [
        (TrainLocally(np.zeros(1, np.float32), 1), (0, 0, 0)),
        (WeighRound(7, {}, (), {}), (7, 0, 0)),
        (FinalDecrypt(ServerDecAsk(7, 1, 2, "scores", OPENED, b"", (), (), b""), b"", {}), (7, 0, 0)),
        (MakeKeys(OPENED, {}, {}), (0, 4, 9)),
    ],
)
def test_a_failure_says_of_which_round_or_key_generation_it_was(job: Job, which: tuple[int, int, int]) -> None:
    failed = failure_of(job, ValueError("boom"), culprits=("a",))
    assert (failed.round_no, failed.term, failed.attempt) == which
    assert (failed.job, failed.reason, failed.culprits) == (type(job), "ValueError: boom", ("a",))


def test_a_new_ledger_has_spent_nothing_and_a_stored_one_is_not_forgotten(workload: Workload) -> None:
    opened = device_toolbox(workload).run(OpenLedger(None))
    assert isinstance(opened, LedgerOpened)
    stored = msgspec.msgpack.encode(opened.ledger.to_plain())
    again = device_toolbox(workload).run(OpenLedger(stored))
    assert isinstance(again, LedgerOpened)
    assert isinstance(again.ledger, Ledger)
    assert again.ledger.to_plain() == opened.ledger.to_plain()


def test_a_ledger_that_cannot_be_read_is_a_failure_and_not_a_new_ledger(workload: Workload) -> None:
    assert isinstance(device_toolbox(workload).run(OpenLedger(b"\xc1")), JobFailed)


def test_nobody_runs_anothers_jobs(workload: Workload) -> None:
    with pytest.raises(TypeError, match="this party does not run AggregateRound"):
        device_toolbox(workload).run(AggregateRound(1, ()))
    with pytest.raises(TypeError, match="this party does not run TrainLocally"):
        coordinator_toolbox(workload).run(TrainLocally(workload.initial(0), 1))


# --- the coordinator's jobs


def test_a_global_model_is_judged_on_held_out_data(workload: Workload) -> None:
    judged = coordinator_toolbox(workload).run(EvaluateModel(4, workload.initial(0)))
    assert isinstance(judged, Evaluated)
    assert judged.round_no == 4
    assert 0 <= judged.accuracy <= 1


def test_a_round_that_cannot_be_aggregated_is_a_failure(workload: Workload) -> None:
    failed = coordinator_toolbox(workload).run(AggregateRound(1, (Contributed("short", b"", 10, 1),)))
    assert failed == JobFailed(AggregateRound, "RoundError: no usable contribution", round_no=1)


def test_a_round_in_the_clear_is_summed_from_what_the_leaders_protected(workload: Workload) -> None:
    updates = {"a": np.full(workload.size, 1, np.float32), "b": np.full(workload.size, 3, np.float32)}
    contributions = []
    for leader, update in updates.items():
        protected = device_toolbox(workload).run(ProtectContribution(1, update, DeviceId(leader)))
        assert isinstance(protected, ContributionProtected)
        contributions.append(Contributed(leader, protected.payload, 10, 1))
    result = coordinator_toolbox(workload).run(AggregateRound(1, tuple(contributions)))
    assert isinstance(result, RoundAggregated)
    assert np.allclose(result.update, 2.0)


vectors = st.lists(st.floats(-100, 100, width=32), min_size=SIZE, max_size=SIZE)


@given(clusters=st.lists(st.tuples(vectors, st.integers(1, 10_000)), min_size=1, max_size=5))
def test_the_clear_sum_is_the_mean_weighted_by_samples(clusters: list[tuple[list[float], int]]) -> None:
    contributions = tuple(
        Contributed(f"c{number}", np.array(values, "<f4").tobytes(), samples, updates=1)
        for number, (values, samples) in enumerate(clusters)
    )
    result = aggregate_clear(AggregateRound(1, contributions), SIZE, "mean")
    wanted = np.average([values for values, _ in clusters], axis=0, weights=[samples for _, samples in clusters])
    assert np.allclose(result.update, wanted, atol=1e-3)
    assert sum(result.weights.values()) == pytest.approx(1.0)
    assert not result.refused


def test_clusters_that_trained_less_are_raised_and_chunks_count_only_where_steps_are_not_known() -> None:
    body = np.ones(SIZE, "<f4").tobytes()
    quick = Contributed("quick", body, 10, updates=4, members=2, effort=80.0)
    slow = Contributed("slow", body, 10, updates=4, members=2, effort=40.0)
    weights = aggregate_clear(AggregateRound(1, (quick, slow)), SIZE, "mean").weights
    assert weights["slow"] == pytest.approx(2 * weights["quick"])
    restarted = replace(slow, effort=0.0)
    weights = aggregate_clear(AggregateRound(1, (quick, restarted)), SIZE, "mean").weights
    assert weights["slow"] == pytest.approx(weights["quick"])


def test_what_cannot_be_used_is_refused_by_name_and_the_rest_counts() -> None:
    good = np.ones(SIZE, "<f4").tobytes()
    contributions = (
        Contributed("good", good, 10, 3),
        Contributed("idle", good, 10, 0),
        Contributed("short", good[:-1], 10, 1),
        Contributed("poisoned", np.full(SIZE, np.nan, "<f4").tobytes(), 10, 1),
    )
    result = aggregate_clear(AggregateRound(1, contributions), SIZE, CLEAR.s_factor)
    assert np.array_equal(result.update, np.ones(SIZE, np.float32))
    assert result.weights == {"good": 1.0, "idle": 0.0}
    assert result.refused.keys() == {"short", "poisoned"}


def test_protecting_is_a_leaders_job(workload: Workload) -> None:
    update = np.arange(workload.size, dtype=np.float32)
    protected = device_toolbox(workload).run(ProtectContribution(2, update, DeviceId("a")))
    assert protected == ContributionProtected(2, update.astype("<f4").tobytes())


def test_a_type_paces_training_alone(workload: Workload) -> None:
    pace = TypePace(0.5)
    assert pace.seconds(TrainLocally(workload.initial(0), 4)) == 2.0
    assert pace.seconds(EvaluateModel(1, workload.initial(0))) == 0.0


def test_every_job_is_run_by_its_owners_toolbox_and_no_other(workload: Workload) -> None:
    """A new job is one class with its owner and result, and its tool."""
    rules, entropy = ProtectionRules(), SeededEntropy(1)
    coordinator = CoordinatorToolbox(workload, CoordinatorCrypto(FEDERATION, rules, entropy), rules)
    decryptor = DecryptorToolbox(DecryptorCrypto(FEDERATION, entropy))
    tools = {
        frozenset({Role.DEVICE, Role.LEADER, Role.KEYS}): device_toolbox(workload)._tools,
        frozenset({Role.COORDINATOR}): coordinator._tools,
        frozenset({Role.DECRYPTOR}): decryptor._tools,
    }
    for owners, run in tools.items():
        assert set(run) == {job for job in every_job() if job.owner in owners}
