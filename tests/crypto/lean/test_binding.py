"""A sketch is compared with its body: honest leaders pass, who sketches anything else does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.crypto.context import KeyContext
from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.crypto.lean import binding, masks, quantiser, sharing
from ofl_iot.crypto.lean.masks import MaskDomain, MaskKey
from ofl_iot.crypto.lean.params import PRIMES, value_bits
from ofl_iot.crypto.params import LEAN
from ofl_iot.crypto.sampling import ternary
from ofl_iot.errors import CryptoError, WrongShareError
from ofl_iot.ids import DeviceId, FederationId, Term

MEMBERS = tuple(DeviceId(f"truck-{n}") for n in range(5))
CONTEXT = KeyContext(LEAN, FederationId("harbour"), Term(3), MEMBERS, 3)
DOMAIN = MaskDomain(CONTEXT.key_id, 7)
SIZE = 9000
N = LEAN.degree
NORM = (2 * N / 3) ** 0.5


def sketch_of(update: np.ndarray, signs: np.ndarray) -> np.ndarray:
    rows = np.zeros(signs.size)
    rows[: update.size] = update
    twist = np.exp(1j * np.pi * np.arange(N) / N)
    both = [np.fft.fft(each.reshape(signs.shape) * twist, axis=1) for each in (signs.reshape(-1), rows)]
    return (np.fft.ifft((np.conj(both[0]) * both[1]).sum(axis=0)) / twist).real / NORM


@pytest.fixture(scope="module")
def body():
    rng = np.random.default_rng(1)
    update = (rng.standard_t(5, SIZE) * 0.01).astype(np.float32)
    bounds = np.array([0, -2, 1, -1, 0], np.int8).tobytes()
    values = quantiser.quantise(update, bounds, 20)
    key = MaskKey.draw(SeededEntropy(1))
    made = masks.mask_body(DOMAIN, key, values, 20, SeededEntropy(2))
    signs = ternary((-(-SIZE // N), N), SeededEntropy(3))
    return quantiser.dequantise(values, bounds, 20), bounds, key, made, signs


def off_by(body, sketched: np.ndarray, place: int) -> tuple[int, float]:
    _, bounds, key, made, signs = body
    weights = binding.combination(signs, place, bounds, SIZE)
    shares = sharing.deal(CONTEXT, key, SeededEntropy(4))
    form = binding.functional(DOMAIN, weights)
    answers = {m: binding.evaluate(form, sharing.decode_share(shares[m], "")) for m in MEMBERS}
    number = binding.recover_number(CONTEXT, answers)
    told = sketched[place] * NORM / binding.finest_step(bounds, SIZE, value_bits(20))
    return binding.difference(made, weights, number, told, 20), binding.allowed(weights, 1.0, 20)


def test_an_honest_sketch_agrees_at_every_place(body) -> None:
    sketched = sketch_of(body[0], body[4])
    for place in (0, 1, 77, 2048, 4095):
        off, limit = off_by(body, sketched, place)
        assert abs(off) < limit < (1 << 20) / 8


@pytest.mark.parametrize("lie", ["a tenth", "another", "nothing", "flipped"])
def test_another_sketch_is_off(body, lie) -> None:
    update = body[0]
    other = {
        "a tenth": update / 10,
        "another": np.random.default_rng(9).permutation(update),
        "nothing": update * 0,
        "flipped": -update,
    }[lie]
    sketched = sketch_of(other, body[4])
    caught = [abs(off) > limit for off, limit in (off_by(body, sketched, place) for place in (3, 500, 1000, 3000))]
    assert sum(caught) >= 3


@settings(max_examples=10)
@given(st.integers(0, N - 1), st.integers(0, 2**32))
def test_the_number_is_the_combination_of_the_unmasked_product(place, seed) -> None:
    """Σ g·(a·k) modulo each prime, by the masks' own products."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(-3, 4, 3000)
    key = MaskKey.draw(SeededEntropy(seed))
    first, second = binding.evaluate(binding.functional(DOMAIN, weights), key.residues)
    products = []
    public = DOMAIN.rows(0, 2)
    for prime, stack, residues in zip(masks._tables(), public, key.residues, strict=True):
        transformed = residues.reshape(1, -1).copy()
        masks.ring_kernels.ntt_forward(transformed, prime.forward, prime.forward_shoup, prime.value)
        product = (stack.astype(np.uint64) * transformed % np.uint64(prime.value)).astype(np.uint32)
        masks.ring_kernels.ntt_inverse(
            product, prime.backward, prime.backward_shoup, prime.value, prime.degree_inverse, prime.degree_inverse_shoup
        )
        products.append(int((product.reshape(-1)[:3000].astype(np.int64) * weights).sum()) % int(prime.value))
    assert (first, second) == tuple(products)
    assert 0 <= place < N


def test_a_wrong_number_is_named_or_seen() -> None:
    numbers = {
        m: (sum(c * (n + 1) ** k for k, c in enumerate((5, 6, 7))) % PRIMES[0], 0) for n, m in enumerate(MEMBERS)
    }
    assert binding.recover_number(CONTEXT, numbers) % PRIMES[0] == 5
    numbers[MEMBERS[1]] = (1, 0)
    with pytest.raises(WrongShareError) as caught:
        binding.recover_number(CONTEXT, numbers)
    assert caught.value.leaders == (MEMBERS[1],)
    with pytest.raises(CryptoError, match="2 answers, 3 are needed"):
        binding.recover_number(CONTEXT, {m: numbers[m] for m in MEMBERS[:2]})


def test_numbers_travel_and_strange_ones_are_refused() -> None:
    numbers = {MEMBERS[1]: [(1, 2), (3, 4)], MEMBERS[0]: [(5, 6), (7, 8)]}
    data = binding.encode_numbers(numbers)
    assert binding.decode_numbers(data, MEMBERS[:2], 2, "x") == numbers
    for bad in (data[:-1], data + b"\0\0\0\0", b"\xff" * len(data)):
        with pytest.raises(CryptoError, match="x:"):
            binding.decode_numbers(bad, MEMBERS[:2], 2, "x")
