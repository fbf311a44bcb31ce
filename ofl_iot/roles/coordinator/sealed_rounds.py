"""Who decrypts an encrypted round, and how: here or apart, with the parameters main or lean."""

from __future__ import annotations

from ofl_iot.crypto.params import LEAN
from ofl_iot.ids import DECRYPTOR
from ofl_iot.protocol.messages import RoundOpen
from ofl_iot.roles.decryption.lean import LeanDecryption
from ofl_iot.roles.decryption.remote import RemoteDecryption
from ofl_iot.roles.decryption.requester import Decryption, RoundDecryption, SealedRound
from ofl_iot.roles.events import Vector
from ofl_iot.roles.job_kinds.lean import LeanRound
from ofl_iot.roles.settings import ProtectionRules


def decryption_of(sealed: SealedRound, opened: RoundOpen, model: Vector, rules: ProtectionRules) -> RoundDecryption:
    """Return the decryption of a round that stands on `model`."""
    if sealed.key.opened.params == LEAN.name:
        lean = LeanRound(
            sealed.key,
            sealed.round_no,
            sealed.attempt,
            sealed.contributions,
            model.copy(),
            opened.bounds,
            dict(sealed.evidence),
        )
        return LeanDecryption(sealed, lean, rules)
    if rules.server == DECRYPTOR:
        return RemoteDecryption(sealed, rules)
    return Decryption(sealed, rules)
