"""An order is obeyed only if an operator of this federation signed it, for this device, lately."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import msgspec
import pytest

from ofl_agents.enrolment.authority import Authority
from ofl_iot.crypto.lean.vouchers import sign
from ofl_iot.errors import CryptoError
from ofl_iot.identity.enrolment import Enrolment
from ofl_iot.ids import FederationId
from ofl_iot.jobs.operator_orders import OrderTrust, signed
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.fleet_orders import LIFETIME_S, Order, signed_bytes
from ofl_iot.protocol.topics import Kind
from tests.e2e.test_identity_mosquitto import enrol


class Party:
    """Enrolled parties of one federation, and one of another authority."""

    def __init__(self, folder: Path) -> None:
        ca = Authority.found(folder / "ca", FederationId("depot"), time.time())
        self.device, self.operator, self.other = (
            enrol(ca, folder / name, name).load() for name in ("truck-1", "operator", "truck-2")
        )
        foreign = Authority.found(folder / "foreign", FederationId("depot"), time.time())
        self.stranger = enrol(foreign, folder / "stranger", "operator").load()
        self.now = time.time()

    def order(self, **changes: object) -> Order:
        plain = Order("depot", "truck-1", 7, self.now, "pause")
        return msgspec.structs.replace(plain, **changes)

    def check(self, order: Order, mine: Enrolment | None = None) -> str:
        assert decode(Kind.ORDER, encode(order)) == order
        return OrderTrust(lambda: mine or self.device, lambda: self.now).check(order)


@pytest.fixture(scope="module")
def party(tmp_path_factory: pytest.TempPathFactory) -> Party:
    return Party(tmp_path_factory.mktemp("parties"))


def test_an_operators_order_is_good_and_names_its_certificate(party: Party) -> None:
    by = party.check(signed(party.order(), party.operator))
    assert by == f"operator-{party.operator.credential.serial:x}"[:40]


def test_a_device_signs_no_orders_and_its_signature_counts_for_none(party: Party) -> None:
    with pytest.raises(CryptoError, match="only one named 'operator'"):
        signed(party.order(), party.other)
    forged = party.order(certificate=party.other.certificate)
    assert party.other.signing_key is not None
    forged = msgspec.structs.replace(forged, signature=sign(party.other.signing_key, signed_bytes(forged)))
    with pytest.raises(CryptoError, match="truck-2 is no operator"):
        party.check(forged)
    borrowed = msgspec.structs.replace(forged, certificate=party.operator.certificate)
    with pytest.raises(CryptoError):
        party.check(borrowed)


@pytest.mark.parametrize("field", ["device", "federation", "number", "issued_s", "action"])
def test_nothing_in_an_order_can_be_changed(party: Party, field: str) -> None:
    other = {"device": "truck-2", "federation": "yard", "number": 8, "issued_s": party.now - 1, "action": "resume"}
    good = signed(party.order(), party.operator)
    with pytest.raises(CryptoError):
        party.check(msgspec.structs.replace(good, **{field: other[field]}))


def test_an_order_to_another_device_or_federation_is_not_ours_though_well_signed(party: Party) -> None:
    for changes in ({"device": "truck-2"}, {"federation": "yard"}):
        with pytest.raises(CryptoError, match="it is for"):
            party.check(signed(party.order(**changes), party.operator))


def test_old_and_future_orders_a_revoked_operator_and_a_namesake_of_another_authority_are_refused(party: Party) -> None:
    for issued_s in (party.now - LIFETIME_S - 1, party.now + 3600):
        with pytest.raises(CryptoError, match="too old, or from the future"):
            party.check(signed(party.order(issued_s=issued_s), party.operator))
    warned = dataclasses.replace(party.device, revoked=frozenset({party.operator.credential.serial}))
    with pytest.raises(CryptoError, match="revoked"):
        party.check(signed(party.order(), party.operator), warned)
    with pytest.raises(CryptoError):
        party.check(signed(party.order(), party.stranger))
    with pytest.raises(CryptoError, match="no certificate"):
        party.check(party.order())
