"""Every engine gives the same clipped sum, no record adds more than the clipping norm, and poison touches nobody."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn

from ofl_iot.torch_training import gradients
from ofl_iot.torch_training.choice import layouts_of
from ofl_iot.torch_training.data import as_records
from ofl_iot.torch_training.engines import Clipped, Engine, Layers, Loop, Vmap
from ofl_iot.torch_training.flat import FlatModel
from ofl_iot.torch_training.taps import UnsupportedError
from tests.torch_training.networks import NETWORKS, Of, autoencoder, dense, made

CLASSES = F.cross_entropy


def engine_of(kind: type[Engine], model: FlatModel, x: Any, y: Any, loss: Any = CLASSES) -> Engine:
    """An engine that learned where records lie from five of them, as the probe does."""
    if issubclass(kind, Layers):
        with torch.no_grad():
            model.flat.add_(0.01)  # off the zeros of LoRA
        layouts = layouts_of(model, loss, as_records(x, y).take(slice(0, 5)))
        with torch.no_grad():
            model.flat.sub_(0.01)
        return Layers(model, loss, layouts)
    return kind(model, loss)


def clipped(kind: type[Engine], net: Any, x: Any, y: Any, clip: float, *, loss: Any = CLASSES) -> tuple[Any, Clipped]:
    """An engine's sum and its report."""
    model = FlatModel(copy.deepcopy(net), device="cpu")
    engine, records = engine_of(kind, model, x, y, loss), as_records(x, y)
    total = torch.zeros(model.full_size)
    report = engine.add_clipped(total, records.inputs, records.targets, clip)
    return total, report


def close(here: Any, there: Any, tolerance: float = 1e-5) -> bool:
    return float((here - there).norm()) <= tolerance * float(there.norm())


@pytest.mark.parametrize("kind", [Layers, Vmap])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_engine_gives_the_sum_of_one_record_after_the_other(name: str, kind: type[Engine]):
    net, x, y = made(name)
    norms = clipped(Loop, net, x, y, math.inf)[1].squares.sqrt()
    clip = float(norms.median())
    wanted, report = clipped(Loop, net, x, y, clip)
    total, same = clipped(kind, net, x, y, clip)
    assert close(total, wanted)
    assert close(same.squares.sqrt(), report.squares.sqrt())
    assert close(same.losses, report.losses)


@pytest.mark.parametrize("kind", [Layers, Vmap])
def test_an_autoencoder_with_transposed_convolutions(kind: type[Engine]):
    torch.manual_seed(0)
    net, x = autoencoder(), torch.randn(8, 3, 16)
    wanted, _ = clipped(Loop, net, x, x, 0.05, loss=F.mse_loss)
    total, _ = clipped(kind, net, x, x, 0.05, loss=F.mse_loss)
    assert close(total, wanted)


@pytest.mark.parametrize("large", [0, 1 << 14, 1 << 40])
@pytest.mark.parametrize("name", ["cnn", "cnn of one dimension", "gru", "transformer", "reused"])
def test_norms_with_and_without_whole_gradients_agree(name: str, large: int, monkeypatch: pytest.MonkeyPatch):
    net, x, y = made(name)
    wanted, _ = clipped(Loop, net, x, y, 0.1)
    monkeypatch.setattr(gradients, "LARGE_BYTES", large)
    total, _ = clipped(Layers, net, x, y, 0.1)
    assert close(total, wanted)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 1.0, 2.0]), reduction="sum"),
        nn.CrossEntropyLoss(label_smoothing=0.2),
        lambda o, t: F.cross_entropy(o, t, reduction="none"),
        lambda o, t: (o[:, 0] - t).square().mean(),
        lambda o, t: o.square().mean() * (1.0 + float(t.sum()) / 10),  # vmap cannot run it
    ],
)
def test_any_loss_of_records(loss: Any):
    net, x, y = made("reused")
    wanted, report = clipped(Loop, net, x, y, 0.5, loss=loss)
    total, same = clipped(Layers, net, x, y, 0.5, loss=loss)
    assert close(total, wanted)
    assert close(same.losses, report.losses)


