"""Where noise comes from.

`noise_generator` is numpy's Philox4x64-10, a counter-based generator, under a 128-bit key and at a 128-bit random
position, both from the operating system. What that is and is not:

- nobody can repeat or guess the noise without the key, which is never stored, logged or derived from anything;
- Philox passes every statistical test and no attack on it is known, but it was not designed as a cipher: it is
  cryptographically *seeded*, not a proven cryptographic generator;
- samples are floating-point numbers. The guarantees of the accountant are about real numbers; an observer of the
  low bits of single noisy values could tell more (Mironov 2012). Here noise is added to sums of gradients before
  further training steps and values leave rounded to a byte, or as `upload.values` says, which hides those bits
  but proves nothing.
"""

from __future__ import annotations

import secrets

import numpy as np

from ofl_iot.errors import ConfigError

ENTROPY_BYTES = 32


def noise_generator(entropy: bytes | None = None) -> np.random.Generator:
    """A generator for noise that protects somebody; `entropy` is for tests, by default it is fresh and secret."""
    entropy = secrets.token_bytes(ENTROPY_BYTES) if entropy is None else entropy
    if len(entropy) != ENTROPY_BYTES:
        raise ConfigError(f"{len(entropy)} bytes of entropy: give {ENTROPY_BYTES}")
    key, position = int.from_bytes(entropy[:16], "little"), int.from_bytes(entropy[16:], "little")
    return np.random.Generator(np.random.Philox(key=key, counter=position << 128))
