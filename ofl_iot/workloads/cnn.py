"""The paper's network for images, in PyTorch: two convolutional layers, one dense layer, softmax output.

"Two 784-neuron convolutional layers and one 1024-neuron fully connected layer" is read as this, for 28 × 28 pixels:

| layer                                    | outputs           | parameters for 28 × 28, for 32 × 32 pixels |
| ---------------------------------------- | ----------------- | ------------------------------------------ |
| convolution 5 × 5, stride 2, 4 channels  | 4 · 14 · 14 = 784 | 104, 104                                   |
| convolution 5 × 5, stride 2, 16 channels | 16 · 7 · 7 = 784  | 1,616, 1,616                               |
| dense, rectified                         | 1024              | 803,840, 1,049,600                         |
| dense, softmax                           | 10                | 10,250, 10,250                             |
| all                                      |                   | 815,810, 1,061,570                         |
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.workloads.base import Evaluation, TrainJob, TrainResult, Vector
from ofl_iot.workloads.flat_net import (
    Labels,
    Passed,
    Tensor,
    clipping,
    dense_squares,
    descend,
    digest_of,
    judge,
    size_of,
)
from ofl_iot.workloads.training import Rows
from ofl_iot.workloads.with_torch import load_torch

Pixels = npt.NDArray[np.uint8]

DEFAULT_HIDDEN = 1024
_CHANNELS = (4, 16)
_KERNEL, _STRIDE, _PADDING = 5, 2, 2


class Images(msgspec.Struct, frozen=True):
    """Images as bytes (count, channels, side, side) and their classes; a network sees (pixel - mean) / deviation."""

    pixels: Pixels
    labels: Labels
    mean: float
    deviation: float

    def inputs(self, rows: Rows) -> Tensor:
        """What a network sees of some images."""
        torch = load_torch()
        return torch.from_numpy(self.pixels[rows]).float().sub_(self.mean).div_(self.deviation)


class ConvNet(msgspec.Struct, frozen=True):
    """A network for square images of so many channels and pixels a side."""

    channels: int
    side: int
    classes: int
    hidden: int = DEFAULT_HIDDEN

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the weights and the biases of each layer in turn."""
        first, second = _CHANNELS
        side = math.ceil(math.ceil(self.side / _STRIDE) / _STRIDE)
        return [
            (first, self.channels, _KERNEL, _KERNEL),
            (first,),
            (second, first, _KERNEL, _KERNEL),
            (second,),
            (self.hidden, second * side * side),
            (self.hidden,),
            (self.classes, self.hidden),
            (self.classes,),
        ]

    @property
    def size(self) -> int:
        """Number of parameters."""
        return size_of(self.shapes)

    @property
    def digest(self) -> bytes:
        """Eight bytes that identify the architecture."""
        return digest_of(f"convolutional {self.channels}x{self.side}x{self.side}", self.shapes)

    def initial(self, seed: int) -> Vector:
        """Draw weights from N(0, 2 / inputs), of the output layer from N(0, 1 / inputs); biases are 0."""
        rng = np.random.default_rng(seed)
        parts = []
        for shape in self.shapes:
            gain = 1.0 if shape == self.shapes[-2] else 2.0
            scale = math.sqrt(gain / math.prod(shape[1:])) if len(shape) > 1 else 0.0
            parts.append(rng.normal(0.0, scale, math.prod(shape)) if scale else np.zeros(shape))
        return np.concatenate(parts).astype(np.float32)

    def evaluate(self, params: Vector, images: Images, rows: Rows) -> Evaluation:
        """Judge `params` on some images."""

        def logits_of(layers: list[Tensor], batch: Rows) -> Tensor:
            return _forward(layers, images.inputs(batch))[-1].outputs

        return judge(params, rows, images.labels, shapes=self.shapes, logits_of=logits_of)

    def train(self, params: Vector, images: Images, rows: Rows, job: TrainJob, rng: np.random.Generator) -> TrainResult:
        """Train a copy of `params` on some images by (DP-)SGD as `TrainJob` says."""
        labels = load_torch().from_numpy(images.labels)

        def sum_gradients(layers: list[Tensor], gradients: list[Tensor], batch: Rows) -> float:
            return _sum_gradients(layers, gradients, images.inputs(batch), labels[batch], job.clip_norm)

        return descend(params, rows, job, rng, shapes=self.shapes, sum_gradients=sum_gradients)


def _forward(layers: list[Tensor], images: Tensor) -> list[Passed]:
    """The way of a batch through all layers; the last outputs are the logits.

    Outputs of the first layer are a leaf of the graph of derivatives: what is wanted is the error at each output,
    not the derivative by each weight.
    """
    torch = load_torch()
    functional = torch.nn.functional
    passed: list[Passed] = []
    inputs = images
    for place in range(0, len(layers), 2):
        weights, bias = layers[place], layers[place + 1]
        if weights.dim() == 4:
            outputs = functional.conv2d(inputs, weights, bias, stride=_STRIDE, padding=_PADDING)
        else:
            inputs = inputs.flatten(1)
            outputs = functional.linear(inputs, weights, bias)
        if not passed and not torch.is_inference_mode_enabled():
            outputs.requires_grad_()
        passed.append(Passed(inputs, outputs))
        inputs = outputs.relu()
    return passed


def _sum_gradients(
    layers: list[Tensor], gradients: list[Tensor], images: Tensor, labels: Tensor, clip_norm: float | None
) -> float:
    """Write the images' gradients, each clipped if asked, summed into `gradients`; return the summed loss.

    An image's gradient of a dense layer is the outer product of the layer's input a and the error d at its output,
    of a convolution the sum of such products over the places of the kernel. So its squared norm is Σ |a|²·|d|² over
    the dense layers plus that of the convolutions' few weights, and no large gradient of one image is ever formed.
    """
    torch = load_torch()
    passed = _forward(layers, images)
    losses = torch.nn.functional.cross_entropy(passed[-1].outputs, labels, reduction="sum")
    errors = torch.autograd.grad(losses, [layer.outputs for layer in passed])
    with torch.no_grad():
        if clip_norm is not None:
            squares = sum(_squared_norms(layer.inputs, error) for layer, error in zip(passed, errors, strict=True))
            scale = clipping(squares, clip_norm)
            errors = [error * scale.view(-1, *[1] * (error.dim() - 1)) for error in errors]
        for place, (layer, error) in enumerate(zip(passed, errors, strict=True)):
            weights, bias = gradients[2 * place], gradients[2 * place + 1]
            if error.dim() == 4:
                weights.copy_(_of_kernels(layer.inputs, error).sum(0).view(weights.shape))
                torch.sum(error, (0, 2, 3), out=bias)
            else:
                torch.mm(error.t(), layer.inputs, out=weights)
                torch.sum(error, 0, out=bias)
    return float(losses.detach())


def _of_kernels(inputs: Tensor, error: Tensor) -> Tensor:
    """Each image's gradient of a convolution's weights: (images, output channels, inputs of one place)."""
    unfold = load_torch().nn.functional.unfold
    places = unfold(inputs, _KERNEL, padding=_PADDING, stride=_STRIDE)
    return error.flatten(2) @ places.transpose(1, 2)


def _squared_norms(inputs: Tensor, error: Tensor) -> Tensor:
    """Each image's squared norm of the gradient of a layer's weights and biases."""
    if error.dim() == 4:
        return _of_kernels(inputs, error).square().sum((1, 2)) + error.sum((2, 3)).square().sum(1)
    return dense_squares(inputs, error)
