"""The paper's scores taken literally, on TenSEAL's SEAL: radix-2 FHE-DFT (Algorithm 3) and a polynomial FHE-MD.

For comparison only, by `bench_crypto` and a test. One butterfly level costs two rotations, three plaintext products and
one modulus level, so log2(slots) levels need a ring of degree 32768 for 128-bit security.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Complex = npt.NDArray[np.complex128]
Result = TypeVar("Result")

SCALE = 2.0**40


def butterflies(slots: int) -> list[dict[int, Complex]]:
    """Algorithm 3's matrices D by diagonals: level -> {left rotation: diagonal}; the DFT comes out bit-reversed."""
    levels = []
    size = slots
    while size > 1:
        half = size // 2
        place = np.arange(slots) % size
        upper = place < half
        twiddle = np.exp(-2j * np.pi * (place - half) / size)
        diagonals: dict[int, Complex] = {0: np.where(upper, 1, -twiddle)}
        for rotation, diagonal in ((half, np.where(upper, 1, 0)), (-half, np.where(upper, 0, twiddle))):
            rotation %= slots  # noqa: PLW2901 - at the last level both rotations are the same
            diagonals[rotation] = diagonals.get(rotation, 0) + diagonal
        levels.append(diagonals)
        size = half
    return levels


def bit_reversed(slots: int) -> npt.NDArray[np.int64]:
    """The order in which the butterflies leave the spectrum."""
    bits = slots.bit_length() - 1
    order = np.zeros(slots, dtype=np.int64)
    for bit in range(bits):
        order |= ((np.arange(slots) >> bit) & 1) << (bits - 1 - bit)
    return order


class SealScheme:
    """A single-key CKKS scheme of SEAL that counts the processor time of evaluation alone."""

    def __init__(self, degree: int, levels: int, *, secure: bool = True) -> None:
        import tenseal.sealapi as seal

        self.seal: Any = seal
        self.degree = degree
        self.slots = degree // 2
        parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
        parameters.set_poly_modulus_degree(degree)
        parameters.set_coeff_modulus(_moduli(seal, degree, [60] + [40] * levels + [60], secure=secure))
        level = seal.SEC_LEVEL_TYPE.TC128 if secure else seal.SEC_LEVEL_TYPE.NONE
        self.context = seal.SEALContext(parameters, True, level)  # noqa: FBT003 - SEAL's signature
        self.keys = seal.KeyGenerator(self.context)
        public = seal.PublicKey()
        self.keys.create_public_key(public)
        self.encryptor = seal.Encryptor(self.context, public)
        self.decryptor = seal.Decryptor(self.context, self.keys.secret_key())
        self.evaluator = seal.Evaluator(self.context)
        self.encoder = seal.CKKSEncoder(self.context)
        self.evaluation_s = 0.0
        self.rotations = 0

    def timed(self, work: Callable[[], Result]) -> Result:
        """Run one evaluation step and count its time."""
        start = time.process_time()
        result = work()
        self.evaluation_s += time.process_time() - start
        return result

    def encrypt(self, values: Sequence[float]) -> Any:
        plain, cipher = self.seal.Plaintext(), self.seal.Ciphertext()
        self.encoder.encode(np.asarray(values, dtype=np.complex128).tolist(), SCALE, plain)
        self.encryptor.encrypt(plain, cipher)
        return cipher

    def decrypt(self, cipher: Any) -> Complex:
        plain = self.seal.Plaintext()
        self.decryptor.decrypt(cipher, plain)
        return np.array(self.encoder.decode_complex(plain))

    def rotate(self, cipher: Any, by: int, galois: Any) -> Any:
        if by % self.slots == 0:
            return cipher
        out = self.seal.Ciphertext()
        element = pow(3, by % self.slots, 2 * self.degree)
        self.timed(lambda: self.evaluator.apply_galois(cipher, element, galois, out))
        self.rotations += 1
        return out

    def galois_keys(self, rotations: Sequence[int]) -> Any:
        galois = self.seal.GaloisKeys()
        self.keys.create_galois_keys([pow(3, by % self.slots, 2 * self.degree) for by in rotations], galois)
        return galois

    def multiply_plain(self, cipher: Any, diagonal: Complex) -> Any:
        """CMult at the scale of the next modulus, so that rescaling restores the scale exactly."""
        plain, out = self.seal.Plaintext(), self.seal.Ciphertext()
        place = cipher.parms_id()
        self.encoder.encode(diagonal.astype(np.complex128).tolist(), place, self._last_modulus(place), plain)
        self.timed(lambda: self.evaluator.multiply_plain(cipher, plain, out))
        return out

    def _last_modulus(self, place: Any) -> float:
        return float(self.context.get_context_data(place).parms().coeff_modulus()[-1].value())

    def rescale(self, cipher: Any) -> Any:
        self.timed(lambda: self.evaluator.rescale_to_next_inplace(cipher))
        cipher.scale = SCALE
        return cipher

    def add(self, total: Any, term: Any) -> Any:
        if total is None:
            return term
        self.timed(lambda: self.evaluator.add_inplace(total, term))
        return total


