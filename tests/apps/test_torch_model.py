"""A TorchApp behind the seam: any module, private or not, with parts that stay on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ofl_iot.apps.app import TorchApp
from ofl_iot.apps.data import Records
from ofl_iot.apps.metrics import accuracy
from ofl_iot.apps.served import ServedApp
from ofl_iot.apps.torch_model import TorchModel
from ofl_iot.apps.workload import AppWorkload
from ofl_iot.errors import ConfigError
from ofl_iot.protocol.model_card import difference
from ofl_iot.workloads.base import TrainJob

PLAIN = TrainJob(steps=40, batch_size=32, learning_rate=0.2)
PRIVATE = TrainJob(steps=40, batch_size=64, learning_rate=0.2, clip_norm=1.0, noise_multiplier=0.5)


class Net(nn.Module):
    """Two layers by name, so that tests can speak of them."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.body = nn.Linear(4, hidden)
        self.head = nn.Linear(hidden, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(torch.relu(self.body(x)))
        return made


def samples(where: str) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(int(where or 0))
    labels = torch.randint(0, 2, (240,), generator=draw)
    return torch.randn(240, 4, generator=draw) + 2 * labels[:, None], labels


def app(**changes: Any) -> TorchApp:
    given: dict[str, Any] = {
        "name": "trial",
        "model": Net,
        "loss": nn.functional.cross_entropy,
        "samples": samples,
        "judge": samples,
        "metrics": {"accuracy": accuracy, "share": lambda out, y: (out.argmax(1) == y).float().mean()},
    }
    return TorchApp(**(given | changes))


def workload(made: TorchApp, *, private: bool = True) -> AppWorkload:
    served = ServedApp(made)
    served.open(0, "1")
    return AppWorkload(served, private=private, repeats=True)


@pytest.mark.parametrize(("job", "private", "least"), [(PLAIN, False, 0.9), (PRIVATE, True, 0.8)])
def test_a_module_learns_with_privacy_and_without(job: TrainJob, private: bool, least: float) -> None:
    own = workload(app(), private=private)
    start = own.initial(3)
    result = own.train(start, job, np.random.default_rng(1))
    judged = own.evaluate(result.params)
    assert judged.accuracy >= least
    assert judged.measured["share"] == pytest.approx(judged.measured["accuracy"])
    assert np.isfinite(judged.loss)
    assert result.sampling_rate == pytest.approx(job.batch_size / 240)
    assert own.label_histogram().sum() == 240


def test_a_private_step_is_divided_by_the_batch_size_asked_for_even_where_records_are_fewer() -> None:
    own = workload(app())
    lengths = []
    for batch_size in (240, 2400):
        job = TrainJob(steps=1, batch_size=batch_size, learning_rate=1.0, clip_norm=0.1)
        lengths.append(np.linalg.norm(own.train(own.initial(3), job, np.random.default_rng(1)).params - own.initial(3)))
    assert lengths[0] == pytest.approx(10 * lengths[1], rel=1e-2)


def test_untrained_values_come_from_the_seed_and_a_simulation_repeats_itself() -> None:
    own = workload(app())
    assert np.array_equal(own.initial(3), own.initial(3))
    assert not np.array_equal(own.initial(3), own.initial(4))
    first, again = (own.train(own.initial(3), PRIVATE, np.random.default_rng(1)).params for _ in range(2))
    other = own.train(own.initial(3), PRIVATE, np.random.default_rng(2)).params
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_module_that_was_given_starts_as_it_is_and_is_left_alone() -> None:
    given = Net()
    before = given.body.weight.detach().clone()
    own = workload(app(model=given))
    assert np.array_equal(own.initial(3), own.initial(4))
    assert np.array_equal(own.initial(3)[:32], before.reshape(-1).numpy())
    own.train(own.initial(3), PRIVATE, np.random.default_rng(1))
    assert torch.equal(given.body.weight, before)


def test_personal_parameters_do_not_travel_but_are_trained_and_kept(tmp_path: Any) -> None:
    served = ServedApp(app(personal=["head.*"]))
    served.open(0, "1")
    own = AppWorkload(served, repeats=True, keep_at=tmp_path / "truck-1.personal")
    assert own.size == 4 * 8 + 8
    assert [tensor.name for tensor in own.card.tensors] == ["body.weight", "body.bias"]
    result = own.train(own.initial(3), PRIVATE, np.random.default_rng(1))
    assert result.params.shape == (own.size,)
    kept = np.fromfile(tmp_path / "truck-1.personal", np.float32)
    assert len(kept) == 2 * 8 + 2
    assert (tmp_path / "truck-1.personal").stat().st_mode & 0o777 == 0o600
    restarted = AppWorkload(served, repeats=True, keep_at=tmp_path / "truck-1.personal")
    assert restarted.evaluate(result.params).loss == own.evaluate(result.params).loss
    fresh = AppWorkload(served, repeats=True)
    assert fresh.evaluate(result.params).loss != own.evaluate(result.params).loss


def test_devices_of_one_process_do_not_share_what_is_personal() -> None:
    served = ServedApp(app(personal=["head.*"]))
    served.open(0, "1")
    served.open(1, "2")
    one, two = (AppWorkload(served, party, repeats=True) for party in (0, 1))
    start = one.initial(3)
    before = two.evaluate(start).loss
    one.train(start, PRIVATE, np.random.default_rng(1))
    assert two.evaluate(start).loss == before


def frozen_body() -> Net:
    net = Net()
    net.body.requires_grad_(False)
    return net


def test_frozen_weights_cost_nothing_on_the_wire_but_belong_to_the_models_identity() -> None:
    def other_body() -> Net:
        net = frozen_body()
        net.body.weight.data.mul_(2)
        return net

    own, again, other = (workload(app(model=make)) for make in (frozen_body, frozen_body, other_body))
    assert own.size == 2 * 8 + 2
    assert own.digest == again.digest != other.digest
    assert "another pre-trained backbone" in difference(own.card, other.card)


def test_models_of_different_meaning_have_different_digests() -> None:
    own = workload(app())
    wider = workload(app(model=lambda: Net(16)))
    assert difference(own.card, wider.card) == "this device's body.weight is 8x4, the federation's 16x4"
    for changes in ({"loss": nn.functional.multi_margin_loss}, {"version": "2"}, {"name": "other"}):
        assert workload(app(**changes)).digest != own.digest
    assert workload(app()).digest == own.digest


class Normed(Net):
    """A network with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(torch.relu(self.norm(self.body(x))))
        return made


def test_a_network_that_mixes_records_is_refused_before_anything_is_paid() -> None:
    own = workload(app(model=Normed))
    with pytest.raises(ConfigError, match="norm"):
        own.look()


def test_statistics_of_batchnorm_stay_with_their_device() -> None:
    served = ServedApp(app(model=Normed))
    served.open(0, "1")
    served.open(1, "2")
    one, two = (AppWorkload(served, party, private=False, repeats=True) for party in (0, 1))
    start = one.initial(3)
    assert one.size == 4 * 8 + 8 + 2 * 8 + 2 + 2 * 8
    before = two.evaluate(start).loss
    result = one.train(start, PLAIN, np.random.default_rng(1))
    assert one.evaluate(result.params).accuracy > 0.9
    assert two.evaluate(start).loss == before
    assert one.card.size == one.size


@pytest.mark.parametrize(
    "changes",
    [
        {"optimiser": lambda params: torch.optim.AdamW(params, lr=0.01)},
        {"augment": lambda x: x},
        {"loop": lambda module, x, y, job: None},
    ],
)
def test_what_is_the_users_own_works_without_privacy_and_is_refused_with_it(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(changes))} of your own cannot be used"):
        workload(app(**changes)).look()
    own = workload(app(**changes), private=False)
    result = own.train(own.initial(3), PLAIN, np.random.default_rng(1))
    assert np.isfinite(result.params).all()


def test_adam_trains_with_privacy() -> None:
    own = workload(app(optimiser="adam"))
    job = TrainJob(steps=40, batch_size=64, learning_rate=0.05, clip_norm=1.0, noise_multiplier=0.5)
    assert own.evaluate(own.train(own.initial(3), job, np.random.default_rng(1)).params).accuracy > 0.8


@pytest.mark.parametrize(
    ("model", "says"), [(lambda: 3, "returned a int"), (nn.Flatten, "nothing|no parameter|travel")]
)
def test_a_factory_that_makes_no_model_is_told(model: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ServedApp(app(model=model))


def test_an_autoencoder_rebuilds_its_inputs() -> None:
    made = app(
        model=lambda: nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4)),
        loss=nn.functional.mse_loss,
        samples=lambda where: samples(where)[0],
        metrics={},
    )
    own = workload(made)
    start = own.initial(0)
    result = own.train(start, PRIVATE, np.random.default_rng(1))
    assert own.evaluate(result.params).loss < own.evaluate(start).loss
    assert own.evaluate(start).measured.keys() == {"loss"}


def test_a_head_on_fixed_wavelet_features_is_planned_with_the_rate_of_a_head() -> None:
    from ofl_iot import Wavelets
    from ofl_iot.privacy.tolerance import HEAD

    def net() -> nn.Module:
        features = Wavelets(16, 16)
        return nn.Sequential(features.layer(), nn.Linear(features.size, 2))

    app = TorchApp("bars", net, nn.functional.cross_entropy, samples=lambda _: None)
    model = TorchModel(app)
    model.bind(np.zeros(model.size, np.float32))
    records = Records((np.random.default_rng(0).normal(size=(12, 1, 16, 16)).astype(np.float32),), np.arange(12) % 2)
    assert model.size == 2 * 1297
    assert model.probe(records, private=True)
    assert model._tolerance(records).rate(0.5) == pytest.approx(HEAD.rate(0.5), rel=0.5)
