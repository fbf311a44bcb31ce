"""A request's id is the same on every machine and in every version that speaks version 1 of its fields."""

from __future__ import annotations

import numpy as np

from ofl_iot.crypto.context import KeyContext, Origin
from ofl_iot.crypto.filters import HIGH_BAND
from ofl_iot.crypto.params import MAIN
from ofl_iot.crypto.scalars import Query, ScalarRequest
from ofl_iot.crypto.threshold import DecryptionRequest
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId, Term

NAMES = tuple(DeviceId(f"truck-{n}") for n in range(3))
ORIGIN = Origin(KeyContext(MAIN, FederationId("harbour"), Term(3), NAMES, 2), 7, COORDINATOR)
C1 = np.arange(2 * 4096, dtype=np.uint32).reshape(2, 1, 4096)


def test_the_id_of_a_decryption_request_is_pinned() -> None:
    request = DecryptionRequest(ORIGIN, 100, NAMES[:2], NAMES, C1)
    assert request.request_id.hex() == "80ea56e00cd4b6fea028c0bc794ea118"


def test_the_id_of_a_score_request_is_pinned() -> None:
    queries = (Query(0, -1, "truck-0", "truck-0"), Query(0, 0, "truck-0", "truck-0"))
    request = ScalarRequest(ORIGIN, NAMES[:2], NAMES, (HIGH_BAND,), queries, (1.5,), C1)
    assert request.request_id.hex() == "9957b6439cb2febabfd13ef88282dbff"


def test_everything_that_a_request_says_changes_its_id() -> None:
    ids = {
        DecryptionRequest(ORIGIN, 100, NAMES[:2], NAMES, C1).request_id,
        DecryptionRequest(ORIGIN, 101, NAMES[:2], NAMES, C1).request_id,
        DecryptionRequest(ORIGIN, 100, NAMES, NAMES, C1).request_id,
        DecryptionRequest(ORIGIN, 100, NAMES[:2], NAMES[:2], C1).request_id,
        DecryptionRequest(ORIGIN, 100, NAMES[:2], NAMES, C1 + np.uint32(1)).request_id,
        DecryptionRequest(Origin(ORIGIN.context, 8, COORDINATOR), 100, NAMES[:2], NAMES, C1).request_id,
    }
    assert len(ids) == 6
