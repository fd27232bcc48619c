"""Attention over a paged KV cache, multi-head and MLA, one request at a time.

Cache buffers are [slots, kv_heads, width]. For MLA there is one kv head; its values are the first
columns of its keys, in the same memory. Query heads share kv heads in equal groups. Scores and
weights are computed in float32 whatever the cache holds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def extend_attention_cpu(
    q: Tensor, k: Tensor | None, v: Tensor | None, o: Tensor, k_buffer: Tensor, v_buffer: Tensor, *rest: Any
) -> None:
    """Attention of new tokens: to the request's cached prefix and to the new tokens before them.

    q [tokens, heads, width], o [tokens, heads, value width] (filled), k and v [tokens, ...] of the new
    tokens, or None when they are in the cache already. The rest is that of `_extend`; later releases
    pass a key and a value scale before it, and `is_causal` at its end.
    """
    _extend(q, k, v, o, k_buffer, v_buffer, *_without_scales("extend_attention_cpu", rest))


def decode_attention_cpu(q: Tensor, k_buffer: Tensor, v_buffer: Tensor, *rest: Any) -> None:
    """Attention of one new token for each request, whose K and V are stored in the cache first.

    q [requests, heads, width]. The rest is that of `_decode`; later releases pass a key and a value
    scale before it.
    """
    _decode(q, k_buffer, v_buffer, *_without_scales("decode_attention_cpu", rest))


def _extend(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    o: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,
    scaling: float,
    logit_cap: float,
    is_cross_attention: bool = False,
    window: int = 0,
    encoder_lens: Tensor | None = None,
    sinks: Tensor | None = None,
    tree_mask: Tensor | None = None,
    is_causal: bool = True,
) -> None:
    """seq_lens [requests] count prefix and new tokens, extend_seq_lens the new ones alone.

    window: how many tokens a token sees, itself included; 0 for all. sinks [heads]: a logit that
    takes part in the softmax and holds no value. tree_mask, flat bool: per request [new, new], or
    [new, seq_len]; it replaces the causal order among the new tokens.
    """
    if is_cross_attention:
        raise NotImplementedError("sgl_kernel.extend_attention_cpu with cross attention")
    if tree_mask is not None and window > 0:
        raise NotImplementedError("sgl_kernel.extend_attention_cpu with a token tree in a sliding window")
    news, lengths = extend_seq_lens.tolist(), seq_lens.tolist()
    whole_rows = tree_mask is not None and tree_mask.numel() >= sum(n * s for n, s in zip(news, lengths))
    mask_start = 0
    for row, length, new, start in zip(req_pool_indices.tolist(), lengths, news, extend_start_loc.tolist()):
        mine, prefix = slice(start, start + new), length - new
        slots = req_to_token[row, :length].long()
        if k is None or v is None:
            keys, values = k_buffer[slots], v_buffer[slots]
        else:
            keys = _cached_then_new(k_buffer, slots[:prefix], k[mine], q.shape[-1])
            values = _cached_then_new(v_buffer, slots[:prefix], v[mine], o.shape[-1])
        visible = _visible(new, length, window, is_causal)
        if tree_mask is not None:
            width = length if whole_rows else new
            block = tree_mask[mask_start : mask_start + new * width].view(new, width)
            mask_start += new * width
            visible[:, prefix:] = block[:, -new:]
        o[mine] = _attend(q[mine], keys, values, visible, scaling, logit_cap, sinks)


def _decode(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    o: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    out_cache_loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    scaling: float,
    logit_cap: float,
    is_cross_attention: bool = False,
    window: int = 0,
    encoder_lens: Tensor | None = None,
    sinks: Tensor | None = None,
) -> None:
    """o [requests, heads, value width], filled. out_cache_loc [requests]: where the new K and V go."""
    if is_cross_attention:
        raise NotImplementedError("sgl_kernel.decode_attention_cpu with cross attention")
    if k is not None and v is not None:
        k_buffer[out_cache_loc] = k.reshape(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        if v_buffer.data_ptr() != k_buffer.data_ptr():  # the values of MLA are part of its keys
            v_buffer[out_cache_loc] = v.reshape(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    for request, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist())):
        slots = req_to_token[row, :length].long()
        mine = slice(request, request + 1)
        visible = _visible(1, length, window, causal=True)
        o[mine] = _attend(q[mine], k_buffer[slots], v_buffer[slots], visible, scaling, logit_cap, sinks)


def _without_scales(name: str, rest: tuple[Any, ...]) -> tuple[Any, ...]:
    """Later releases pass the scales of an FP8 cache, 1.0 for any other; earlier ones a tensor there."""
    if isinstance(rest[0], (Tensor, type(None))):
        return rest
    if (rest[0], rest[1]) != (1.0, 1.0):
        raise NotImplementedError(f"sgl_kernel.{name} with a scaled (FP8) KV cache")
    return rest[2:]


def _cached_then_new(buffer: Tensor, prefix_slots: Tensor, new: Tensor, width: int) -> Tensor:
    new = new.reshape(new.shape[0], -1, width)
    if prefix_slots.numel() == 0:
        return new
    return torch.cat([buffer[prefix_slots].to(new.dtype), new])


def _visible(new: int, length: int, window: int, causal: bool) -> Tensor:
    """[new, length] bool: what each of the last `new` tokens of `length` may look at."""
    asks = torch.arange(length - new, length)[:, None]
    looked_at = torch.arange(length)[None, :]
    visible = looked_at <= asks if causal else torch.ones(new, length, dtype=torch.bool)
    return visible & (asks - looked_at < window) if window > 0 else visible


def _attend(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scaling: float, logit_cap: float, sinks: Tensor | None
) -> Tensor:
    """q [new, heads, width], k [length, kv_heads, width], v [length, kv_heads, value width] -> like q."""
    new, heads, width = q.shape
    grouped = q.float().view(new, k.shape[1], -1, width)
    scores = torch.einsum("nkgw,lkw->kgnl", grouped, k.float()) * scaling
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        sink = sinks.float().view(k.shape[1], -1, 1, 1).expand(-1, -1, new, 1)
        weights = torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    return torch.einsum("kgnl,lkw->nkgw", weights, v.float()).reshape(new, heads, -1).to(q.dtype)
