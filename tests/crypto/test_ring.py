"""The ring layer against naive arithmetic and against SEAL."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ofl_iot.crypto import kernels
from ofl_iot.crypto.params import LEAN, MAIN
from ofl_iot.crypto.ring import Prime, conjugate, ring_of

SMALL = 64
PRIMES = [MAIN.primes[0], MAIN.primes[3], 1073692673]
seeds = st.integers(0, 2**32 - 1)


def negacyclic(x: list[int], y: list[int], p: int) -> list[int]:
    """x·y modulo X^N + 1 and p, term by term."""
    out = [0] * len(x)
    for i, a in enumerate(x):
        for j, b in enumerate(y):
            sign = -1 if i + j >= len(x) else 1
            out[(i + j) % len(x)] += sign * a * b
    return [value % p for value in out]


def transform(prime: Prime, x: np.ndarray) -> np.ndarray:
    rows = x[None].astype(np.uint32)
    kernels.ntt_forward(rows, prime.forward, prime.forward_shoup, prime.value)
    return rows[0]


def untransform(prime: Prime, x: np.ndarray) -> np.ndarray:
    rows = x[None].copy()
    inverse, inverse_shoup = prime.degree_inverse, prime.degree_inverse_shoup
    kernels.ntt_inverse(rows, prime.backward, prime.backward_shoup, prime.value, inverse, inverse_shoup)
    return rows[0]


@given(st.sampled_from(PRIMES), seeds)
@settings(max_examples=20, deadline=None)
def test_products_of_transforms_are_negacyclic_products(p: int, seed: int) -> None:
    prime = Prime.of(p, SMALL)
    x, y = np.random.default_rng(seed).integers(0, p, (2, SMALL), dtype=np.uint32)
    product = np.empty(SMALL, dtype=np.uint32)
    kernels.multiply(transform(prime, x), transform(prime, y), np.uint32(p), product)
    assert untransform(prime, product).tolist() == negacyclic(x.tolist(), y.tolist(), p)


@given(st.sampled_from([MAIN, LEAN]), seeds)
@settings(max_examples=10, deadline=None)
def test_the_inverse_transform_undoes_the_transform(params, seed: int) -> None:
    ring = ring_of(params)
    for limb, p in enumerate(ring.moduli):
        rows = np.random.default_rng(seed).integers(0, p, (2, params.degree), dtype=np.uint32)
        rows[0, :2] = 0, p - 1
        copy = rows.copy()
        ring.transform(copy, limb)
        ring.untransform(copy, limb)
        assert (copy == rows).all()


def test_a_product_at_full_degree_equals_convolution() -> None:
    ring = ring_of(MAIN)
    x, y = np.random.default_rng(0).integers(-1000, 1000, (2, MAIN.degree))
    full = np.convolve(x, y)
    expected = full[: MAIN.degree].copy()
    expected[:-1] -= full[MAIN.degree :]
    stacks = [ring.from_integers(row[None], 2)[:, 0] for row in (x, y)]
    product = ring.multiply(*stacks)
    assert (ring.join(product[0][None], product[1][None], (0, 1))[0] == expected).all()


def test_reversal_is_conjugation_and_the_mean_is_the_constant_coefficient() -> None:
    ring = ring_of(MAIN)
    x, y = np.random.default_rng(1).integers(-1000, 1000, (2, 3, MAIN.degree))
    one, two = ring.from_integers(x, 4), ring.from_integers(y, 4)
    assert ring.centred(ring.constant(ring.correlate(one, two))) == int((x * y).sum())
    alone = ring.multiply(one[:, 0], conjugate(one[:, 0]))
    assert ring.centred(ring.constant(alone)) == int((x[0] ** 2).sum())


@given(arrays(np.int64, (1, 64), elements=st.integers(-(2**62) + 1, 2**62 - 1)), st.sampled_from(PRIMES))
@settings(deadline=None)
def test_reduction_is_the_mathematical_remainder(values: np.ndarray, p: int) -> None:
    out = np.empty(values.shape, dtype=np.uint32)
    kernels.reduce_wide(values, np.uint32(p), out)
    assert out.tolist() == (values % p).tolist()


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_modulus_switching_divides_and_rounds(seed: int) -> None:
    ring = ring_of(MAIN)
    rng = np.random.default_rng(seed)
    stack = np.stack([rng.integers(0, p, (1, MAIN.degree), dtype=np.uint32) for p in MAIN.primes])
    switched = ring.switch_modulus(stack, 2)
    out = ring.join(switched[0], switched[1], (0, 1))[0]
    coefficients = stack.copy()
    for limb in range(4):
        ring.untransform(coefficients[limb], limb)
    dropped = MAIN.modulus // MAIN.decryption_modulus
    for j in range(0, MAIN.degree, 97):
        exact = ring.centred(tuple(int(coefficients[limb, 0, j]) for limb in range(4))) / dropped
        difference = (int(out[j]) - exact) % MAIN.decryption_modulus
        assert min(difference, MAIN.decryption_modulus - difference) <= 1.01


@given(seeds, st.integers(-(2**70), 2**70))
@settings(max_examples=20, deadline=None)
def test_sums_and_multiples_are_those_of_the_integers(seed: int, number: int) -> None:
    ring = ring_of(MAIN)
    x, y = np.random.default_rng(seed).integers(-1000, 1000, (2, 1, MAIN.degree))
    one, two = ring.from_integers(x, 4), ring.from_integers(y, 4)
    added = one.copy()
    ring.scale_add(two, number, added)
    assert (added == ring.add(one, ring.scale(two, number))).all()
    assert (ring.add(ring.subtract(one, two), two) == one).all()


@given(st.integers(1, 30), seeds)
@settings(deadline=None)
def test_packed_bits_come_back(bits: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 1 << bits, 128, dtype=np.uint32)
    words = np.empty(2 * bits, dtype=np.uint64)
    kernels.pack_bits(values, bits, words)
    assert int.from_bytes(words.tobytes(), "little") == sum(int(v) << (bits * i) for i, v in enumerate(values))
    back = np.empty_like(values)
    assert kernels.unpack_bits(words, bits, back) == values.max()
    assert (back == values).all()


def test_an_unwritable_cache_only_costs_time(tmp_path: Path) -> None:
    """Where numba finds no directory to cache in, the kernels compile without one."""
    # the module's own kernels come from the cache of this test run; one more is compiled without
    program = (
        "import numba.core.caching as caching\n"
        "from ofl_iot.crypto.compiled import kernel\n"
        "caching.CacheImpl._locator_classes = []\n"
        "print(kernel('i8(i8)')(lambda x: x + 1)(41))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)  # noqa: S603
    assert done.stdout.strip() == "42"


def test_seal_agrees_on_primes_transform_order_and_decryption() -> None:
    seal = pytest.importorskip("tenseal.sealapi")
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
    parameters.set_poly_modulus_degree(4096)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(4096, [24, 24, 24, 23]))
    context = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)
    primes = [m.value() for m in context.first_context_data().parms().coeff_modulus()]
    assert set(primes) <= set(MAIN.primes)
    tables = [Prime.of(p, 4096) for p in primes]
    keys = seal.KeyGenerator(context)
    public = seal.PublicKey()
    keys.create_public_key(public)
    plain, cipher, decrypted = seal.Plaintext(), seal.Ciphertext(), seal.Plaintext()
    encoder = seal.CKKSEncoder(context)
    values = np.random.default_rng(0).normal(0, 1, 2048)
    encoder.encode(values.tolist(), 2.0**30, plain)
    seal.Encryptor(context, public).encrypt(plain, cipher)
    secret_key = keys.secret_key()
    seal.Decryptor(context, secret_key).decrypt(cipher, decrypted)

    def limbs(read, start: int = 0) -> list[np.ndarray]:
        return [
            np.array([read(start + limb * 4096 + j) for j in range(4096)], dtype=np.uint32)
            for limb in range(len(primes))
        ]

    # the encoding of real values is one integer polynomial: our inverse transform finds it in every limb
    coefficients = [untransform(table, limb) for table, limb in zip(tables, limbs(plain.data), strict=False)]
    joined = np.array([_join([int(x[j]) for x in coefficients], primes) for j in range(4096)], dtype=np.float64)
    slots = np.array([pow(3, k, 8192) for k in range(2048)])
    roots = np.exp(1j * np.pi * slots[:, None] * np.arange(4096) / 4096)
    assert np.allclose((roots * (joined / 2.0**30)).sum(axis=1).real, values, atol=1e-4)
    # SEAL's decryption is c0 + c1·s, computed with our arithmetic on SEAL's numbers
    array, secret, result = cipher.dyn_array(), secret_key.data(), limbs(decrypted.data)
    c0, c1, s = limbs(array.at), limbs(array.at, len(primes) * 4096), limbs(secret.data)
    for limb, p in enumerate(primes):
        product = np.empty(4096, dtype=np.uint32)
        kernels.multiply(c1[limb], s[limb], np.uint32(p), product)
        assert ((product.astype(np.int64) + c0[limb]) % p == result[limb]).all()


def _join(residues: list[int], primes: list[int]) -> int:
    modulus = math.prod(primes)
    value = sum(r * (modulus // p) * pow(modulus // p, -1, p) for r, p in zip(residues, primes, strict=False)) % modulus
    return value - modulus if value > modulus // 2 else value
