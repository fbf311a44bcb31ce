"""Sampling, noise and optimisers under privacy, and whatever a user brings along without it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.noise import CipherNoise
from ofl_iot.torch_training.data import as_records, poisson_rows, shuffled_rows
from ofl_iot.torch_training.trainer import FlatModel, Job, PlainTrainer, PrivateTrainer
from tests.torch_training.networks import Of, dense, made, two_inputs

PRIVATE = Job(steps=4, batch_size=8, learning_rate=0.5, clip_norm=1.0, noise_multiplier=1.0)
PLAIN = Job(steps=4, batch_size=8, learning_rate=0.1)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def blobs(count: int = 240, seed: int = 0) -> tuple[Any, Any]:
    """Four classes that a linear model tells apart."""
    draw = rng(seed)
    y = draw.integers(0, 4, count)
    return (3 * np.eye(4, 6)[y] + draw.normal(0, 0.3, (count, 6))).astype(np.float32), y


def classifier(seed: int = 0) -> FlatModel:
    torch.manual_seed(seed)
    return FlatModel(nn.Sequential(dense(6, 16), nn.ReLU(), dense(16, 4)), device="cpu")


def accuracy(model: FlatModel, x: Any, y: Any) -> float:
    with torch.no_grad():
        return float((model.module(torch.from_numpy(x)).argmax(1).numpy() == y).mean())


def private(model: FlatModel, seed: int = 0, **options: Any) -> PrivateTrainer:
    return PrivateTrainer(model, F.cross_entropy, noise=CipherNoise.seeded(rng(seed)), **options)


@pytest.mark.parametrize(("optimiser", "rate", "momentum"), [("sgd", 0.5, 0.0), ("sgd", 0.1, 0.9), ("adam", 0.02, 0.0)])
def test_a_model_learns_with_privacy(optimiser: Any, rate: float, momentum: float):
    model, (x, y) = classifier(), blobs()
    job = Job(60, 48, rate, momentum=momentum, optimiser=optimiser, clip_norm=1.0, noise_multiplier=0.6)
    done = private(model).train(x, y, job, rng())
    assert accuracy(model, x, y) > 0.9
    assert (done.steps, done.sampling_rate, done.noise_multiplier, done.engine) == (60, 0.2, 0.6, "layers")
    assert 0 < done.loss < 2
    assert done.skipped == 0


@pytest.mark.parametrize("engine", ["layers", "vmap", "loop"])
def test_every_engine_can_be_forced_and_trains_the_same(engine: Any):
    x, y = blobs()
    model, reference = classifier(), classifier()
    done = private(model, engine=engine).train(x, y, PRIVATE, rng(3))
    private(reference, engine="loop").train(x, y, PRIVATE, rng(3))
    assert done.engine == engine
    np.testing.assert_allclose(model.vector, reference.vector, rtol=0, atol=1e-4)


def test_the_same_seeds_give_the_same_model_and_others_do_not():
    x, y = blobs()
    torch.manual_seed(0)
    net = nn.Sequential(dense(6, 16), nn.Dropout(0.5), dense(16, 4))
    model = FlatModel(net, device="cpu")
    start, ends = model.vector.copy(), []
    for noise, sampling in ((0, 0), (0, 0), (1, 0), (0, 1)):
        model.load(start)
        private(model, noise).train(x, y, PRIVATE, rng(sampling))
        ends.append(model.vector.copy())
    np.testing.assert_array_equal(ends[0], ends[1])
    assert not np.array_equal(ends[0], ends[2])
    assert not np.array_equal(ends[0], ends[3])


def test_noise_is_fresh_by_default():
    x, y = blobs()
    ends = []
    for _ in range(2):
        model = classifier()
        PrivateTrainer(model, F.cross_entropy).train(x, y, PRIVATE, rng())
        ends.append(model.vector.copy())
    assert (ends[0] != ends[1]).mean() > 0.9


def test_one_step_moves_by_the_clipped_sum_and_noise_over_the_batch_size():
    """Records without a gradient leave noise alone: its deviation is rate · σ · C / batch size."""
    torch.manual_seed(0)
    model = FlatModel(Of(lambda s, x: s.a(x), a=dense(100, 100)), device="cpu")
    start = model.vector.copy()
    x, y = np.zeros((20, 100), np.float32), np.zeros((20, 100), np.float32)
    trainer = PrivateTrainer(model, lambda o, t: (o * 0).sum(), noise=CipherNoise.seeded(rng()), engine="loop")
    trainer.train(x, y, Job(1, 5, 0.1, clip_norm=2.0, noise_multiplier=3.0), rng())
    moved = (model.vector - start).astype(np.float64)
    assert abs(moved.std() - 0.1 * 3.0 * 2.0 / 5) < 0.003
    assert abs(moved.mean()) < 0.005


def test_without_noise_no_record_moves_the_model_by_more_than_its_clip():
    model, (x, y) = classifier(), blobs(12)
    start = model.vector.copy()
    job = Job(1, 12, 1.0, clip_norm=0.01, noise_multiplier=0.0, sampling_rate=1.0)
    trainer = private(model)
    trainer.train(x, y, job, rng())
    everybody = model.vector - start
    for left_out in range(12):
        model.load(start)
        kept = np.arange(12) != left_out
        trainer.train(x[kept], y[kept], job, rng())
        influence = np.linalg.norm((model.vector - start - everybody).astype(np.float64))
        assert influence <= 0.01 / 12 + 1e-6


def test_batches_are_poisson_samples():
    count, rate, steps = 200, 0.1, 2000
    draw = rng(7)
    entered = np.zeros((steps, count), bool)
    for step in range(steps):
        entered[step, poisson_rows(count, rate, draw)] = True
    sizes = entered.sum(1)
    assert abs(sizes.mean() - 20) < 0.4
    assert abs(sizes.var() - 18) < 2.5, "batches of a fixed size would not vary"
    assert np.abs(entered.mean(0) - rate).max() < 0.04
    assert abs(np.corrcoef(entered[:, 0], entered[:, 1])[0, 1]) < 0.1
    assert len(poisson_rows(count, 1.0, draw)) == count


def test_steps_without_any_record_still_add_noise():
    model, (x, y) = classifier(), blobs(20)
    start = model.vector.copy()
    job = Job(2, 8, 0.5, clip_norm=1.0, noise_multiplier=1.0, sampling_rate=1e-12)
    done = private(model).train(x, y, job, rng())
    assert (done.loss, done.sampling_rate) == (0.0, 1e-12)
    assert (model.vector != start).all()


def test_a_rate_that_is_given_is_used():
    assert Job(1, 8, 0.1).rate_for(16) == 0.5
    assert Job(1, 8, 0.1).rate_for(4) == 1.0
    assert Job(1, 8, 0.1, sampling_rate=0.3).rate_for(16) == 0.3


def test_progress_is_told_after_each_step():
    x, y = blobs(20)
    for trainer, job in ((private(classifier()), PRIVATE), (PlainTrainer(classifier(), F.cross_entropy), PLAIN)):
        told: list[int] = []
        trainer.train(x, y, job, rng(), told.append)
        assert told == [1, 2, 3, 4]


def test_records_that_are_not_finite_are_skipped_and_counted():
    model, (x, y) = classifier(), blobs(20)
    trainer = private(model)
    trainer.probe(x, y)
    x[7] = np.inf
    done = trainer.train(x, y, Job(3, 20, 0.1, clip_norm=1.0, noise_multiplier=0.1), rng())
    assert done.skipped == 3
    assert math.isfinite(done.loss)
    assert np.isfinite(model.vector).all()


@pytest.mark.parametrize("private_one", [True, False])
def test_a_training_that_ends_without_numbers_is_refused_and_changes_nothing(private_one: bool):
    """Not by a large learning rate: whether that diverges depends on the processor."""
    x, y = blobs(20)
    model = classifier()
    trainer: Any = PlainTrainer(model, lambda o, t: o.sum() * math.nan)
    job = PLAIN
    if private_one:
        trainer, job = private(model), PRIVATE
        trainer.probe(x, y)
        trainer._noise = Infinite()
    before = model.vector.copy()
    with pytest.raises(ConfigError, match="diverged"):
        trainer.train(x, y, job, rng())
    np.testing.assert_array_equal(model.vector, before)


class Infinite:
    """Noise that no number holds."""

    def add_to(self, total: Any, deviation: float) -> None:
        total[:] = math.inf


def test_code_of_the_user_that_fails_changes_nothing():
    x, y = blobs(20)
    model = classifier()
    before = model.vector.copy()

    def breaks(done: int) -> None:
        if done == 2:
            raise KeyError("sensor")

    with pytest.raises(KeyError):
        private(model).train(x, y, PRIVATE, rng(), breaks)
    np.testing.assert_array_equal(model.vector, before)


def test_buffers_that_change_in_training_are_put_back_and_refused():
    """A module that keeps records only in large batches gets through a probe of few; not through a training."""

    def run(s: Any, x: Any) -> Any:
        if s.armed and len(x) > 2:
            s.seen.copy_(x[0].detach())
        return s.a(x)

    net = Of(run, a=dense(), seen=torch.zeros(6))
    net.armed = False
    model, (x, y) = FlatModel(net, device="cpu"), blobs(20)
    trainer = private(model)
    trainer.probe(x, y)
    net.armed = True
    before = model.vector.copy()
    with pytest.raises(ConfigError, match="seen changes when records pass"):
        trainer.train(x, y, PRIVATE, rng())
    assert not bool(net.seen.any())
    np.testing.assert_array_equal(model.vector, before)


def test_a_way_that_the_probe_did_not_meet_goes_to_the_loop_and_counts_the_same():
    def run(s: Any, x: Any) -> Any:
        return s.b(s.a(x)) if s.changed else s.a(x)

    ends = []
    for engine in ("layers", "loop"):
        torch.manual_seed(0)
        net = Of(run, a=dense(), b=dense(4, 4))
        net.changed = False
        model, (x, y) = FlatModel(net, device="cpu"), blobs(20)
        trainer = private(model, engine=engine)
        trainer.probe(x, y)
        net.changed = True
        trainer.train(x, y, PRIVATE, rng())
        ends.append(model.vector.copy())
    np.testing.assert_allclose(*ends, rtol=0, atol=1e-5)


def test_records_of_another_shape_are_probed_again():
    net = Of(lambda s, x: s.a(x.mean(1)) if x.dim() == 3 else s.a(x - x.mean(0)), a=dense())
    trainer = private(FlatModel(net, device="cpu"))
    x, y = np.ones((20, 7, 6), np.float32) * rng().random((20, 1, 1), np.float32), np.zeros(20, np.int64)
    trainer.train(x, y, PRIVATE, rng())
    with pytest.raises(ConfigError, match="mixes the records"):
        trainer.train(x[:, 0], y, PRIVATE, rng())


def test_networks_with_several_inputs():
    torch.manual_seed(0)
    model, (x, y) = FlatModel(two_inputs(), device="cpu"), blobs(40)
    assert private(model).train((x, y % 5), y, PRIVATE, rng()).engine == "layers"


def test_arrays_of_any_number_type_are_taken():
    x, y = blobs(20)
    x.flags.writeable = False
    for inputs, targets in ((x.astype(np.float64), y.astype(np.int32)), (x[::-1], y.astype(np.uint8)), (x, y.tolist())):
        assert private(classifier()).train(inputs, targets, PRIVATE, rng()).steps == 4


@pytest.mark.parametrize(
    ("x", "y", "told"),
    [
        (np.zeros((0, 6)), np.zeros(0), "no records"),
        (np.zeros((3, 6)), np.zeros(2), "as many targets"),
        (np.zeros((1, 6)), np.zeros(1, int), "at least two"),
        ([["a"], ["b"]], np.zeros(2), "arrays or tensors"),
    ],
)
def test_data_that_cannot_be_used_is_refused(x: Any, y: Any, told: str):
    with pytest.raises(ConfigError, match=told):
        private(classifier()).probe(x, y)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0}, {"batch_size": 0}, {"learning_rate": 0.0}, {"learning_rate": math.inf}, {"momentum": 1.0},
        {"optimiser": "lion"}, {"clip_norm": 0.0}, {"clip_norm": math.inf},
        {"noise_multiplier": -1.0, "clip_norm": 1.0}, {"noise_multiplier": 1.0},
        {"sampling_rate": 0.0}, {"sampling_rate": 1.5},
    ],
)  # fmt: skip
def test_jobs_that_make_no_sense_are_refused(wrong: Any):
    with pytest.raises(ConfigError, match="training job"):
        Job(**{"steps": 1, "batch_size": 1, "learning_rate": 0.1, **wrong})


def test_each_trainer_refuses_the_job_of_the_other():
    x, y = blobs(20)
    for job in (PLAIN, Job(1, 1, 0.1, clip_norm=1.0)):
        with pytest.raises(ConfigError, match="needs clip_norm and noise_multiplier"):
            private(classifier()).train(x, y, job, rng())
    with pytest.raises(ConfigError, match="no privacy"):
        PlainTrainer(classifier(), F.cross_entropy).train(x, y, PRIVATE, rng())
    with pytest.raises(ConfigError, match=r"training\.engine"):
        private(classifier(), engine="steam")


def test_plain_batches_are_shuffled_passes():
    batches = shuffled_rows(10, 4, 5, rng())
    assert [len(rows) for rows in batches] == [4] * 5
    assert sorted(np.concatenate(batches).tolist()) == sorted(2 * list(range(10)))
    assert [len(rows) for rows in shuffled_rows(3, 8, 2, rng())] == [3, 3]


@pytest.mark.parametrize(
    ("options", "engine"),
    [
        ({}, "plain"),
        ({"optimiser": lambda params: torch.optim.SGD(params, 0.1)}, "torch optimiser"),
    ],
)
def test_plain_training_is_what_torch_does(options: Any, engine: str):
    x, y = blobs(40)
    model, twin = classifier(), classifier()
    done = PlainTrainer(model, F.cross_entropy, **options).train(x, y, Job(5, 40, 0.1), rng())
    optimiser = torch.optim.SGD(twin.module.parameters(), 0.1)
    for _ in range(5):
        optimiser.zero_grad()
        F.cross_entropy(twin.module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimiser.step()
    np.testing.assert_allclose(model.vector, twin.vector, rtol=0, atol=1e-5)
    assert (done.engine, done.sampling_rate, done.noise_multiplier) == (engine, None, None)


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"optimiser": "adam"}])
def test_flat_optimisers_are_those_of_torch(options: Any):
    x, y = blobs(40)
    model, twin = classifier(), classifier()
    PlainTrainer(model, F.cross_entropy).train(x, y, Job(6, 40, 0.01, **options), rng())
    kind = torch.optim.Adam if options.get("optimiser") else torch.optim.SGD
    own = {} if options.get("optimiser") else {"momentum": 0.9}
    trainer = PlainTrainer(twin, F.cross_entropy, optimiser=lambda params: kind(params, 0.01, **own))
    trainer.train(x, y, Job(6, 40, 0.01), rng())
    np.testing.assert_allclose(model.vector, twin.vector, rtol=0, atol=1e-4)


def test_a_schedule_and_augmentation_of_the_user_are_used():
    x, y = blobs(40)
    model, rates = classifier(), []

    def schedule(optimiser: Any) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rates.append(step) or 0.5**step)

    def augment(inputs: Any) -> Any:
        return inputs + torch.randn_like(inputs)

    trainer = PlainTrainer(
        model, F.cross_entropy, optimiser=lambda p: torch.optim.SGD(p, 0.1), schedule=schedule, augment=augment
    )
    start = model.vector.copy()
    trainer.train(x, y, PLAIN, rng(1))
    first = model.vector.copy()
    assert rates == [0, 1, 2, 3, 4]
    model.load(start)
    trainer.train(x, y, PLAIN, rng(1))
    np.testing.assert_array_equal(model.vector, first)


def test_a_loop_of_the_users_own_trains_the_module():
    def loop(module: Any, inputs: Any, targets: Any, job: Job) -> Any:
        state = {name: torch.full_like(value, job.learning_rate) for name, value in module.state_dict().items()}
        module.load_state_dict(state, assign=True)
        return F.cross_entropy(module(inputs), targets)

    model, (x, y) = classifier(), blobs(20)
    done = PlainTrainer(model, F.cross_entropy, loop=loop).train(x, y, PLAIN, rng())
    assert (model.vector == np.float32(0.1)).all()
    assert (done.engine, done.loss > 0) == ("own loop", True)
    with pytest.raises(ConfigError, match="give it alone"):
        PlainTrainer(model, F.cross_entropy, loop=loop, optimiser=lambda p: torch.optim.SGD(p, 0.1))
    with pytest.raises(ConfigError, match="needs a torch optimiser"):
        PlainTrainer(model, F.cross_entropy, schedule=lambda o: o)


def test_statistics_of_batchnorm_change_without_privacy_and_do_not_travel():
    torch.manual_seed(0)
    net = nn.Sequential(dense(6, 8), nn.BatchNorm1d(8), dense(8, 4))
    model, (x, y) = FlatModel(net, device="cpu"), blobs(40)
    card = model.card()
    PlainTrainer(model, F.cross_entropy).train(x, y, PLAIN, rng())
    assert bool(net[1].running_mean.any())
    assert not any("running" in name for name in card.names)
    assert model.card() == card
    with pytest.raises(ConfigError, match=r"1 \(BatchNorm1d\) mixes"):
        private(model).probe(x, y)


def test_personal_parts_are_trained_too():
    torch.manual_seed(0)
    net = nn.ModuleDict({"body": dense(6, 8), "head": dense(8, 4)})
    model = FlatModel(Of(lambda s, x: s.n["head"](s.n["body"](x)), n=net), personal=["n.head.*"], device="cpu")
    before, (x, y) = model.vector.copy(), blobs(40)
    private(model).train(x, y, PRIVATE, rng())
    assert (model.vector != before).all()
    assert model.size == 56


def test_labels_keep_their_rows():
    net, x, y = made("cnn", 9)
    records = as_records(x, y).take([2, 0])
    assert bool((records.inputs[0][0] == x[2]).all())
    assert records.targets.tolist() == [int(y[2]), int(y[0])]
    assert net.training
