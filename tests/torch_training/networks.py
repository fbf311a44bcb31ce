"""Small networks of every kind that the engines know, each with a few records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn


class Of(nn.Module):
    """A network from a function of itself and its inputs."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, nn.Parameter):
                self.register_parameter(name, part)
            elif isinstance(part, torch.Tensor):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)
        self.run = run

    def forward(self, *inputs: Any) -> Any:
        return self.run(self, *inputs)


def dense(inputs: int = 6, outputs: int = 4) -> Any:
    return nn.Linear(inputs, outputs)


def tied() -> Any:
    net = Of(lambda s, x: s.out(s.embed(x).mean(1)), embed=nn.Embedding(30, 8), out=nn.Linear(8, 30, bias=False))
    net.out.weight = net.embed.weight
    return net


def lora() -> Any:
    """An adapter from zero on a frozen layer, time first."""

    def run(s: Any, x: Any) -> Any:
        x = x.transpose(0, 1)
        return s.head((s.base(x) + s.up(s.down(x))).relu().mean(0))

    down, up = nn.Linear(6, 2, bias=False), nn.Linear(2, 4, bias=False)
    nn.init.zeros_(up.weight)
    return Of(run, base=dense().requires_grad_(False), down=down, up=up, head=dense(4, 4))


def transformer() -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
    return Of(
        lambda s, x: s.head(s.body(s.embed(x) + s.place).mean(1)),
        embed=dense(6, 8),
        place=nn.Parameter(torch.randn(1, 9, 8) * 0.02),
        body=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        head=dense(8, 4),
    )


def class_token() -> Any:
    def run(s: Any, x: Any) -> Any:
        return s.head(s.body(torch.cat([s.token.expand(len(x), -1, -1), s.embed(x)], 1))[:, 0])

    body = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
    return Of(run, token=nn.Parameter(torch.randn(1, 1, 8)), embed=dense(6, 8), body=body, head=dense(8, 4))


def cross_attention() -> Any:
    def run(s: Any, x: Any) -> Any:
        hidden = s.embed(x)
        return s.head(s.mix(hidden[:, :3], hidden, hidden, key_padding_mask=x[:, :, 0] > 1.5)[0].mean(1))

    return Of(run, embed=dense(6, 8), mix=nn.MultiheadAttention(8, 2, batch_first=True), head=dense(8, 4))


def cnn() -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, 2, 2), nn.ReLU(), nn.Conv2d(4, 6, 3, 2, 1), nn.ReLU(inplace=True), nn.Flatten(), dense(54, 4)
    )


def cnn_of_one_dimension() -> Any:
    return nn.Sequential(
        nn.Conv1d(3, 8, 5, 2, 2), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv1d(8, 6, 3, padding="same", dilation=2),
        nn.PReLU(6), nn.AdaptiveAvgPool1d(4), nn.Flatten(), dense(24, 4),
    )  # fmt: skip


