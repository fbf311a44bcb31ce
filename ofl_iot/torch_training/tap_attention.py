"""The rule for nn.MultiheadAttention: one torch function whose inside no mode sees, so it is computed anew."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import Tensor

from ofl_iot.torch_training.tap_dense import Function, LinearUse, linear
from ofl_iot.torch_training.taps import Taps, UnsupportedError

_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


def attention(taps: Taps, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG001
    """F.multi_head_attention_forward on (time, records, width), without its rarer options; also for vmap."""
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    name = taps.name(given["in_proj_weight"]) or taps.name(given["out_proj_weight"])
    if name is None and taps.tapped:
        return NotImplemented
    rare = ("bias_k", "bias_v", "add_zero_attn", "use_separate_proj_weight", "static_k", "static_v")
    used = [option for option in rare if given[option] is not None and given[option] is not False]
    if used or given["query"].dim() != 3:
        if not taps.tapped:
            return NotImplemented
        raise UnsupportedError(f"{name}: attention with {used[0] if used else 'no batch'}")
    query, key, value = _projected(taps, given)
    mask = _mask(given, query, key)
    rate = given["dropout_p"] if given["training"] else 0.0
    if given["need_weights"] or not taps.tapped:  # vmap has no rule for the fused function
        weights = _weights(query, key, mask)
        mixed = F.dropout(weights, rate) @ value
        told = weights.mean(1) if given["average_attn_weights"] else weights
    else:
        mixed, told = F.scaled_dot_product_attention(query, key, value, mask, rate), None
    records, heads, time, width = mixed.shape
    joined = mixed.permute(2, 0, 1, 3).reshape(time, records, heads * width)
    return _linear(taps, joined, given["out_proj_weight"], given["out_proj_bias"]), told


def _projected(taps: Taps, given: Mapping[str, Any]) -> list[Tensor]:
    """Query, key and value, each (records, heads, time, width of a head)."""
    inputs = given["query"], given["key"], given["value"]
    weight, bias, width = given["in_proj_weight"], given["in_proj_bias"], given["query"].shape[2]
    heads = given["num_heads"]
    shape = heads, width // heads
    if inputs[0] is inputs[1] is inputs[2]:
        together = _linear(taps, inputs[0], weight, bias).unflatten(2, (3, *shape))
        return list(together.permute(2, 1, 3, 0, 4).contiguous().unbind(0))
    parts = [_part(taps, x, weight, bias, place * width) for place, x in enumerate(inputs)]
    return [part.unflatten(2, shape).permute(1, 2, 0, 3) for part in parts]


def _linear(taps: Taps, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    made = linear(taps, F.linear, (x, w, b), {})
    return F.linear(x, w, b) if made is NotImplemented else made


def _part(taps: Taps, x: Tensor, w: Tensor, b: Tensor | None, start: int) -> Tensor:
    """Some rows of the projection applied to an input of their own: between two sequences."""
    stop, names = start + x.shape[2], (taps.name(w), taps.name(b))
    if taps.tapped:
        w, b = taps.constant(w), taps.constant(b)
    outputs = F.linear(x, w[start:stop], None if b is None else b[start:stop])
    return taps.tap(LinearUse(names, x, start, w.shape[0]), outputs) if any(names) else outputs


def _mask(given: Mapping[str, Any], query: Tensor, key: Tensor) -> Tensor | None:
    """Both masks as one that is added to the products, (records or 1, heads or 1, time of query, time of key)."""
    records, heads, time, _ = query.shape
    found: Tensor | None = None
    mask, padding = given["attn_mask"], given["key_padding_mask"]
    if mask is not None:
        found = _added(mask, query).view((records, heads, time, -1) if mask.dim() == 3 else (1, 1, time, -1))
    if padding is not None:
        more = _added(padding, query).view(records, 1, 1, key.shape[2])
        found = more if found is None else found + more
    return found


def _added(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, -math.inf)


def _weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    products = query @ key.transpose(2, 3) / math.sqrt(query.shape[3])
    return (products if mask is None else products + mask).softmax(-1)


RULES: dict[Any, Any] = {F.multi_head_attention_forward: attention}
