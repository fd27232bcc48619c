"""Where tokens live in the KV cache: slot lookups and copies.

Every request owns one row of `req_to_token` [pool, pool_len]; entry p of it is the cache slot of
the request's token at position p. The functions fill the tensor that they are given, as the
kernels they stand for do, because the engine allocates it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import torch
from torch import Tensor


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Read: the slots of positions start..end of each request, one request after the other.

    req_pool_indices, start_offset, end_offset [requests]; out_cache_loc [sum of end - start], filled.
    """
    filled = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[filled : filled + end - start] = req_to_token[row, start:end]
        filled += end - start


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write: the reverse of `assign_extend_cache_locs_cpu`; new slots go into req_to_token."""
    taken = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start].to(req_to_token.dtype)
        taken += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_cols: int,
) -> None:
    """The `topk * num_cols` slots that follow each request's tokens: room for its draft tokens.

    seq_lens [requests]; out_cache_loc [requests * topk * num_cols], filled.
    """
    end = seq_lens + topk * num_cols
    assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, seq_lens, end, out_cache_loc, pool_len)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, topk: int, num_steps: int, pool_len: int
) -> Tensor:
    """One row of slots for each draft branch, so that a branch decodes like a request of its own.

    Returns [requests * topk, pool_len]: the request's prefix, then the branch's own `num_steps`
    slots out of the `topk * num_steps` that follow it, then zeros.
    """
    rows = torch.zeros((req_pool_indices.shape[0] * topk, pool_len), dtype=req_to_token.dtype)
    for request, (pool_row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist())):
        slots = req_to_token[pool_row]
        for branch in range(topk):
            own = slots[length + branch * num_steps : length + (branch + 1) * num_steps]
            row = rows[request * topk + branch]
            row[:length] = slots[:length]
            row[length : length + own.shape[0]] = own
    return rows


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Move cache rows src_loc to tgt_loc in every buffer; the two may overlap.

    data_ptrs [buffers]: addresses. strides [buffers]: bytes per row. tgt_loc, src_loc [rows].
    """
    if src_loc.numel() == 0:
        return
    target, source = tgt_loc.long(), src_loc.long()
    height = int(torch.maximum(target.max(), source.max())) + 1
    for address, width in zip(data_ptrs.tolist(), strides.tolist()):
        memory = (ctypes.c_uint8 * (height * width)).from_address(address)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(height, width)
        buffer[target] = buffer[source]  # the right side is a copy, so every row is read before one is written


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """The last accepted token of each request: the one that the target itself chose.

    accept_tokens [requests * accept_stride]; accept_lens [requests], the bonus token counted;
    bonus_tokens [requests], filled.
    """
    first = torch.arange(accept_lens.shape[0]) * accept_stride
    bonus_tokens.copy_(accept_tokens.reshape(-1)[first + accept_lens.long() - 1])


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """The slots of the accepted tokens, packed to the front; -1 in accept_index means not accepted."""
    accepted = accept_index.reshape(-1)
    accepted = accepted[accepted > -1].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted].to(accept_out_cache_loc.dtype)


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None = None,
) -> None:
    """Shift each request's ids left by one and put its next token at the end, in place.

    input_ids [tokens]; extend_start_loc, extend_seq_lens, topk_index [requests]. With select_index
    [requests] the next token goes to that row instead of the request's last.
    """
    lengths = extend_seq_lens.tolist()
    for request, (start, length) in enumerate(zip(extend_start_loc.tolist(), lengths)):
        if length <= 0:
            continue
        input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
        last = start + length - 1 if select_index is None else int(select_index[request])
        input_ids[last] = topk_index.reshape(-1)[request]


def _spans(rows: Tensor, starts: Tensor, ends: Tensor) -> Iterable[tuple[int, int, int]]:
    return zip(rows.tolist(), starts.tolist(), ends.tolist())