def depthwise() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, groups=3, padding="same"), nn.PReLU(),
        nn.Conv2d(6, 4, 3, dilation=2, padding=2, padding_mode="reflect"), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def autoencoder() -> Any:
    return nn.Sequential(
        nn.Conv1d(3, 6, 4, 2, 1), nn.ReLU(), nn.Conv1d(6, 2, 4, 2, 1), nn.ConvTranspose1d(2, 6, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose1d(6, 3, 3, 2, 1, output_padding=1),
    )  # fmt: skip


def recurrent(kind: Any, **options: Any) -> Any:
    width = 16 if options.get("bidirectional") else 8
    return Of(
        lambda s, x: s.head(s.rnn(x)[0][:, -1]), rnn=kind(6, 8, batch_first=True, **options), head=dense(width, 4)
    )


def time_first() -> Any:
    return Of(lambda s, x: s.head(s.rnn(x.transpose(0, 1))[0][-1]), rnn=nn.GRU(6, 8, bias=False), head=dense(8, 4))


def folded() -> Any:
    """Time folded into the batch, in both ways."""

    def run(s: Any, x: Any) -> Any:
        count, time, _ = x.shape
        blocks = s.a(x.reshape(-1, 6)).relu().view(count, time, 4)
        mixed = s.b(blocks.transpose(0, 1).reshape(-1, 4)).view(time, count, 4)
        return s.norm(mixed.mean(0))

    return Of(run, a=dense(), b=dense(4, 4), norm=nn.LayerNorm(4))


def reused() -> Any:
    """A module called twice, its weight used once more, a scale and a bare matrix."""

    def run(s: Any, x: Any) -> Any:
        hidden = s.a(s.a(x).relu()).relu() + F.linear(x, s.a.weight)
        return (hidden * s.scale) @ s.matrix

    return Of(run, a=dense(6, 6), scale=nn.Parameter(torch.ones(6)), matrix=nn.Parameter(torch.randn(6, 4)))


def views() -> Any:
    """One view each of learned places, a matrix used transposed and a class vector, and a chain of views."""

    def run(s: Any, x: Any) -> Any:
        time = x.shape[1]
        hidden = x + s.place[:, :time] + s.offset.unsqueeze(0)
        return (hidden @ s.matrix.t()).mean(1) * s.scale.view(1, 4)[0, :].reshape(4)

    return Of(
        run,
        place=nn.Parameter(torch.randn(1, 12, 6)),
        offset=nn.Parameter(torch.randn(6)),
        matrix=nn.Parameter(torch.randn(4, 6)),
        scale=nn.Parameter(torch.ones(2, 2)),
    )


def several_views() -> Any:
    """Parts of one matrix used apart, overlapping, and whole."""

    def run(s: Any, x: Any) -> Any:
        first, second = s.both.chunk(2)
        mixed = F.linear(x, first) + F.linear(x, second) * 0.5 + x @ s.both[2:6].T
        return mixed + F.linear(x, s.both)[..., :4]

    return Of(run, both=nn.Parameter(torch.randn(8, 6)))


def fixed_statistics() -> Any:
    """BatchNorm in eval mode whose scale and shift are trained."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), dense(144, 4))
    net[1].running_mean.normal_()
    net[1].eval()
    return net


def words() -> Any:
    mlp = nn.Sequential(dense(8, 12), nn.ReLU(), dense(12, 4))
    return Of(lambda s, x: s.mlp(s.embed(x).mean(1)), embed=nn.Embedding(30, 8, padding_idx=0), mlp=mlp)


def two_inputs() -> Any:
    return Of(lambda s, x, ids: s.a(x) + s.e(ids), a=dense(), e=nn.Embedding(5, 4))


def numbers(*shape: int) -> Callable[[int], Any]:
    return lambda count: torch.randn(count, *shape)


def tokens(count: int) -> Any:
    return torch.randint(0, 30, (count, 7))


NETWORKS: dict[str, tuple[Callable[[], Any], Callable[[int], Any]]] = {
    "cnn": (cnn, numbers(1, 12, 12)),
    "cnn of one dimension": (cnn_of_one_dimension, numbers(3, 24)),
    "depthwise and dilated": (depthwise, numbers(3, 8, 8)),
    "gru": (lambda: recurrent(nn.GRU), numbers(9, 6)),
    "gru, time first": (time_first, numbers(9, 6)),
    "lstm": (lambda: recurrent(nn.LSTM), numbers(9, 6)),
    "lstm, two layers, both ways": (lambda: recurrent(nn.LSTM, num_layers=2, bidirectional=True), numbers(9, 6)),
    "rnn": (lambda: recurrent(nn.RNN), numbers(9, 6)),
    "transformer": (transformer, numbers(9, 6)),
    "cross attention": (cross_attention, numbers(9, 6)),
    "embedding and mlp": (words, tokens),
    "lora": (lora, numbers(9, 6)),
    "tied weights": (tied, tokens),
    "reused": (reused, numbers(6)),
    "views of parameters": (views, numbers(9, 6)),
    "several views of one parameter": (several_views, numbers(6)),
    "fixed statistics": (fixed_statistics, numbers(3, 8, 8)),
    "time folded into the batch": (folded, numbers(9, 6)),
}


def made(name: str, count: int = 12, seed: int = 3) -> tuple[Any, Any, Any]:
    """A network, inputs and classes, the same for the same seed."""
    torch.manual_seed(seed)
    network, inputs = NETWORKS[name]
    return network(), inputs(count), torch.randint(0, 4, (count,))
