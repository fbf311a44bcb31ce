"""Where noise comes from.

`CipherNoise` draws Gaussian noise from the key stream of a cipher under a key of the operating system. What that is
and is not:

- who sees any part of the noise can compute no other part of it without the key, which is never stored or logged;
- samples are float32, not a discrete Gaussian. The guarantees of the accountant are about real numbers; an observer
  of the low bits of single noisy values could tell more (Mironov 2012). Here noise is added to sums of gradients
  before further training steps and values leave rounded to a byte, or as `upload.values` says, which hides those
  bits but proves nothing;
- the largest sample is 6.76 standard deviations (32 bits for the radius); one in 10^11 true samples is larger.

PyTorch's generator is not used: it keeps 32 bits of a seed and its float32 samples end at 5.77 standard deviations.

`noise_generator` is numpy's Philox4x64-10, a counter-based generator, under a 128-bit key and at a 128-bit random
position, both from the operating system: for sampling batches, choosing devices and values of few coordinates. It
passes every statistical test and no attack on it is known, but it was not designed as a cipher.
"""

from __future__ import annotations

import math
import secrets
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError

ENTROPY_BYTES = 32

Algorithm = Literal["auto", "aes", "chacha20"]

_CHUNK = 1 << 15
"""Samples made at once: their buffers stay in the cache."""
_REKEY_BYTES = 1 << 36
"""Key stream taken under one key: ChaCha20 has 2^38 bytes before its block counter overflows."""


def noise_generator(entropy: bytes | None = None) -> np.random.Generator:
    """A generator for noise that protects somebody; `entropy` is for tests, by default it is fresh and secret."""
    entropy = _checked(entropy)
    key, position = int.from_bytes(entropy[:16], "little"), int.from_bytes(entropy[16:], "little")
    return np.random.Generator(np.random.Philox(key=key, counter=position << 128))


class CipherNoise:
    """Gaussian noise from AES-256 in counter mode, or from ChaCha20: faster on processors without AES instructions.

    `key` is for simulations that must repeat themselves (see `seeded`); by default it is fresh and secret.
    """

    def __init__(self, key: bytes | None = None, algorithm: Algorithm = "auto") -> None:
        self._algorithm = algorithm
        self._stream, self._taken = _key_stream(_checked(key), algorithm), 0
        half = _CHUNK // 2
        self._zeros = bytes(8 * half)
        self._raw = bytearray(8 * half + 15)  # a cipher asks for room for its blocks
        self._words = np.frombuffer(self._raw, np.dtype("<u4"), count=2 * half)
        self._radius, self._angle, self._wave = (np.empty(half, np.float32) for _ in range(3))

    @classmethod
    def seeded(cls, rng: np.random.Generator) -> CipherNoise:
        """Return noise whose key is drawn from `rng`: as secret and as repeatable as that is."""
        return cls(rng.bytes(ENTROPY_BYTES))

    def add_to(self, total: npt.NDArray[np.float32], deviation: float) -> None:
        """Add an independent sample of N(0, deviation²) to each value of a flat float32 array, in place."""
        if total.ndim != 1 or total.dtype != np.float32:
            raise ConfigError(f"noise is added to flat float32 arrays, not to {total.dtype} of shape {total.shape}")
        if not 0 <= deviation < math.inf:
            raise ConfigError(f"standard deviation of noise is {deviation}: it must be 0 or positive and finite")
        if deviation == 0:
            return
        for start in range(0, len(total), _CHUNK):
            self._add_chunk(total[start : start + _CHUNK], deviation)

    def _add_chunk(self, part: npt.NDArray[np.float32], deviation: float) -> None:
        """Box-Muller: √(-2 ln u)·cos v for the first half and √(-2 ln u)·sin v for the second, u and v uniform."""
        radius, angle, wave = self._radius, self._angle, self._wave
        self._refill()
        np.copyto(radius, self._words[: len(radius)], casting="unsafe")
        radius += np.float32(0.5)
        radius *= np.float32(2.0**-32)
        np.log(radius, out=radius)
        radius *= np.float32(-2.0)
        np.sqrt(radius, out=radius)
        radius *= np.float32(deviation)
        np.copyto(angle, self._words[len(radius) :], casting="unsafe")
        angle *= np.float32(math.tau * 2.0**-32)
        first = (len(part) + 1) // 2
        np.cos(angle, out=wave)
        wave *= radius
        part[:first] += wave[:first]
        np.sin(angle, out=wave)
        wave *= radius
        part[first:] += wave[: len(part) - first]

    def _refill(self) -> None:
        """Put the next bytes of the key stream into the buffer; the stream gives its own next key in time."""
        if self._taken >= _REKEY_BYTES:
            self._stream, self._taken = _key_stream(self._stream.update(bytes(ENTROPY_BYTES)), self._algorithm), 0
        self._stream.update_into(self._zeros, self._raw)
        self._taken += len(self._zeros)


def _checked(entropy: bytes | None) -> bytes:
    entropy = secrets.token_bytes(ENTROPY_BYTES) if entropy is None else entropy
    if len(entropy) != ENTROPY_BYTES:
        raise ConfigError(f"{len(entropy)} bytes of entropy: give {ENTROPY_BYTES}")
    return entropy


def _key_stream(key: bytes, algorithm: Algorithm) -> Any:
    """The encryptor whose output for zeros is the key stream; every key is used for one stream only."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    if algorithm not in ("auto", "aes", "chacha20"):
        raise ConfigError(f"cipher {algorithm!r}: use 'auto', 'aes' or 'chacha20'")
    if algorithm != "chacha20":
        try:
            return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        except UnsupportedAlgorithm:
            if algorithm == "aes":
                raise
    return Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
