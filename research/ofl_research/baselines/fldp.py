"""FLDP: noisy updates, added up under Learning With Errors so that the server sees their sum only.

T. Stevens, C. Skalka, C. Vincent, J. Ring, S. Clark, J. Near: Efficient Differentially Private Secure Aggregation for
Federated Learning via Hardness of Learning with Errors, USENIX Security 2022. The masked sum is computed for real
(`secure_sum`). Simplified: Ring-LWE instead of LWE with a random matrix, one Shamir sharing a coefficient instead of
packed sharing, shares pass the server unsealed (sealing would add 32 bytes each), and no device drops out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

import msgspec
import numpy as np

from ofl_iot.errors import ConfigError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.roles.commands import Command
from ofl_iot.roles.events import Trained
from ofl_research.baselines.device import DeviceMachine, Worker
from ofl_research.baselines.letters import BaselineEvent, BaselineMessageArrived, Hello, Reply, Shares, Vector, post
from ofl_research.baselines.secure_sum import (
    LWE_DEVIATION,
    MODULUS,
    Residues,
    centred,
    deal_shares,
    join_shares,
    masks,
    random_secret,
)
from ofl_research.baselines.server import Judged, RoundServer, Schedule


class FldpOptions(msgspec.Struct, frozen=True):
    """Bounds and noise of the released updates."""

    clip_norm: float = 8.0
    noise_multiplier: float = 0.0
    """Deviation of the noise in the sum over clip_norm (each device adds its part); 0: that of LWE alone.

    Noise that hides a whole device drowns the update of so few: `privacy` of a plan hides records instead.
    """
    fraction_bits: int = 16
    """Updates are integers in units of 2^-fraction_bits."""


class FldpFleet(msgspec.Struct, frozen=True):
    """Who takes part, in the order of the places of their shares."""

    devices: tuple[str, ...]
    public_seed: int
    options: FldpOptions

    def __post_init__(self) -> None:
        longest = len(self.devices) * self.options.clip_norm * 2**self.options.fraction_bits
        if longest >= MODULUS / 2:
            raise ConfigError(
                f"a sum of {len(self.devices)} updates of norm {self.options.clip_norm} overflows: clip more"
            )

    @property
    def threshold(self) -> int:
        """How many devices can put the sum of the secrets together: more than half."""
        return len(self.devices) // 2 + 1

    def public(self, round_no: int) -> np.random.Generator:
        """The generator of a round's public polynomials."""
        return np.random.default_rng([self.public_seed, round_no])

    def place(self, device: str) -> int:
        """Where a device's share is evaluated."""
        return self.devices.index(device) + 1


def quantised(update: Vector, fleet: FldpFleet, rng: np.random.Generator) -> Residues:
    """The update clipped to its norm, in fixed point, with noise rounded to integers."""
    options, unit = fleet.options, 2.0**fleet.options.fraction_bits
    values = update.astype(np.float64) * min(1.0, options.clip_norm / max(1e-12, float(np.linalg.norm(update))))
    part = options.noise_multiplier * options.clip_norm * unit / np.sqrt(len(fleet.devices))
    noise = rng.normal(0.0, np.hypot(part, LWE_DEVIATION), len(values))
    return np.rint(values * unit + noise).astype(np.int64)


