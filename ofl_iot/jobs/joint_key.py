"""What leaders and coordinator share of a joint key: which it is, what is read of it, whose fault a bad part is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from ofl_iot.errors import CryptoError, ProtocolError
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId, Term
from ofl_iot.protocol.codec import decode_body
from ofl_iot.protocol.key_messages import KeyOne, KeyOpen

if TYPE_CHECKING:
    from ofl_iot.crypto.context import KeyContext
    from ofl_iot.crypto.encryption import PublicKey
    from ofl_iot.crypto.keygen import KeyContribution
    from ofl_iot.crypto.relinearisation import RelinContribution

T = TypeVar("T")

FEWEST_CONTRIBUTORS = 2
"""An aggregate of one is somebody's update: leaders refuse to decrypt it."""


class CulpritError(CryptoError):
    """What these leaders sent cannot be used, and it is known that it was they."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__("; ".join(faults.values()))
        self.culprits = tuple(sorted(faults))


def each_of(sent: Mapping[str, bytes], read: Callable[[DeviceId, bytes], T]) -> dict[str, T]:
    """Read what each leader sent; raises CulpritError that names everyone whose bytes are not what they must be."""
    good: dict[str, T] = {}
    faults: dict[str, str] = {}
    for sender, data in sent.items():
        try:
            good[sender] = read(DeviceId(sender), data)
        except (CryptoError, ProtocolError) as error:  # noqa: PERF203  # each leader is judged apart
            faults[sender] = f"{sender}: {error}"
    if faults:
        raise CulpritError(faults)
    return good


def context_of(federation: FederationId, opened: KeyOpen) -> KeyContext:
    """Which key a key generation makes."""
    from ofl_iot.crypto.context import KeyContext
    from ofl_iot.crypto.params import parameter_set

    return KeyContext(
        params=parameter_set(opened.params),
        federation=federation,
        term=Term(opened.term),
        members=tuple(DeviceId(member.leader) for member in opened.members),
        threshold=opened.threshold,
        attempt=opened.attempt,
    )


def round1_of(
    context: KeyContext, round1_shares: Mapping[str, bytes]
) -> tuple[list[KeyContribution], list[RelinContribution]]:
    """The members' broadcasts: their parts of the public key and of the relinearisation key."""
    from ofl_iot.crypto import keygen, relinearisation
    from ofl_iot.crypto.context import Origin

    def read(sender: DeviceId, body: bytes) -> tuple[KeyContribution, RelinContribution]:
        one = decode_body(KeyOne, body)
        origin = Origin(context, keygen.KEY_ROUND, sender)
        return (
            keygen.KeyContribution.from_bytes(one.contribution, origin),
            relinearisation.RelinContribution.from_bytes(one.relin, origin),
        )

    pairs = each_of(round1_shares, read).values()
    return [contribution for contribution, _ in pairs], [first for _, first in pairs]


def public_of(context: KeyContext, stored: bytes) -> PublicKey:
    from ofl_iot.crypto.context import Origin
    from ofl_iot.crypto.encryption import PublicKey
    from ofl_iot.crypto.keygen import KEY_ROUND

    return PublicKey.from_bytes(stored, Origin(context, KEY_ROUND, COORDINATOR))
