"""Where randomness comes from.

Secrets and noise come from the operating system, never from a seeded generator; `SeededEntropy` exists so that a test
can be repeated.
"""

from __future__ import annotations

import hashlib
import os
from typing import Protocol


class Entropy(Protocol):
    """A source of uniform bytes that nobody else can guess."""

    def random_bytes(self, count: int) -> bytes:
        """`count` fresh uniform bytes."""
        ...


class SystemEntropy:
    """The operating system's randomness: what every program uses."""

    def random_bytes(self, count: int) -> bytes:
        """`count` bytes from the kernel's generator."""
        return os.urandom(count)


class SeededEntropy:
    """Repeatable bytes for tests; whoever knows the seed knows every secret."""

    def __init__(self, seed: int) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        key = hashlib.sha256(b"ofl-iot seeded entropy %d" % seed).digest()
        self._stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def random_bytes(self, count: int) -> bytes:
        """The next `count` bytes of the seed's stream."""
        return self._stream.update(bytes(count))
