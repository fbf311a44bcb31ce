"""PyTorch, which is optional: loaded when a model first needs it, or a sentence that says how to install it."""

from __future__ import annotations

import functools
from typing import Any

from ofl_iot.errors import ConfigError


@functools.cache
def load_torch() -> Any:
    """PyTorch on one thread: a party trains on one core, and the result does not depend on how many there are."""
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            f"this model needs PyTorch, which cannot be imported ({error}): pip install '.[torch]' in a checkout"
        ) from error
    torch.set_num_threads(1)
    return torch
