"""What the probe says of networks and losses that mix or keep records, and of those that must work."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from ofl_iot.errors import ConfigError
from ofl_iot.torch_training.data import as_records
from ofl_iot.torch_training.probe import Findings, probe
from ofl_iot.torch_training.trainer import FlatModel
from tests.torch_training.networks import (
    Of,
    class_token,
    cross_attention,
    dense,
    depthwise,
    folded,
    lora,
    recurrent,
    reused,
    tied,
    transformer,
)

CLASSES = F.cross_entropy
WEIGHTS = torch.tensor([1.0, 5.0, 1.0, 2.0])


def flat(count: int = 8) -> Any:
    return torch.randn(count, 6)


def many() -> Any:
    return torch.randn(64, 6)


def sequences() -> Any:
    return torch.randn(8, 9, 6)


def images() -> Any:
    return torch.randn(8, 3, 8, 8)


def tokens() -> Any:
    return torch.randint(0, 30, (8, 7))


def shades() -> Any:
    return torch.randint(0, 256, (8, 6), dtype=torch.uint8)


def found(net: Any, inputs: Any, loss: Any = CLASSES, engine: Any = "auto") -> Findings:
    """What the probe finds if the classes of records take turns."""
    return probe(FlatModel(net, device="cpu"), loss, as_records(inputs, torch.arange(len(inputs)) % 4), engine)[1]


def keeps_state(s: Any, x: Any) -> Any:
    s.last = getattr(s, "last", torch.zeros(4)) * 0.9 + s.a(x).mean(0).detach()
    return s.a(x) + s.last


def moves_a_mean(s: Any, x: Any) -> Any:
    with torch.no_grad():
        s.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return s.a(x)


def contrastive(z: Any, _: Any) -> Any:
    z = F.normalize(z, dim=1)
    return CLASSES(z @ z.t() / 0.5, torch.arange(len(z)))


class Centred(nn.Module):
    """A loss that moves a mean of all outputs it ever saw."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = torch.zeros(4)

    def forward(self, outputs: Any, _: Any) -> Any:
        self.centre = 0.9 * self.centre + 0.1 * outputs.detach().mean(0)
        return (outputs - self.centre).square().mean()


def of(run: Callable[..., Any], **parts: Any) -> Callable[[], Any]:
    """A factory of a network with a dense layer `a`, and `b` behind it."""
    return lambda: Of(run, a=dense(), b=dense(4, 4), **{name: make() for name, make in parts.items()})


