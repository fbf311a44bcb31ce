"""Fixed features of images for private learning: a wavelet scattering, whitened by generated images.

    image ─▶ |image ∗ ψ1| (8 directions, 2 scales) ─▶ ||image ∗ ψ1| ∗ ψ2| ─▶ low pass: 81 maps of a quarter of the side
          ─▶ group normalisation (27 groups) ─▶ averages on a 4 x 4 grid ─▶ length 1: 1,296 numbers a channel
          ─▶ whitened, length 1

The whitening transform is that of random textures (`generated_textures`): it makes slow directions as fast as the
others, so that few noisy steps are enough, and depends on nobody's records. Neither do the wavelets. So features cost
no privacy, and a linear head on them is trained privately as on any inputs. After Oyallon and Mallat (CVPR 2015),
Tramèr and Boneh (ICLR 2021).
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.with_torch import load_torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

DIRECTIONS = 8
CHANNELS = 1 + 2 * DIRECTIONS + DIRECTIONS**2
GROUPS = 27
GRID = 4
SMALLEST_SIDE = 16
"""The widest wavelet must fit twice into an image that is half as large."""
VERSION = "scattering-whitened-1"
"""Changes with the features: parties of different versions cannot learn together."""
TEXTURES = 2000
_AT_ONCE = 500
_SHORTEST = 1e-6
_RIDGE = 1e-2
"""Variance, as a share of the largest, that every direction is granted: those quieter than it stay quiet."""

Features = npt.NDArray[np.float32]


def feature_count(channels: int = 1) -> int:
    """Return how many numbers the features of an image of so many channels are."""
    return channels * CHANNELS * GRID * GRID


class Wavelets:
    """Fixed features for images of one size: call it with images, get one row of `size` numbers of length 1 each."""

    def __init__(self, height: int, width: int, channels: int = 1) -> None:
        """Make the whitening transform, which takes some seconds once a process."""
        if min(height, width) < SMALLEST_SIDE:
            raise ConfigError(f"wavelet features need images of {SMALLEST_SIDE} pixels a side, not {height} x {width}")
        self.shape = (channels, height, width)
        self.size = feature_count(channels)
        self._mean, self._whitener = _whitening(height, width)

    def __call__(self, images: npt.NDArray[Any]) -> Features:
        """Return the features of images (count, channels, height, width) or, of one channel, (count, height, width).

        The scale of the pixels does not matter: bytes, [0, 1] and standardised values give the same features.
        """
        torch = load_torch()
        pixels = np.asarray(images)
        pixels = pixels[:, None] if pixels.ndim == 3 else pixels
        if pixels.shape[1:] != self.shape:
            raise ConfigError(f"images of {pixels.shape[1:]} (channels, height, width) where {self.shape} are expected")
        found = np.empty((len(pixels), self.size), np.float32)
        with torch.inference_mode():
            for start in range(0, len(pixels), _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                found[part] = self.transform(torch.from_numpy(pixels[part].astype(np.float32))).numpy()
        return found

    def transform(self, images: Tensor) -> Tensor:
        """Return the features of a batch of tensors, wherever they are computed."""
        torch = load_torch()
        channels = self.shape[0]
        rows = _scattering(images.reshape(len(images) * channels, 1, *self.shape[1:]))
        mean, whitener = (torch.from_numpy(each).to(rows.device) for each in (self._mean, self._whitener))
        white: Tensor = (rows - mean) @ whitener
        return torch.nn.functional.normalize(white.reshape(len(images), -1), dim=1, eps=_SHORTEST)

    def layer(self) -> Module:
        """Return the features as a module without parameters, to stand in front of a head."""
        torch, features = load_torch(), self

        class WaveletLayer(torch.nn.Module):  # type: ignore[misc, name-defined]
            """Fixed features of a batch of images."""

            def forward(self, images: Tensor) -> Tensor:
                with torch.no_grad():
                    return features.transform(images)

        return WaveletLayer()


def generated_textures(count: int, height: int, width: int) -> npt.NDArray[np.float32]:
    """Return random images (count, height, width): noise of spectrum f^-a, every second one with edges.

    The numbers come from the bits of a fixed generator, so every party makes the same ones, whatever its numpy.
    """
    bits = np.random.PCG64(2_015)
    columns = width // 2 + 1
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1 / max(height, width)
    images = np.empty((count, height, width), np.float32)
    for number in range(count):
        steepness, contrast, level = _uniforms(bits, 3)
        radius, phase = _uniforms(bits, 2 * height * columns).reshape(2, height, columns)
        spectrum = np.sqrt(-2 * np.log(radius)) * np.exp(2j * np.pi * phase)
        image = np.fft.irfft2(spectrum * frequency ** -(0.5 + 1.5 * steepness), s=(height, width))
        image /= image.std()
        images[number] = np.tanh((1 + 5 * contrast) * (image - 2 * level + 1)) if number % 2 else image
    return images


def _uniforms(bits: np.random.PCG64, count: int) -> npt.NDArray[np.float64]:
    """Return numbers in (0, 1]."""
    return np.asarray(((bits.random_raw(count) >> np.uint64(11)) + 1) * 2.0**-53)


@functools.lru_cache(maxsize=4)
def _whitening(height: int, width: int) -> tuple[Features, Features]:
    """The mean of the textures' features and the symmetric root of their inverse covariance.

    It is symmetric because its eigenvectors alone are not the same with every linear algebra library.
    """
    textures = generated_textures(TEXTURES, height, width)
    torch = load_torch()
    with torch.inference_mode():
        rows = np.concatenate(
            [
                _scattering(torch.from_numpy(textures[start : start + _AT_ONCE, None])).numpy()
                for start in range(0, TEXTURES, _AT_ONCE)
            ]
        )
    mean = rows.mean(axis=0)
    centred = rows - mean
    centred /= np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), _SHORTEST)
    variances, directions = np.linalg.eigh(np.cov(centred.T))
    scales = 1 / np.sqrt(variances + _RIDGE * variances.max())
    whitener = (directions * (scales / scales.max())) @ directions.T
    return mean.astype(np.float32), whitener.astype(np.float32)


def _scattering(images: Tensor) -> Tensor:
    """Normalised features of (count, 1, height, width), each of length 1."""
    functional = load_torch().nn.functional
    flat = images.float()
    spread = flat.std(dim=(1, 2, 3), keepdim=True).clamp_min(_SHORTEST)
    scattered = _scatter((flat - flat.mean(dim=(1, 2, 3), keepdim=True)) / spread)
    pooled = functional.adaptive_avg_pool2d(functional.group_norm(scattered, GROUPS), GRID)
    rows: Tensor = functional.normalize(pooled.reshape(len(images), -1), dim=1, eps=_SHORTEST)
    return rows


def _scatter(images: Tensor) -> Tensor:
    """Orders 0, 1 and 2 of (count, 1, h, w), low-passed: (count, 81, h/4, w/4)."""
    torch = load_torch()
    bank = _bank()
    count = len(images)
    fine, coarse = _modulus(images, bank["fine"]), _modulus(images, bank["coarse"], 2)
    height, width = fine.shape[-2:]
    second = _modulus(fine.reshape(count * DIRECTIONS, 1, height, width), bank["coarse"], 2)
    parts = [
        _low(images, bank["wide"], 4),
        _low(fine, bank["wide"], 4),
        _low(coarse, bank["narrow"], 2),
        _low(second, bank["narrow"], 2),
    ]
    return torch.cat([part.reshape(count, -1, *part.shape[-2:]) for part in parts], 1)


def _low(maps: Tensor, kernel: Tensor, stride: int) -> Tensor:
    return _convolved(maps.reshape(-1, 1, *maps.shape[-2:]), kernel, stride)


def _modulus(images: Tensor, wavelets: Tensor, stride: int = 1) -> Tensor:
    """Return |x ∗ ψ| for each direction; the kernel holds real parts, then imaginary ones."""
    both = _convolved(images, wavelets, stride)
    modulus: Tensor = (both[:, :DIRECTIONS] ** 2 + both[:, DIRECTIONS:] ** 2).sqrt()
    return modulus


def _convolved(images: Tensor, kernel: Tensor, stride: int) -> Tensor:
    functional, edge = load_torch().nn.functional, kernel.shape[-1] // 2
    padded = functional.pad(images, (edge,) * 4, mode="reflect")
    convolved: Tensor = functional.conv2d(padded, kernel, stride=stride)
    return convolved


@functools.cache
def _bank() -> dict[str, Tensor]:
    """The kernels: wavelets of two scales, Gaussians before a fourfold and before a twofold reduction."""
    torch = load_torch()

    def wavelets(size: int, scale: int) -> Tensor:
        waves = np.stack([_morlet(size, scale, math.pi * turn / DIRECTIONS) for turn in range(DIRECTIONS)])
        return torch.from_numpy(np.concatenate([waves.real, waves.imag])[:, None].astype(np.float32))

    def gauss(size: int, deviation: float) -> Tensor:
        y, x = _places(size)
        bell = np.exp(-(x**2 + y**2) / (2 * deviation**2))
        return torch.from_numpy((bell / bell.sum())[None, None].astype(np.float32))

    return {"fine": wavelets(7, 0), "coarse": wavelets(13, 1), "wide": gauss(13, 1.6), "narrow": gauss(7, 0.8)}


def _morlet(size: int, scale: int, angle: float) -> npt.NDArray[np.complex128]:
    """A wave of 3π/4 / 2^scale a pixel under a Gaussian half as wide across; its mean is zero."""
    deviation, frequency, slant = 0.8 * 2**scale, 3 * math.pi / 4 / 2**scale, 0.5
    y, x = _places(size)
    along, across = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    bell = np.exp(-(along**2 + (slant * across) ** 2) / (2 * deviation**2))
    wave = bell * np.exp(1j * frequency * along)
    wave -= bell * (wave.sum() / bell.sum())
    return np.asarray(wave / np.abs(wave).sum() * 2)


def _places(size: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    places = np.arange(size, dtype=np.float64) - size // 2
    y, x = np.meshgrid(places, places, indexing="ij")
    return y, x
