"""What is reported of joint keys and decryptions, by whichever party."""

from __future__ import annotations

from typing import ClassVar

from ofl_iot.roles.reports.base import ERROR, WARNING, Report


class KeyGenerationBegun(Report, frozen=True):
    """The coordinator called leaders to make a joint key; `collusion_bound` leaders together learn nothing."""

    phrase: ClassVar[str] = "key generation begins"
    term: int
    attempt: int
    leaders: int
    threshold: int
    collusion_bound: int


class KeyGenerationFailed(Report, frozen=True):
    """A joint key was not complete in time."""

    phrase: ClassVar[str] = "key generation failed"
    level: ClassVar[int] = WARNING
    missing: tuple[str, ...]


class KeyGenerationSlow(Report, frozen=True):
    """Most leaders owe something to a joint key: they are given more time, and none is replaced."""

    phrase: ClassVar[str] = "key generation is slow"
    level: ClassVar[int] = WARNING
    missing: tuple[str, ...]


class RoundsWithoutKey(Report, frozen=True):
    """A round is due and there is no key to open it under."""

    phrase: ClassVar[str] = "rounds wait for a joint key"
    round_no: int


class RoundsWithKey(Report, frozen=True):
    """The round that waited for a key can open."""

    phrase: ClassVar[str] = "rounds have a joint key"
    round_no: int
    waited_s: float


class KeyGenerationDisputed(Report, frozen=True):
    """A leader accuses another of a deal that cannot be used."""

    phrase: ClassVar[str] = "key generation disputed"
    level: ClassVar[int] = WARNING
    leader: str
    accuses: str


class JointKeyReady(Report, frozen=True):
    """The coordinator holds the public parts of a joint key."""

    phrase: ClassVar[str] = "joint key ready"
    term: int
    leaders: int


class KeyShareReady(Report, frozen=True):
    """A leader holds its share of a joint key."""

    phrase: ClassVar[str] = "key share ready"
    term: int
    leaders: int
    threshold: int


class KeyWorkFailed(Report, frozen=True):
    """A leader's part of a key generation or decryption raised."""

    phrase: ClassVar[str] = "key work failed"
    level: ClassVar[int] = ERROR
    job: str
    reason: str
    asked_by: str = ""
    """Who asked for a decryption; empty for key generations."""


class ShareWithheld(Report, frozen=True):
    """A leader keeps a decryption share back: the ciphertext was answered before."""

    phrase: ClassVar[str] = "share withheld"
    level: ClassVar[int] = ERROR
    round_no: int
    reason: str
    asked_by: str = ""


class DecryptionAsked(Report, frozen=True):
    """The decryptor was asked to decrypt with an active set of leaders."""

    phrase: ClassVar[str] = "asked to decrypt"
    round_no: int
    stage: str
    leaders: int


class ShareRefused(Report, frozen=True):
    """A decryption share could not be used."""

    phrase: ClassVar[str] = "share refused"
    level: ClassVar[int] = WARNING
    reason: str


class WrongShare(Report, frozen=True):
    """Shares do not decrypt together: one of `among` is wrong, and the next attempt leaves `left_out` out."""

    phrase: ClassVar[str] = "wrong share"
    level: ClassVar[int] = WARNING
    among: tuple[str, ...]
    left_out: str


class DecryptionFailed(Report, frozen=True):
    """The decryptor gave a decryption up."""

    phrase: ClassVar[str] = "not decrypted"
    level: ClassVar[int] = WARNING
    reason: str
    failing: tuple[str, ...]
