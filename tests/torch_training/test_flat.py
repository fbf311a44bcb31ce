"""A module as one vector: order, personal parts, views that break and are mended, and what a card tells apart."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ofl_iot.errors import ConfigError
from ofl_iot.torch_training.device import fast_cipher, resolve_device
from ofl_iot.torch_training.flat import FlatModel
from tests.torch_training.networks import tied


def network(seed: int = 0, hidden: int = 5) -> Any:
    torch.manual_seed(seed)
    body = nn.Linear(3, hidden)
    return nn.ModuleDict({"body": body, "norm": nn.BatchNorm1d(hidden), "head": nn.Linear(hidden, 2)})


def test_parameters_lie_in_the_order_of_registration():
    net = network()
    wanted = np.concatenate([p.detach().numpy().ravel() for p in net.parameters()])
    model = FlatModel(net, device="cpu")
    np.testing.assert_array_equal(model.vector, wanted)
    names = ("body.weight", "body.bias", "norm.weight", "norm.bias", "head.weight", "head.bias")
    assert model.card().names == names
    assert model.card().shapes[0] == (5, 3)
    assert model.size == model.full_size == len(wanted)


def test_writing_the_vector_is_loading_the_model_and_training_shows_in_it():
    net = network()
    model = FlatModel(net, device="cpu")
    model.load(np.arange(model.size, dtype=np.float32))
    assert net["body"].weight[0, 1] == 1
    with torch.no_grad():
        net["head"].bias.fill_(-7)
    assert model.vector[-1] == -7


def test_personal_parameters_lie_behind_those_that_travel_and_stay_when_a_model_is_loaded():
    net = network()
    model = FlatModel(net, personal=["body.*"], device="cpu")
    own = net["body"].weight.detach().clone()
    assert [slot.name for slot in model.slots][-2:] == ["body.weight", "body.bias"]
    assert model.full_size - model.size == 20
    assert "body.weight" not in model.card().names
    model.load(np.zeros(model.size, np.float32))
    assert bool((net["body"].weight == own).all())
    assert not model.travelling.any()


def test_frozen_parameters_neither_travel_nor_count():
    net = network()
    net["body"].requires_grad_(False)
    assert FlatModel(net, device="cpu").card().names[0] == "norm.weight"


def test_tied_weights_travel_once():
    model = FlatModel(tied(), device="cpu")
    assert model.size == 30 * 8
    assert model.tied == ("out.weight",)


def test_views_that_were_broken_are_mended():
    net = network()
    model = FlatModel(net, device="cpu")
    other = {name: torch.full_like(value, 3) for name, value in net.state_dict().items()}
    net.load_state_dict(other, assign=True)
    assert not (model.vector == 3).all()
    model.rebind()
    assert (model.vector == 3).all()
    model.load(np.zeros(model.size, np.float32))
    assert not bool(net["head"].weight.any())


def test_parameters_live_in_memory_that_is_given():
    net = network()
    model = FlatModel(net, device="cpu")
    memory = np.full(model.full_size, 2, np.float32)
    model.bind(memory)
    assert bool((net["head"].weight == 2).all())
    memory[:] = 4
    assert bool((net["head"].weight == 4).all())
    for wrong in (np.zeros(3, np.float32), np.zeros(model.full_size)):
        with pytest.raises(ConfigError, match="writable memory"):
            model.bind(wrong)


def test_cards_are_equal_where_vectors_may_mix():
    assert FlatModel(network(0), device="cpu").card() == FlatModel(network(1), device="cpu").card()
    assert FlatModel(network(0), device="cpu").card() != FlatModel(network(0, hidden=6), device="cpu").card()


def test_a_card_tells_other_frozen_weights_apart_but_not_statistics_of_the_device():
    def card(change: Any) -> Any:
        net = network()
        net["body"].requires_grad_(False)
        change(net)
        return FlatModel(net, device="cpu").card()

    usual = card(lambda net: None)
    assert card(lambda net: net["norm"].running_mean.add_(1)) == usual
    assert card(lambda net: net["body"].weight.add_(1)).frozen != usual.frozen
    backbone = card(lambda net: net["norm"].requires_grad_(False))
    other = card(lambda net: net["norm"].requires_grad_(False).running_mean.add_(1))
    assert backbone.frozen != other.frozen, "statistics of a frozen BatchNorm are part of the backbone"


def test_what_was_in_eval_mode_inside_a_model_in_training_stays_there():
    net = network()
    net["norm"].eval()
    model = FlatModel(net, device="cpu")
    net.eval()
    model.set_training()
    assert net["head"].training
    assert not net["norm"].training
    asleep = network().eval()
    FlatModel(asleep, device="cpu").set_training()
    assert asleep["norm"].training


@pytest.mark.parametrize(
    ("change", "options", "told"),
    [
        (lambda net: net.requires_grad_(False), {}, "no parameter is left"),
        (lambda net: net.double(), {}, "float32: body.weight"),
        (lambda net: net, {"personal": ["tail.*"]}, "'tail.*' matches no"),
        (lambda net: net, {"personal": ["*"]}, "no parameter is left"),
        (lambda net: nn.Sequential(net, nn.LazyLinear(3)), {}, "1.weight has no shape"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_models_that_cannot_travel_are_refused(change: Any, options: Any, told: str):
    with pytest.raises(ConfigError, match=told.replace("*", r"\*")):
        FlatModel(change(network()), device="cpu", **options)


def test_vectors_of_another_model_are_refused():
    model = FlatModel(network(), device="cpu")
    for wrong in (np.zeros(3, np.float32), np.zeros(model.size), np.full(model.size, np.nan, np.float32)):
        before = model.vector.copy()
        with pytest.raises(ConfigError):
            model.load(wrong)
        np.testing.assert_array_equal(model.vector, before)


def test_a_copy_of_the_module_shares_nothing_with_the_vector():
    model = FlatModel(network(), device="cpu")
    copied = copy.deepcopy(model.module)
    model.load(np.zeros(model.size, np.float32))
    assert bool(copied["head"].weight.any())


def test_devices_are_resolved_or_refused():
    assert resolve_device("cpu").type == "cpu"
    assert resolve_device("auto").type in {"cpu", "cuda"}
    for wrong in ("abacus", "cuda:99"):
        with pytest.raises(ConfigError, match="use 'auto' or 'cpu'"):
            resolve_device(wrong)


def test_processors_without_aes_get_the_other_cipher(tmp_path: Path):
    told = tmp_path / "cpuinfo"
    told.write_text("processor : 0\nFeatures : fp asimd evtstrm crc32 cpuid\n")
    assert fast_cipher(told) == "chacha20"
    told.write_text("processor : 0\nflags : fpu sse2 aes avx\n")
    assert fast_cipher(told) == "auto"
    assert fast_cipher(tmp_path / "missing") == "auto"
