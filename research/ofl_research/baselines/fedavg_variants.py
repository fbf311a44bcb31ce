"""FedAvg with what OFL has, one thing at a time, so that a lead of OFL is told from that of its parts.

FedAvgM  a momentum at the server (T. Hsu, H. Qi, M. Brown: Measuring the Effects of Non-Identical Data Distribution for
         Federated Visual Classification, 2019):  v <- beta·v + (mean of the models - theta),  theta <- theta + v
codec    devices send a share of their update in OFL's own chunks, a byte a value, and keep the rest (error feedback);
         the model goes down whole, as in FedAvg
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from ofl_iot.errors import DecodeError
from ofl_iot.opportunity.release import count_of
from ofl_iot.opportunity.selection import select_top
from ofl_iot.protocol.chunks import Chunk, ChunkHead, split_update
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.topics import Kind
from ofl_research.baselines.fedavg import FedAvg
from ofl_research.baselines.letters import Reply, Vector

_MODEL = b"baseline"


class FedAvgMOptions(msgspec.Struct, frozen=True):
    """The server's momentum."""

    beta: float = 0.5


class FedAvgM(FedAvg):
    """One model for all, which goes on in the direction of the last rounds."""

    def __init__(self, initial: Vector, options: FedAvgMOptions) -> None:
        super().__init__(initial)
        self._beta = np.float32(options.beta)
        self._velocity: Vector = np.zeros_like(initial)

    def combine(self, round_no: int, replies: Mapping[str, Reply]) -> int:
        """Average, then go on."""
        before = self.model
        work = super().combine(round_no, replies)
        self._velocity = self._beta * self._velocity + (self.model - before)
        self.model = before + self._velocity
        return work + len(self.model)


class CodecOptions(msgspec.Struct, frozen=True):
    """How much of an update leaves the device."""

    share: float = 0.1


class ChunkPacking:
    """The largest changes in chunks, as OFL's devices send them; the rest waits for the next round."""

    def __init__(self, options: CodecOptions) -> None:
        self._share = options.share
        self._residual: Vector | None = None

    def pack(self, start: Vector, trained: Vector) -> bytes:
        """Chunks of the share of the update that changed most."""
        update = trained - start if self._residual is None else trained - start + self._residual
        size = np.abs(update)
        places = select_top(size, count_of(self._share, len(size)))
        head = ChunkHead(0, _MODEL, len(update), 0, 1.0)
        chunks = [piece.chunk for piece in split_update(head, places, update[places], size[places])]
        for chunk in chunks:
            update[chunk.read_indices()] -= chunk.read_values()
        self._residual = update
        return msgspec.msgpack.encode([encode(chunk) for chunk in chunks])


class FedAvgWithCodec(FedAvg):
    """θ ← θ + Σ |D_i|·update_i / Σ |D_i| of sparse updates."""

    def combine(self, round_no: int, replies: Mapping[str, Reply]) -> int:  # noqa: ARG002
        """Add the updates."""
        total, added, work = float(sum(self._sizes[device] for device in replies)), np.zeros(len(self.model)), 0
        for device, reply in replies.items():
            for payload in msgspec.msgpack.decode(reply.body, type=list[bytes]):
                chunk = decode(Kind.UPDATE, payload)
                if not isinstance(chunk, Chunk) or chunk.size != len(self.model):
                    raise DecodeError("a reply that is not an update of this model")
                added[chunk.read_indices()] += chunk.read_values() * (self._sizes[device] / total)
                work += chunk.count
        self.model = self.model + added.astype(np.float32)
        return work
