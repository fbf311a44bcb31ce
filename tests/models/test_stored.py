"""A party's store gives its model to an export: with names where the card fits, in words where there is none."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.ids import COORDINATOR
from ofl_iot.models.named import AppPlace, ModelCopy
from ofl_iot.models.stored import copy_of_store, description_ops
from ofl_iot.protocol.model_card import ModelCard, TensorCard
from ofl_iot.roles.block_layout import BlockLayout
from ofl_iot.roles.coordinator.global_model import GlobalModel
from ofl_iot.roles.device.local_model import LocalModel
from ofl_iot.roles.device.model_store import ModelStore
from ofl_iot.roles.storage import Put, Stored, StoreOp
from ofl_iot.runtime.store import MemoryStore

CARD = ModelCard(app="trial", tensors=(TensorCard("w", (2, 3)), TensorCard("b", (2,))), loss="mse", version="1")
PLACE = AppPlace(app="trial.py:app", data="data", folder="/somewhere")
VALUES = np.arange(8, dtype=np.float32)


def holding(*ops: StoreOp) -> Stored:
    store = MemoryStore()
    store.apply(ops)
    return store.load()


def device(*, complete: bool = True, digest: bytes = CARD.digest) -> LocalModel:
    model = LocalModel(BlockLayout(8, 4), digest)
    model.local, model.base = VALUES + 100, VALUES.copy()
    model.held[:] = complete
    model.round_no = 5
    return model


def test_a_coordinators_store_gives_its_model_by_name() -> None:
    model = GlobalModel(CARD.digest, VALUES)
    model.advance(VALUES + 1, 4, (), lambda _: True, final=True)
    copy = copy_of_store(holding(*model.stored(), *description_ops(CARD, PLACE)), COORDINATOR)
    assert (copy.round_no, copy.final, copy.app) == (4, True, PLACE)
    assert np.array_equal(copy.named().tensors["w"], (VALUES + 1)[:6].reshape(2, 3))
    assert copy.about()["app"] == "trial"


def test_a_device_has_the_federations_model_and_its_own() -> None:
    stored = holding(*ModelStore(device()).snapshot(9), *description_ops(CARD, None))
    shared, own = copy_of_store(stored, "truck-1"), copy_of_store(stored, "truck-1", "own")
    assert np.array_equal(shared.named().tensors["b"], VALUES[6:])
    assert np.array_equal(own.values, VALUES + 100)
    assert (shared.round_no, shared.app) == (5, None)


def test_a_card_of_another_model_is_not_believed() -> None:
    stored = holding(*ModelStore(device(digest=b"12345678")).snapshot(9), *description_ops(CARD, PLACE))
    copy = copy_of_store(stored, "truck-1")
    assert copy.card is None
    assert list(copy.named().tensors) == ["parameters"]


def test_a_damaged_card_or_place_costs_the_names_and_not_the_model() -> None:
    damaged = [Put("party", "card", b"{"), Put("party", "app", b"[]")]
    copy = copy_of_store(holding(*ModelStore(device()).snapshot(9), *damaged), "truck-1")
    assert (copy.card, copy.app) == (None, None)
    assert np.array_equal(copy.values, VALUES)


def test_stores_without_a_whole_model_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match="has not received one yet"):
        copy_of_store(holding(), "truck-1")
    with pytest.raises(ConfigError, match="let it run"):
        copy_of_store(holding(*ModelStore(device(complete=False)).snapshot(9)), "truck-1")
    with pytest.raises(ConfigError, match="start it once"):
        copy_of_store(holding(), COORDINATOR)


def test_a_card_that_does_not_fit_the_values_is_refused() -> None:
    with pytest.raises(ConfigError, match="7 parameters and a card of 8"):
        ModelCopy("truck-1", "agent", "own", 1, CARD.digest, VALUES[:7], CARD)


def test_the_place_of_an_app_survives_new_fields() -> None:
    newer = msgspec.json.encode({"app": "a", "later": 1})
    assert msgspec.json.decode(newer, type=AppPlace) == AppPlace(app="a")
