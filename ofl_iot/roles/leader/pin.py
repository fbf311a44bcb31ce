"""An update that was signed for is contributed under one vector alone, also when another key is made."""

from __future__ import annotations

import msgspec

from ofl_iot.roles.job_kinds.keys import KeyMaterial


class Pin(msgspec.Struct, frozen=True, array_like=True):
    """The contributors and weights for which the frozen update was signed, and under which key at first."""

    key_id: bytes
    vector: tuple[tuple[str, int], ...]

    def missing(self, key: KeyMaterial) -> tuple[str, ...]:
        """Contributors of the vector that have no share of this key."""
        members = {member.leader for member in key.opened.members}
        return tuple(name for name, _ in self.vector if name not in members)

    def binds(self, key: KeyMaterial) -> bool:
        """Whether nothing but the vector may be signed under this key: all its contributors have a share.

        A key that was made anew among the same leaders frees nobody. Otherwise a coordinator that lets a round pass
        and has a key made beside it would get a second sum over the same updates, and their difference.
        """
        return not self.missing(key)
