"""Where a training computes, and which cipher is fast there."""

from __future__ import annotations

from pathlib import Path

import torch

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.noise import Algorithm


def resolve_device(name: str = "auto") -> torch.device:
    """Return the torch device of a setting: "auto" is CUDA where it works, otherwise the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} cannot be used ({type(error).__name__}): use 'auto' or 'cpu'") from error
    return device


def fast_cipher(cpuinfo: Path = Path("/proc/cpuinfo")) -> Algorithm:
    """Return the cipher for noise: ChaCha20 on processors known to have no AES instructions."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return "auto"
    flags = [line.partition(":")[2].split() for line in lines if line.lower().startswith(("flags", "features"))]
    return "chacha20" if flags and not any("aes" in each for each in flags) else "auto"
