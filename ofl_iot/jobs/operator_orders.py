"""Signs an operator's orders, and judges those that a party is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ofl_iot.crypto.lean.vouchers import sign, verify_signature
from ofl_iot.errors import CryptoError
from ofl_iot.identity.certificates import certificate_from, verify
from ofl_iot.identity.enrolment import Enrolment
from ofl_iot.ids import OPERATOR
from ofl_iot.protocol.fleet_orders import AHEAD_S, LIFETIME_S, Order, signed_bytes


def signed(order: Order, operator: Enrolment) -> Order:
    """Return the order with the operator's certificate and signature."""
    if operator.name != OPERATOR:
        raise CryptoError(f"the certificate names {operator.name!r}: only one named {OPERATOR!r} may sign orders")
    if operator.signing_key is None:
        raise CryptoError("this identity holds no signing key: enrol it again")
    whole = msgspec.structs.replace(order, certificate=operator.certificate, signature=b"")
    return msgspec.structs.replace(whole, signature=sign(operator.signing_key, signed_bytes(whole)))


@dataclass(frozen=True)
class OrderTrust:
    """Judges orders to one device by the certificates of its federation's authority."""

    enrolled: Callable[[], Enrolment]
    """The device's own enrolment, as it is now."""
    clock: Callable[[], float]
    """Seconds since 1970."""

    def check(self, order: Order) -> str:
        """Return who gave the order, or CryptoError with the reason why it is not to be obeyed."""
        mine, now = self.enrolled(), self.clock()
        bearer = mine.credential.bearer
        if (order.federation, order.device) != (bearer.federation, bearer.name):
            raise CryptoError(f"it is for {order.device} of federation {order.federation}")
        if not order.certificate:
            raise CryptoError("it bears no certificate")
        credential = verify(certificate_from(order.certificate), mine.authority, now)
        if credential.bearer.name != OPERATOR or credential.bearer.federation != bearer.federation:
            raise CryptoError(f"{credential.bearer.name} is no operator of this federation")
        if credential.serial in mine.revoked:
            raise CryptoError("the operator's certificate was revoked")
        if not now - LIFETIME_S <= order.issued_s <= now + AHEAD_S:
            raise CryptoError("it is too old, or from the future: look at both clocks")
        verify_signature(credential.public, signed_bytes(order), order.signature, OPERATOR)
        return f"{OPERATOR}-{credential.serial:x}"[:40]
