"""Types of the fields that messages are made of: ids, counts, digests, bounded texts."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ofl_iot.ids import MAX_ID_LENGTH

Id = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*\Z", max_length=MAX_ID_LENGTH)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
ModelDigest = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
"""First 8 bytes of a hash over the model's name and shapes: two models of equal size are still told apart."""
BodyDigest = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Incarnation = Annotated[bytes, msgspec.Meta(max_length=16)]
"""Drawn at a coordinator's first start and stored: two coordinators of one federation are told apart by it."""
Certificate = Annotated[bytes, msgspec.Meta(max_length=2048)]
"""X.509 in DER, some 530 bytes; empty where nobody is enrolled."""
MAX_TEXT = 200
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
