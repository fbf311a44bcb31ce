"""A party's model as its store holds it, and what is stored beside it so that an export knows names and shapes."""

from __future__ import annotations

import msgspec
import numpy as np

from ofl_iot.errors import ConfigError, OflError
from ofl_iot.ids import COORDINATOR
from ofl_iot.local.messages import ModelReply, Which
from ofl_iot.models.named import AppPlace, ModelCopy
from ofl_iot.protocol.messages import Manifest
from ofl_iot.protocol.model_card import ModelCard, decode_card, encode_card
from ofl_iot.roles.coordinator.global_model import TABLE as GLOBAL
from ofl_iot.roles.device.model_store import read_stored
from ofl_iot.roles.storage import Put, Stored, StoreOp

TABLE = "party"
_CARD, _APP = "card", "app"


def description_ops(card: ModelCard | None, app: AppPlace | None) -> list[StoreOp]:
    """Return what makes the model's card and the app's place durable."""
    return [Put(TABLE, _CARD, encode_card(card) if card else b""), Put(TABLE, _APP, encode_app(app))]


def encode_app(app: AppPlace | None) -> bytes:
    """Return an app's place as JSON; nothing for none."""
    return msgspec.json.encode(app) if app else b""


def copy_of_store(stored: Stored, party: str, which: Which = "federation") -> ModelCopy:
    """Return the model of a store, or ConfigError if there is none yet."""
    rows = stored.get(TABLE, {})
    if party == COORDINATOR:
        return _of_coordinator(stored, card=rows.get(_CARD, b""), app=rows.get(_APP, b""))
    snapshot = read_stored(stored)
    if snapshot is None:
        raise ConfigError(f"the store of {party} holds no model: it has not received one yet")
    if not snapshot.held.all():
        raise ConfigError(f"the store of {party} holds a part of a model only: let it run until all has arrived")
    return ModelCopy(
        party=party,
        role="agent",
        which=which,
        round_no=snapshot.round_no,
        model=snapshot.model,
        values=snapshot.base if which == "federation" else snapshot.local,
        card=card_for(rows.get(_CARD, b""), snapshot.model),
        app=_app_of(rows.get(_APP, b"")),
    )


def copy_of_reply(reply: ModelReply, body: bytes) -> ModelCopy:
    """Return the model that a running party sent over its local socket."""
    return ModelCopy(
        party=reply.party,
        role=reply.role,
        which=reply.which,
        round_no=reply.round_no,
        model=reply.model,
        values=np.frombuffer(body, "<f4").astype(np.float32),
        card=card_for(reply.card, reply.model),
        final=reply.final,
        app=_app_of(reply.app),
    )


def card_for(card: bytes, model: bytes) -> ModelCard | None:
    """Return the card if it is the model's own: it may be left from another app."""
    if not card:
        return None
    try:
        decoded = decode_card(card)
    except OflError:
        return None
    return decoded if decoded.digest == model else None


def _of_coordinator(stored: Stored, card: bytes, app: bytes) -> ModelCopy:
    rows = stored.get(GLOBAL, {})
    if not {"manifest", "values"} <= rows.keys():
        raise ConfigError("the coordinator's store holds no model yet: start it once")
    manifest = msgspec.msgpack.decode(rows["manifest"], type=Manifest)
    return ModelCopy(
        party=COORDINATOR,
        role="coordinator",
        which="federation",
        round_no=manifest.round_no,
        model=manifest.model,
        values=np.frombuffer(rows["values"], "<f4").astype(np.float32),
        card=card_for(card, manifest.model),
        final=manifest.final,
        app=_app_of(app),
    )


def _app_of(stored: bytes) -> AppPlace | None:
    try:
        return msgspec.json.decode(stored, type=AppPlace) if stored else None
    except msgspec.DecodeError:
        return None
