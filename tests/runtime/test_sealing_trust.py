"""Enrolled leaders seal their key deals to nobody whom the federation's authority does not vouch for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.identity.certificates import LIFETIME_S, Validity, certificate_from, read
from ofl_iot.identity.enrolment import Enrolment, SealingTrust
from ofl_iot.ids import DeviceId
from ofl_iot.jobs.leader_crypto import LeaderCrypto, sealing_key_of
from ofl_iot.jobs.toolbox import run_job
from ofl_iot.protocol.key_messages import KeyMember
from ofl_iot.protocol.messages import Part
from ofl_iot.roles.events import JobFailed, KeysBegun, SealingKeyMade
from ofl_iot.roles.job_kinds.keys import BeginKeys, FinishKeys, MakeSealingKey
from ofl_iot.roles.keys.participant import DEAL, FAULT, TABLE
from tests.identity.certs import ENTROPY, NOW, authority, request
from tests.roles.circle import FEDERATION, RULES, Circle, names

A, B, C = names(3)


def enrolment(name: str, by: int = 0, now: float = NOW) -> Enrolment:
    """A party's enrolment by one of two authorities of the same name."""
    private = X25519PrivateKey.generate()
    asked = request(name, private.public_key().public_bytes_raw(), FEDERATION)
    signer = authority(by, FEDERATION)
    certificate = signer.issue(asked, Validity.beginning(now, LIFETIME_S), ENTROPY)
    der = certificate.public_bytes(Encoding.DER)
    return Enrolment(read(certificate), der, signer.certificate, private.private_bytes_raw())


def enrol(circle: Circle, name: DeviceId, mine: Enrolment) -> LeaderCrypto:
    """Give a leader of the circle its identity."""
    crypto = LeaderCrypto(FEDERATION, RULES, SeededEntropy(7), SealingTrust(lambda: mine, lambda: NOW))
    circle.tools[name] = {
        **circle.tools[name],
        MakeSealingKey: crypto.make_sealing_key,
        BeginKeys: crypto.begin_keys,
        FinishKeys: crypto.finish_keys,
    }
    circle.give(name, sealing_key_of(mine))
    return crypto


@pytest.fixture
def circle() -> Circle:
    made = Circle(names(3))
    for name in made.leaders:
        enrol(made, name, enrolment(name))
    return made


def accused(circle: Circle) -> set[str]:
    bodies = [message.body for _, _, message in circle.sent if isinstance(message, Part) and message.stage == FAULT]
    return {body.decode() for body in bodies}


def test_enrolled_leaders_make_a_key_and_keep_the_certified_sealing_key(circle: Circle) -> None:
    assert circle.make_key()
    for name in circle.leaders:
        stored = circle.stores[name].load()[TABLE]
        certificate = circle.keepers[name].certificate
        assert certificate
        assert stored["certificate"] == certificate
        circle.restart(name)
        assert circle.keepers[name].certificate == certificate


def swapped_key(circle: Circle) -> KeyMember:
    return KeyMember(B, bytes([5]) * 32, circle.keepers[B].certificate)


def swapped_certificate(_circle: Circle) -> KeyMember:
    forged = enrolment(B, by=1)
    return KeyMember(B, forged.credential.bearer.sealing_public, forged.certificate)


def anothers(circle: Circle) -> KeyMember:
    return KeyMember(B, circle.keepers[C].sealing_public, circle.keepers[C].certificate)


def without(circle: Circle) -> KeyMember:
    return KeyMember(B, circle.keepers[B].sealing_public)


def expired(_circle: Circle) -> KeyMember:
    old = enrolment(B, now=NOW - 2 * LIFETIME_S)
    return KeyMember(B, old.credential.bearer.sealing_public, old.certificate)


@pytest.mark.parametrize("forge", [swapped_key, swapped_certificate, anothers, without, expired])
def test_who_swaps_a_sealing_key_gets_no_deal_and_the_name_is_told(circle: Circle, forge: object) -> None:
    forged: KeyMember = forge(circle)  # type: ignore[operator]
    true = [KeyMember(each, circle.keepers[each].sealing_public, circle.keepers[each].certificate) for each in (A, C)]
    members = (true[0], forged, true[1])
    circle.carry_out("coordinator", list(circle.office.maker.begin(1, members, circle.now)))
    circle.wait(30.0)
    assert accused(circle) == {B}
    assert circle.office.maker.missing() == {B}
    assert not any(isinstance(message, Part) and message.stage == DEAL for _, _, message in circle.sent)
    assert circle.office.maker.key is None


def test_a_revoked_leader_is_not_sealed_to(circle: Circle) -> None:
    serial = certificate_from(circle.keepers[B].certificate).serial_number
    enrol(circle, A, replace(enrolment(A), revoked=frozenset({serial})))
    assert not circle.make_key()
    assert accused(circle) == {B}


def test_an_enrolled_device_uses_the_key_that_its_certificate_names() -> None:
    mine = enrolment(A)
    crypto = LeaderCrypto(FEDERATION, RULES, SeededEntropy(1), SealingTrust(lambda: mine, lambda: NOW))
    made = run_job({MakeSealingKey: crypto.make_sealing_key}, MakeSealingKey())
    assert made == SealingKeyMade(mine.sealing_private, mine.credential.bearer.sealing_public, mine.certificate)


def test_a_renewed_certificate_is_announced_and_the_key_stays(circle: Circle) -> None:
    before = circle.keepers[A].sealing_public
    circle.give(A, SealingKeyMade(b"p" * 32, before, b"renewed"))
    assert circle.keepers[A].certificate == b"renewed"
    assert circle.keepers[A].sealing_public == before


def test_a_folder_that_cannot_be_read_fails_the_job_and_blames_nobody(circle: Circle) -> None:
    def broken() -> Enrolment:
        raise OSError("no folder")

    crypto = LeaderCrypto(FEDERATION, RULES, SeededEntropy(1), SealingTrust(broken, lambda: NOW))
    assert circle.make_key()
    (begin, *_) = [job for _, job in circle.done if isinstance(job, BeginKeys)]
    failed = run_job({BeginKeys: crypto.begin_keys}, begin)
    assert isinstance(failed, JobFailed)
    assert failed.culprits == ()


def test_a_broadcast_that_was_swapped_on_the_way_does_not_become_part_of_the_key(circle: Circle) -> None:
    """Whoever could swap it would know the secret of the sum, and read what is encrypted under it."""
    assert circle.make_key()
    (finish,) = [job for name, job in circle.done if isinstance(job, FinishKeys) and name == A]
    (begin,) = [job for name, job in circle.done if isinstance(job, BeginKeys) and name == B]
    another = run_job(circle.tools[B], begin)
    assert isinstance(another, KeysBegun)
    swapped = run_job(circle.tools[A], replace(finish, round1_shares={**finish.round1_shares, B: another.one}))
    assert isinstance(swapped, JobFailed)
    assert swapped.culprits == (B,)
    assert not isinstance(run_job(circle.tools[A], finish), JobFailed)