REFUSED: dict[str, tuple[Callable[[], Any], Callable[[], Any], Any, str]] = {
    "BatchNorm in training": (
        lambda: nn.Sequential(dense(), nn.BatchNorm1d(4)), flat, CLASSES,
        r"^1 \(BatchNorm1d\) mixes the records of a batch: use GroupNorm or LayerNorm",
    ),
    "BatchNorm without statistics, in eval mode": (
        lambda: nn.Sequential(dense(), nn.BatchNorm1d(4, track_running_stats=False).eval()), flat, CLASSES,
        r"^1 \(BatchNorm1d\) mixes",
    ),
    "InstanceNorm with statistics": (
        lambda: nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True), nn.Flatten(), dense(192)),
        images, CLASSES,
        r"^0 \(InstanceNorm2d\) keeps statistics of records: set track_running_stats=False",
    ),
    "batch mean": (of(lambda s, x: s.a(x - x.mean(0))), flat, CLASSES, r"^the forward\(\) of Of mixes"),
    "batch mean in a layer": (
        lambda: nn.Sequential(dense(), Of(lambda s, x: x - x.mean(0)), dense(4, 4)), flat, CLASSES, r"^1 \(Of\) mixes",
    ),
    "detached batch maximum": (
        of(lambda s, x: s.a(x) / (1 + 1e-7 * s.a(x).detach().abs().max())), flat, CLASSES,
        r"^the forward\(\) of Of mixes .* not a number spoils others",
    ),
    "detached batch maximum of bytes": (
        of(lambda s, x: s.a(x / 255) / (1 + 1e-7 * (x / 255).max())), shades, CLASSES, "not a number spoils others",
    ),
    "detached batch maximum of tokens": (
        lambda: Of(
            lambda s, x: s.a(s.e(x).mean(1)) / (1 + 1e-7 * s.e(x).detach().max()), e=nn.Embedding(30, 6), a=dense()
        ),
        tokens, CLASSES, "not a number spoils others",
    ),
    "attention over the batch": (
        of(lambda s, x: s.m(s.a(x), s.a(x), s.a(x))[0], m=lambda: nn.MultiheadAttention(4, 2)), flat, CLASSES,
        r"^m \(MultiheadAttention\) mixes",
    ),
    "batch_first forgotten": (
        lambda: Of(lambda s, x: s.h(s.g(x)[0][:, -1]), g=nn.GRU(6, 8), h=dense(8)), sequences, CLASSES,
        r"^g \(GRU\) mixes the records .* batch_first=True",
    ),
    "softmax over records": (of(lambda s, x: s.b(s.a(x).softmax(0))), flat, CLASSES, "mixes the records"),
    "place in the batch": (
        of(lambda s, x: s.a(x) + torch.arange(len(x))[:, None]), flat, CLASSES, "mixes the records"
    ),
    "first record as an anchor": (of(lambda s, x: s.a(x - x[:1].detach())), flat, CLASSES, "mixes the records"),
    "best records of the batch": (
        of(lambda s, x: s.a(x) * (x.sum(1) >= x.sum(1).topk(min(3, len(x)))[0][-1])[:, None]), flat, CLASSES,
        "mixes the records",
    ),
    "mixing in large batches only": (
        of(lambda s, x: s.a(x - x.mean(0) if len(x) > 11 else x)), many, CLASSES, "mixes the records"
    ),
    "mixing beyond a threshold only": (
        of(lambda s, x: s.a(x - torch.where(x.abs().max() > 50, x.mean(0), 0.0))), flat, CLASSES,
        "not a number spoils others",
    ),
    "moving mean in a buffer": (
        of(moves_a_mean, mean=lambda: torch.zeros(6)), flat, CLASSES, "^mean changes when records pass through"
    ),
    "state in an attribute": (of(keeps_state), flat, CLASSES, "another output the second time"),
    "spectral norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(dense())), flat, CLASSES,
        r"^0\.parametrizations\.weight\.0\._[uv] changes",
    ),
    "embedding with max_norm": (
        lambda: Of(lambda s, x: s.a(s.e(x).mean(1)), e=nn.Embedding(30, 6, max_norm=0.1), a=dense()), tokens, CLASSES,
        r"^e\.weight changes",
    ),
    "several tensors returned": (of(lambda s, x: (s.a(x), x)), flat, CLASSES, "returns tuple: return one tensor"),
    "one number returned": (of(lambda s, x: s.a(x).mean()), flat, CLASSES, "return one tensor with a row"),
    "contrastive loss": (lambda: nn.Sequential(dense()), flat, contrastive, "compares records"),
    "loss of pairs": (
        lambda: nn.Sequential(dense()), flat, lambda o, t: (o[0] - o[1]).square().sum(), r"alone fails \(IndexError\)"
    ),
    "loss with batch statistics": (
        lambda: nn.Sequential(dense()), flat, lambda o, t: (o - o.mean(0)).square().mean(), "alone is 0"
    ),
    "loss with a running mean": (
        lambda: nn.Sequential(dense()), flat, Centred(), "the loss keeps something of earlier records"
    ),
    "loss that is not a number": (
        lambda: nn.Sequential(dense()), flat, lambda o, t: o.sum() * math.nan, "not finite"
    ),
    "loss without parameters": (
        lambda: nn.Sequential(dense()), flat, lambda o, t: o.detach().sum(), "cannot be differentiated"
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", REFUSED)
def test_what_mixes_or_keeps_records_is_refused_by_name(title: str):
    torch.manual_seed(0)
    make, inputs, loss, told = REFUSED[title]
    net, values = make(), inputs()
    with pytest.raises(ConfigError, match=told) as refused:
        found(net, values, loss)
    assert not re.search(r"\d\.\d", str(refused.value)), "no value of a record is told"


def frozen_norm() -> Any:
    net = nn.Sequential(dense(), nn.BatchNorm1d(4), nn.ReLU(), dense(4, 4))
    net[1].eval().requires_grad_(False)
    return net


class Times(torch.autograd.Function):
    """x·Wᵀ by hand: no mode sees inside, and vmap cannot run it."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx: Any, error: Any) -> Any:
        x, w = ctx.saved_tensors
        return error @ w, error.t() @ x


SAFE = {"vmap", "loop"}
ACCEPTED: dict[str, tuple[Callable[[], Any], Callable[[], Any], Any, set[str], str]] = {
    "frozen BatchNorm": (frozen_norm, flat, CLASSES, {"layers"}, ""),
    "class weights, mean": (
        lambda: nn.Sequential(dense()), flat, lambda o, t: CLASSES(o, t, weight=WEIGHTS), {"layers"}, "use 'sum'",
    ),
    "class weights, sum": (
        lambda: nn.Sequential(dense()), flat, lambda o, t: CLASSES(o, t, weight=WEIGHTS, reduction="sum"),
        {"layers"}, "",
    ),
    "one loss a record": (
        lambda: nn.Sequential(dense()), flat, lambda o, t: CLASSES(o, t, reduction="none"), {"layers"}, "",
    ),
    "weights in the loss": (
        lambda: nn.Sequential(dense()), flat, lambda o, t: CLASSES(o, t) + o.square().mean(), {"layers"}, "",
    ),
    "reused": (reused, flat, CLASSES, {"layers"}, ""),
    "tied": (tied, tokens, CLASSES, {"layers"}, "out.weight"),
    "weight squared": (
        of(lambda s, x: s.b(x @ s.a.weight.square().t())), flat, CLASSES, SAFE, "a.weight enters square",
    ),
    "weight transposed": (of(lambda s, x: s.b(x @ s.a.weight.t())), flat, CLASSES, {"layers"}, ""),
    "rows of a weight by a list": (
        of(lambda s, x: s.b(x @ s.a.weight[[3, 0, 1, 2]].t())), flat, CLASSES, SAFE, "a.weight enters __getitem__",
    ),
    "function of a view": (
        of(lambda s, x: s.b(x @ s.a.weight.t().exp())), flat, CLASSES, SAFE, "a.weight, view 0 enters exp",
    ),
    "weight_norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(dense())), flat, CLASSES, SAFE, "has no rule",
    ),
    "in place": (lambda: nn.Sequential(dense(), nn.ReLU(inplace=True), dense(4, 4)), flat, CLASSES, {"layers"}, ""),
    "Python reads the batch": (
        of(lambda s, x: s.a(x) if float(x.sum()) > 1e9 else s.b(s.a(x))), flat, CLASSES, {"loop"}, "Python reads",
    ),
    "Python reads the batch without gradients": (
        of(lambda s, x: s.b(s.a(x)) if not x.detach().isnan().any() else s.a(x)),
        flat, CLASSES, {"loop"}, "Python reads",
    ),
    "a branch for each record": (
        of(lambda s, x: torch.stack([s.a(r) if r.sum() > 0 else s.b(s.a(r)) for r in x])), flat, CLASSES, {"loop"}, "",
    ),
    "time folded into the batch": (folded, sequences, CLASSES, {"layers"}, ""),
    "unused parameter": (of(lambda s, x: s.a(x)), flat, CLASSES, {"layers"}, "b.weight, b.bias"),
    "class token": (class_token, sequences, CLASSES, {"layers"}, ""),
    "cross attention": (cross_attention, sequences, CLASSES, {"layers"}, ""),
    "transformer": (transformer, sequences, CLASSES, {"layers"}, ""),
    "depthwise": (depthwise, images, CLASSES, {"layers"}, ""),
    "LSTM with dropout": (
        lambda: recurrent(nn.LSTM, num_layers=2, bidirectional=True, dropout=0.5), sequences, CLASSES, {"layers"}, "",
    ),
    "LoRA from zero": (lora, sequences, CLASSES, {"layers"}, ""),
    "autograd.Function": (of(lambda s, x: Times.apply(s.a(x), s.b.weight)), flat, CLASSES, {"loop"}, ""),
    "checkpointing": (
        of(lambda s, x: s.b(checkpoint(s.a, x, use_reentrant=False).relu())), flat, CLASSES, {"layers", *SAFE}, "",
    ),
    "noise of its own": (
        of(lambda s, x: s.a(x + 0.1 * torch.randn_like(x))), flat, CLASSES, SAFE, "draws random numbers",
    ),
    "dropout": (lambda: nn.Sequential(dense(), nn.Dropout(0.5), dense(4, 4)), flat, CLASSES, {"layers"}, ""),
    "functional dropout": (of(lambda s, x: s.b(F.dropout(s.a(x), 0.5))), flat, CLASSES, {"layers"}, ""),
    "learned places by embedding": (
        lambda: Of(
            lambda s, x: s.a((x + s.e(torch.arange(x.shape[1]))).mean(1)), e=nn.Embedding(9, 6), a=dense()
        ),
        sequences, CLASSES, SAFE, "cannot be told apart",
    ),
    "copies of records": (lambda: nn.Sequential(dense()), lambda: flat(4).repeat(2, 1), CLASSES, {"layers"}, "copies"),
    "bytes": (of(lambda s, x: s.a(x / 255)), shades, CLASSES, {"layers"}, ""),
}  # fmt: skip


@pytest.mark.parametrize("title", ACCEPTED)
def test_what_keeps_records_apart_is_trained(title: str):
    torch.manual_seed(0)
    make, inputs, loss, engines, note = ACCEPTED[title]
    net = make()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    modes = [module.training for module in net.modules()]
    findings = found(net, inputs(), loss)
    assert findings.engine in engines
    assert note in " | ".join(findings.notes)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items()), "the model is as before"
    assert [module.training for module in net.modules()] == modes


def test_a_regulariser_in_the_loss_needs_an_engine_that_sees_it():
    """The loss reaches a weight past the network: only ordinary autograd follows it there."""
    torch.manual_seed(0)
    net = nn.Sequential(dense())

    def loss(outputs: Any, targets: Any) -> Any:
        return CLASSES(outputs, targets) + net[0].weight.square().sum()

    assert found(net, flat(), loss).engine == "loop"


def test_an_engine_that_cannot_do_it_is_refused_with_the_reason():
    with pytest.raises(
        ConfigError, match=r"training\.engine = 'layers' \(try 'auto'\): not layers: a\.weight enters exp"
    ):
        found(of(lambda s, x: s.b(x @ s.a.weight.exp().t()))(), flat(), engine="layers")


@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_engines_that_are_safe_by_construction_can_be_forced(engine: str):
    assert found(nn.Sequential(dense()), flat(), engine=engine).engine == engine


def test_what_user_code_says_of_values_is_not_repeated():
    def run(s: Any, x: Any) -> Any:
        if torch.is_grad_enabled() and len(x) > 1:
            raise ValueError("blood pressure 183")
        return s.a(x)

    torch.manual_seed(0)
    findings = found(of(run)(), flat())
    assert findings.engine in SAFE
    assert "183" not in " ".join(findings.notes)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1000),
    layers=st.lists(st.sampled_from(["linear", "relu", "norm", "gru", "attention", "conv"]), min_size=1, max_size=4),
    mixed=st.booleans(),
)
def test_poison_finds_mixing_anywhere_in_random_networks(seed: int, layers: list[str], mixed: bool):
    """A faint, detached mean over records behind random layers is always found, and nothing without it."""
    torch.manual_seed(seed)

    def faint(_: Any, x: Any) -> Any:
        return x + 1e-9 * x.detach().mean(0)

    parts: list[Any] = [made_layer(kind) for kind in layers]
    if mixed:
        parts.insert(seed % (len(parts) + 1), Of(faint))
    net = nn.Sequential(*parts, Of(lambda s, x: s.a(x.mean(1)), a=dense()))
    if mixed:
        with pytest.raises(ConfigError, match=r"\(Of\) mixes the records"):
            found(net, sequences())
    else:
        assert found(net, sequences()).engine == "layers"


def made_layer(kind: str) -> Any:
    """A layer from (records, time, 6) to the same shape."""
    return {
        "linear": lambda: nn.Linear(6, 6),
        "relu": nn.ELU,
        "norm": lambda: nn.LayerNorm(6),
        "gru": lambda: Of(lambda s, x: s.g(x)[0], g=nn.GRU(6, 6, batch_first=True)),
        "attention": lambda: Of(lambda s, x: s.m(x, x, x)[0], m=nn.MultiheadAttention(6, 2, batch_first=True)),
        "conv": lambda: Of(lambda s, x: s.c(x.transpose(1, 2)).transpose(1, 2), c=nn.Conv1d(6, 6, 3, padding=1)),
    }[kind]()


def test_probing_takes_numbers_of_records_that_are_no_other_dimension():
    """Five records of five times: which dimension is which shows only with another number of records."""
    torch.manual_seed(0)
    net = Of(lambda s, x: s.h(s.a(x.transpose(0, 1)).mean(0)), a=dense(), h=dense(4, 4))
    assert found(net, torch.randn(12, 5, 6)).engine == "layers"


def test_probing_leaves_the_vector_as_it_was():
    torch.manual_seed(0)
    model = FlatModel(lora(), device="cpu")
    before = model.vector.copy()
    probe(model, CLASSES, as_records(sequences(), np.zeros(8, np.int64)))
    np.testing.assert_array_equal(model.vector, before)
