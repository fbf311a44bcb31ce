from __future__ import annotations

from collections import Counter

import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.fleet.devices import DEVICE_TYPES, deal_types


def test_types_get_faster_from_a_to_d() -> None:
    speeds = [kind.relative_speed for kind in DEVICE_TYPES.values()]
    assert speeds == sorted(speeds)
    assert speeds == pytest.approx([0.60, 0.70, 0.83, 1.0], abs=0.005)


def test_types_are_dealt_round_robin() -> None:
    assert "".join(kind.name for kind in deal_types(6)) == "ABCDAB"
    assert set(Counter(kind.name for kind in deal_types(16)).values()) == {4}
    assert deal_types(0) == ()


def test_a_negative_number_of_devices_is_refused() -> None:
    with pytest.raises(ConfigError, match="-1"):
        deal_types(-1)
