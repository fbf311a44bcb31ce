"""What the stories of every broker's access policy take in hand."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def hands(recorder: Any, eventually: Any) -> tuple[Any, Any]:
    """To hear with, and to wait with; `tests.broker.access` takes both."""
    return recorder, eventually