class FldpDevice(DeviceMachine):
    """Sends its hidden update with shares of the secret, and then the sum of the shares it got."""

    def __init__(self, worker: Worker, fleet: FldpFleet, rng: np.random.Generator) -> None:
        super().__init__(worker, self)
        self._fleet = fleet
        self._rng = rng
        self._secret: Residues | None = None
        self._round_no = 0

    def pack(self, start: Vector, trained: Vector) -> bytes:
        """h = a·s + e + x modulo p, 4 bytes a parameter."""
        self._secret = random_secret(self._rng)
        mask = masks(self._secret, len(start), self._fleet.public(self._round_no))
        hidden = (mask + quantised(trained - start, self._fleet, self._rng)) % MODULUS
        return _encode(hidden)

    def _decide(self, event: BaselineEvent) -> Iterator[Command]:
        if isinstance(event, BaselineMessageArrived) and isinstance(event.letter, Shares):
            total = reduce(lambda x, y: (x + y) % MODULUS, map(_decode, event.letter.shares.values()))
            answer = Shares(event.letter.round_no, {self.worker.device: _encode(total)})
            yield post(self.worker.device, COORDINATOR, answer)
        else:
            yield from super()._decide(event)

    def _answer(self, event: Trained) -> Iterator[Command]:
        assert self._work is not None  # noqa: S101  # callers have one
        self._round_no = self._work.offer.round_no
        yield from super()._answer(event)
        assert self._secret is not None  # noqa: S101  # packing drew it
        places = [self._fleet.place(device) for device in self._fleet.devices]
        shares = deal_shares(self._secret, places, self._fleet.threshold, self._rng)
        self._secret = None
        dealt = {device: _encode(share) for device, share in zip(self._fleet.devices, shares, strict=True)}
        yield post(self.worker.device, COORDINATOR, Shares(self._round_no, dealt))


class Fldp:
    """θ ← θ + Σ x_i / N: a plain mean, for numbers of samples would tell how a device was weighed."""

    def __init__(self, initial: Vector, fleet: FldpFleet) -> None:
        self.model = initial
        self.secret_sum: Residues | None = None
        self._fleet = fleet

    def begin(self, hellos: Mapping[str, Hello]) -> None:
        """All devices are known already."""

    def models_for(self, device: str) -> Sequence[Vector]:  # noqa: ARG002
        """The model."""
        return (self.model,)

    def combine(self, round_no: int, replies: Mapping[str, Reply]) -> int:
        """Σh - a·Σs, back in floating point."""
        assert self.secret_sum is not None  # noqa: S101  # the server has put it together
        size = len(self.model)
        total = np.zeros(size, np.int64)
        for reply in replies.values():
            total = (total + _decode(reply.body)) % MODULUS
        total = centred(total - masks(self.secret_sum, size, self._fleet.public(round_no)))
        unit = 2.0**self._fleet.options.fraction_bits
        self.model = (self.model + total / (unit * len(replies))).astype(np.float32)
        return (len(replies) + 1) * size

    def judged(self) -> list[Judged]:
        """The model."""
        return [Judged(self.model)]


class FldpServer(RoundServer):
    """Between the answers and the sum: passes shares on and collects what they add up to."""

    def __init__(self, strategy: Fldp, fleet: FldpFleet, schedule: Schedule) -> None:
        super().__init__(strategy, schedule)
        self._sum = strategy
        self._fleet = fleet
        self._dealt: dict[str, dict[str, bytes]] = {}
        self._sums: dict[int, Residues] = {}

    def _all_replied(self) -> Iterator[Command]:
        yield from self._pass_on()

    def _shares(self, sender: DeviceId, letter: Shares) -> Iterator[Command]:
        if self._round is None or letter.round_no != self._round.number:
            return
        if len(self._dealt) < len(self._fleet.devices):
            self._dealt[sender] = letter.shares
            yield from self._pass_on()
            return
        self._sums[self._fleet.place(sender)] = _decode(letter.shares[sender])
        if len(self._sums) == len(self._fleet.devices):
            enough = dict(sorted(self._sums.items())[: self._fleet.threshold])
            self._sum.secret_sum = join_shares(enough)
            self._dealt, self._sums = {}, {}
            yield from self._close()

    def _pass_on(self) -> Iterator[Command]:
        devices = self._fleet.devices
        if self._round is None or len(self._round.replies) < len(devices) or len(self._dealt) < len(devices):
            return
        for device in devices:
            own = {dealer: shares[device] for dealer, shares in sorted(self._dealt.items())}
            yield post(COORDINATOR, DeviceId(device), Shares(self._round.number, own))


def _encode(residues: Residues) -> bytes:
    return residues.astype("<u4").tobytes()


def _decode(body: bytes) -> Residues:
    return np.frombuffer(body, "<u4").astype(np.int64)
