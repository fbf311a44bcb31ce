"""Which device leads, and which model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ofl_iot.ids import DeviceId
from ofl_iot.roles.block_layout import BlockLayout


@dataclass(frozen=True)
class LeaderProfile:
    """Which device leads, which model."""

    device: DeviceId
    model: bytes
    layout: BlockLayout
    encrypted: bool = True
    """Whether to contribute only under a joint key, unless there is no other cluster to hide among."""
    max_energy: float = math.inf
    """Largest squared length of an update that can be encrypted and scored; a longer one is contributed in parts."""

    @property
    def identity(self) -> bytes:
        """Stored books of any other model are of no use."""
        return self.model + self.layout.size.to_bytes(8, "little") + self.layout.block_size.to_bytes(8, "little")