@pytest.mark.parametrize("kind", [Layers, Vmap, Loop])
@pytest.mark.parametrize("name", ["cnn", "gru", "transformer", "embedding and mlp", "tied weights", "reused"])
def test_no_record_adds_more_than_the_clipping_norm(name: str, kind: type[Engine]):
    net, x, y = made(name, 6)
    model = FlatModel(net, device="cpu")
    engine, clip = engine_of(kind, model, x, y), 1e-3
    for place in range(6):
        one, total = slice(place, place + 1), torch.zeros(model.full_size)
        squares = engine.add_clipped(total, (x[one],), y[one], clip).squares
        assert float(squares.sqrt()) > clip, "the bound must be at work"
        assert float(total.double().norm()) <= clip
        assert float(total.double().norm()) >= 0.999 * clip


def test_gradients_that_nearly_cancel_are_not_taken_for_short_ones():
    """Gram matrices subtract large numbers: the norm of what is left may be rounded up, never away."""
    torch.manual_seed(0)
    base, error = torch.randn(1, 1, 64) * 1e3, torch.randn(1, 1, 64) * 1e3
    inputs = torch.cat([base, base + 1e-3 * torch.randn(1, 1, 64)], 1)
    errors = torch.cat([error, -error], 1)
    true = (errors.double().transpose(1, 2) @ inputs.double()).square().sum()
    assert float(gradients.Outer(inputs, errors).squares()) >= 0.99 * float(true)
    rows = torch.zeros(1, 2, dtype=torch.long)
    nearly = torch.cat([error, -error * (1 + 1e-4)], 1)
    true = nearly.double().sum(1).square().sum()
    assert float(gradients.Rows(rows, nearly, 3).squares()) >= 0.99 * float(true)


@pytest.mark.parametrize("kind", [Layers, Vmap, Loop])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_record_that_is_not_finite_adds_nothing_and_spoils_nobody(kind: type[Engine], poison: float):
    net, x, y = made("cnn", 7)
    without, _ = clipped(kind, net, x[1:], y[1:], 0.1)
    model = FlatModel(net, device="cpu")
    engine, total = engine_of(kind, model, x, y), torch.zeros(model.full_size)
    x[0] = poison
    report = engine.add_clipped(total, (x,), y, 0.1)
    assert close(total, without)
    assert not bool(report.squares[0].isfinite())
    assert bool(report.squares[1:].isfinite().all())


def test_only_records_that_are_not_finite_give_a_sum_of_zero():
    net, x, y = made("cnn", 5)
    model = FlatModel(net, device="cpu")
    engine, total = engine_of(Layers, model, x, y), torch.zeros(model.full_size)
    engine.add_clipped(total, (torch.full_like(x, math.nan),), y, 0.1)
    assert not bool(total.any())


def test_a_way_that_the_probe_did_not_meet_is_left_to_another_engine():
    def run(s: Any, x: Any) -> Any:
        return s.a(x) if len(x) < 8 else s.b(s.a(x))

    torch.manual_seed(0)
    model = FlatModel(Of(run, a=dense(), b=dense(4, 4)), device="cpu")
    x, y = torch.randn(12, 6), torch.randint(0, 4, (12,))
    engine, total = engine_of(Layers, model, x, y), torch.zeros(model.full_size)
    with pytest.raises(UnsupportedError, match="did not meet"):
        engine.add_clipped(total, (x,), y, 1.0)
    assert not bool(total.any())


@pytest.mark.parametrize("kind", [Layers, Vmap, Loop])
def test_engines_add_to_what_is_there(kind: type[Engine]):
    net, x, y = made("cnn")
    model = FlatModel(net, device="cpu")
    engine, once, twice = engine_of(kind, model, x, y), torch.zeros(model.full_size), torch.zeros(model.full_size)
    engine.add_clipped(once, (x,), y, 0.1)
    for part in (slice(0, 5), slice(5, 12)):
        engine.add_clipped(twice, (x[part],), y[part], 0.1)
    assert close(twice, once)


def test_engines_leave_no_gradients_in_the_parameters():
    net, x, y = made("reused", 5)
    model = FlatModel(net, device="cpu")
    for kind in (Layers, Vmap, Loop):
        engine_of(kind, model, x, y).add_clipped(torch.zeros(model.full_size), (x,), y, 1.0)
    assert all(p.grad is None for p in net.parameters())
