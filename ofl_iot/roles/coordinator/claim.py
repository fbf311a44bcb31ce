"""One coordinator a federation: a second one notices, and the one with the lesser claim stops.

Every coordinator draws an incarnation at its first start and signs its manifests with it. A manifest is retained, so
a coordinator that starts sees the last one, and one that runs sees every new one. Whoever meets a claim above its own
stops; whoever meets one below its own says its own again.

    claim = (highest term, round, incarnation)

MQTT 3.1.1 has nothing to lock with; until the lesser one has seen the greater claim both run. What it orders in
that time is void: terms decide among assignments, and leaders take models only from the incarnation they serve.
"""

from __future__ import annotations

import enum

from ofl_iot.errors import ConfigError
from ofl_iot.protocol.messages import Manifest
from ofl_iot.roles.storage import Put, Stored, StoreOp

TABLE = "coordinator.fence"


class Verdict(enum.Enum):
    """What a manifest means to the coordinator that reads it."""

    OURS = enum.auto()
    BELOW = enum.auto()
    """Another coordinator with the lesser claim: it must hear of us."""
    TAKE_OVER = enum.auto()
    """Another one with the greater claim, which the operator has ended."""


class CoordinatorClaim:
    """Knows who this coordinator is."""

    def __init__(self, new_incarnation: bytes, *, take_over: bool, discard_model: bool = False) -> None:
        self.incarnation = new_incarnation
        self._take_over = take_over
        self.discard_model = discard_model
        """Whether the other's model is to be given up."""

    @property
    def taking_over(self) -> bool:
        """Whether this coordinator follows another one and has not claimed a term yet."""
        return self._take_over

    def restore(self, stored: Stored) -> list[StoreOp]:
        """Be who an earlier process was; at the first start, what makes this identity durable."""
        rows = stored.get(TABLE, {})
        if "incarnation" not in rows:
            return [Put(TABLE, "incarnation", self.incarnation)]
        self.incarnation = rows["incarnation"]
        return []

    def judge(self, seen: Manifest, own: Manifest, *, begun: bool) -> Verdict:
        """Compare claims; raises ConfigError when this coordinator must not go on."""
        if seen.incarnation == self.incarnation:
            copied = (seen.round_no, seen.digest) != (own.round_no, own.digest) and seen.round_no >= own.round_no
            if not copied:
                return Verdict.OURS
            reason = (
                f"the broker holds round {seen.round_no} of this very coordinator, its state folder stands at round "
                f"{own.round_no}: the folder is an old copy, or a copy of it is in use elsewhere"
            )
        elif not seen.incarnation or (begun and _claim(own) > _claim(seen)):
            return Verdict.BELOW if seen.incarnation else Verdict.OURS
        else:
            reason = (
                f"another coordinator runs or ran this federation (term {seen.term}, round {seen.round_no}) with "
                "another state folder"
            )
        if self._take_over:
            self._take_over = not begun  # until it has a term to claim, whatever comes is of the one it follows
            return Verdict.TAKE_OVER
        raise ConfigError(
            f"{reason}. Start the coordinator with the state folder that was in use last, or, once no other one runs, "
            "with --take-over, which begins a new term above it"
        )


def _claim(manifest: Manifest) -> tuple[int, int, bytes]:
    return manifest.term, manifest.round_no, manifest.incarnation