def _moduli(seal: Any, degree: int, bits: list[int], *, secure: bool) -> Any:
    """SEAL's own choice of primes; for an insecure test ring, primes that suit a larger ring also suit it."""
    return seal.CoeffModulus.Create(degree if secure else max(degree, 32768), bits)


def encrypted_dft(scheme: SealScheme, cipher: Any) -> Any:
    """FHE-DFT, lines 7 to 14 of Algorithm 3: one rotation each way, three products and a sum a level."""
    for diagonals in butterflies(scheme.slots):
        galois = scheme.galois_keys([rotation for rotation in diagonals if rotation])
        total = None
        for rotation, diagonal in diagonals.items():
            total = scheme.add(total, scheme.multiply_plain(scheme.rotate(cipher, rotation, galois), diagonal))
        cipher = scheme.rescale(total)
    return cipher


def absolute_polynomial(limit: float) -> tuple[float, float, float]:
    """c0 + c2·x² + c4·x⁴ nearest to |x| on [-limit, limit]; beyond it falls below zero, which is why it is unsound."""
    nodes = np.cos(np.pi * (np.arange(2000) + 0.5) / 2000)
    c0, c2, c4 = np.linalg.lstsq(np.stack([nodes**0, nodes**2, nodes**4], 1), np.abs(nodes), rcond=None)[0]
    return float(c0 * limit), float(c2 / limit), float(c4 / limit**3)


def encrypted_manhattan(scheme: SealScheme, first: Any, second: Any, limit: float) -> Any:
    """FHE-MD: Σ p(x - y) with a degree-4 polynomial p for |·|; the sum ends up in every slot. Needs 3 levels."""
    evaluator, seal = scheme.evaluator, scheme.seal
    c0, c2, c4 = absolute_polynomial(limit)
    relin = seal.RelinKeys()
    scheme.keys.create_relin_keys(relin)
    difference = seal.Ciphertext()
    scheme.timed(lambda: evaluator.sub(first, second, difference))
    square = _square(scheme, difference, relin)
    fourth = scheme.multiply_plain(_square(scheme, square, relin), np.full(scheme.slots, c4))
    scheme.timed(lambda: evaluator.mod_switch_to_next_inplace(square))
    total = scheme.rescale(scheme.add(fourth, scheme.multiply_plain(square, np.full(scheme.slots, c2))))
    plain = seal.Plaintext()
    scheme.encoder.encode([complex(c0)] * scheme.slots, total.parms_id(), SCALE, plain)
    scheme.timed(lambda: evaluator.add_plain_inplace(total, plain))
    step = 1
    while step < scheme.slots:
        total = scheme.add(scheme.rotate(total, step, scheme.galois_keys([step])), total)
        step *= 2
    return total


def _square(scheme: SealScheme, cipher: Any, relin: Any) -> Any:
    out = scheme.seal.Ciphertext()
    scheme.timed(lambda: scheme.evaluator.square(cipher, out))
    scheme.timed(lambda: scheme.evaluator.relinearize_inplace(out, relin))
    return scheme.rescale(out)


@dataclass(frozen=True)
class LiteralCost:
    """What one ciphertext's FHE-DFT took."""

    seconds: float
    slots: int
    rotations: int
    largest_error: float

    def seconds_for(self, n_params: int) -> float:
        """Scaled to a whole model: ceil(n/slots) ciphertexts."""
        return self.seconds * -(-n_params // self.slots)


def measure_dft(degree: int = 32768) -> LiteralCost:
    """Run FHE-DFT on one full ciphertext and check it against the plain transform."""
    levels = int(math.log2(degree // 2))
    scheme = SealScheme(degree, levels)
    values = np.random.default_rng(0).normal(0, 0.05, scheme.slots)
    spectrum = scheme.decrypt(encrypted_dft(scheme, scheme.encrypt(values.tolist())))
    error = float(np.abs(spectrum - np.fft.fft(values)[bit_reversed(scheme.slots)]).max())
    return LiteralCost(scheme.evaluation_s, scheme.slots, scheme.rotations, error)
