"""The error tree. The second level says what the caller does about it.

OflError
├── ConfigError        fix the settings, the command line or the files they name
├── ProtocolError      drop the message, count it, log its sender
│   ├── TopicError         the topic is not one of ours
│   ├── DecodeError        the payload is not a valid message
│   ├── EncodeError        a message of our own that no reader would accept: it is not sent
│   └── RefusedError       valid, but not for us: another term, model shape, sender or round
│       └── LateError          of a term, leader or round that is over: usual while assignments change
├── TransportError     try again later
├── StoreError         stop releasing; what is stored stays whole
├── RoundError         abandon the round; the next one opens
├── PrivacyError       stop releasing: the budget does not allow it
└── CryptoError        stop: a key, ciphertext or share is not what it must be
    └── WrongShareError    decrypt again, leaving out one of the leaders it names
"""

from __future__ import annotations


class OflError(Exception):
    """Whatever this package raises on purpose."""


class ConfigError(OflError):
    """Something the operator wrote cannot be used; the message says what to change."""


class ProtocolError(OflError):
    """A peer sent something that must be dropped."""


class TopicError(ProtocolError):
    """A topic outside the federation's topic tree."""


class DecodeError(ProtocolError):
    """Bytes that are not a valid message of the expected kind."""


class EncodeError(ProtocolError):
    """A message that `decode` would refuse: it must not leave, nor be stored to be read later."""


class RefusedError(ProtocolError):
    """A valid message that does not belong here: wrong term, shape, sender or round; `code` tells devices which."""

    def __init__(self, reason: str, code: str = "refused") -> None:
        super().__init__(reason)
        self.code = code


class LateError(RefusedError):
    """A valid message of a term, leader or round that is over: nothing is wrong."""


class TransportError(OflError):
    """The broker cannot be reached or the link broke."""


class StoreError(OflError):
    """The durable store refused a write or cannot be read."""


class RoundError(OflError):
    """This round cannot be completed."""


class PrivacyError(OflError):
    """A release that the privacy budget does not allow."""


class CryptoError(OflError):
    """A key, ciphertext or share that must not be used."""


class WrongShareError(CryptoError):
    """Decryption shares, each well formed, that do not decrypt together: one of these leaders' is wrong."""

    def __init__(self, message: str, leaders: tuple[str, ...]) -> None:
        super().__init__(message)
        self.leaders = leaders
