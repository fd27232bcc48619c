"""The reference kernels, each against a naive definition written out element by element."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import specwire.engine.cpu as cpu

sys.path.insert(0, str(Path(cpu.__file__).parent))
import sgl_kernel

POOL, POOL_LEN = 5, 24
quick = settings(max_examples=40, deadline=None)


def table() -> torch.Tensor:
    """Every entry of req_to_token differs, so a wrong one shows."""
    return torch.randperm(POOL * POOL_LEN, generator=torch.Generator().manual_seed(1)).view(POOL, POOL_LEN).int()


spans = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), min_size=1, max_size=POOL)


# Cache locations


@quick
@given(spans, st.permutations(range(POOL)))
def test_extend_locations_are_each_requests_slots_in_order(given_spans, rows):
    rows = rows[: len(given_spans)]
    wanted = [int(table()[row, p]) for row, (s, n) in zip(rows, given_spans) for p in range(s, s + n)]
    out = torch.full((len(wanted),), -7, dtype=torch.int64)
    starts = torch.tensor([s for s, _ in given_spans])
    ends = torch.tensor([s + n for s, n in given_spans])
    sgl_kernel.assign_extend_cache_locs_cpu(torch.tensor(rows), table(), starts, ends, out, POOL_LEN)
    assert out.tolist() == wanted


@quick
@given(spans, st.permutations(range(POOL)))
def test_pool_assignment_is_the_reverse_and_touches_nothing_else(given_spans, rows):
    rows = rows[: len(given_spans)]
    starts = torch.tensor([s for s, _ in given_spans])
    ends = torch.tensor([s + n for s, n in given_spans])
    slots = torch.arange(1000, 1000 + int((ends - starts).sum()))
    pool = table()
    sgl_kernel.assign_req_to_token_pool_cpu(torch.tensor(rows), pool, starts, ends, slots, POOL_LEN)
    back = torch.empty_like(slots)
    sgl_kernel.assign_extend_cache_locs_cpu(torch.tensor(rows), pool, starts, ends, back, POOL_LEN)
    assert back.tolist() == slots.tolist()
    assert int((pool != table()).sum()) == len(slots)


@pytest.mark.parametrize("topk, columns", [(1, 2), (3, 2), (2, 4)])
def test_draft_locations_follow_the_request(topk, columns):
    rows, lengths = torch.tensor([3, 0]), torch.tensor([5, 9])
    out = torch.empty(2 * topk * columns, dtype=torch.int64)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(rows, table(), lengths, out, POOL_LEN, topk, columns)
    wanted = [int(table()[r, n + i]) for r, n in ((3, 5), (0, 9)) for i in range(topk * columns)]
    assert out.tolist() == wanted


@pytest.mark.parametrize("topk, steps", [(1, 3), (3, 2)])
def test_a_draft_branch_sees_the_prefix_and_its_own_slots(topk, steps):
    rows, lengths = torch.tensor([4, 1]), torch.tensor([6, 2])
    out = sgl_kernel.build_draft_decode_metadata_cpu(table(), rows, lengths, topk, steps, POOL_LEN)
    assert out.shape == (2 * topk, POOL_LEN) and out.dtype == table().dtype
    for request, (row, length) in enumerate([(4, 6), (1, 2)]):
        for branch in range(topk):
            got = out[request * topk + branch].tolist()
            own = [int(table()[row, length + branch * steps + i]) for i in range(steps)]
            assert got[: length + steps] == table()[row, :length].tolist() + own
            assert set(got[length + steps :]) == {0}


@quick
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), unique_by=lambda pair: pair[0], max_size=8))
def test_cache_rows_move_as_if_all_were_read_first(moves):
    buffers = [torch.randn(12, 2, 3), torch.randn(12, 5).bfloat16()]
    wanted = [buffer.clone() for buffer in buffers]
    for before, after in zip([b.clone() for b in buffers], wanted):
        for target, source in moves:
            after[target] = before[source]
    sgl_kernel.copy_all_layer_kv_cache_cpu(
        torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64),
        torch.tensor([buffer.stride(0) * buffer.element_size() for buffer in buffers]),
        torch.tensor([target for target, _ in moves], dtype=torch.int64),
        torch.tensor([source for _, source in moves], dtype=torch.int64),
    )
    assert all(torch.equal(got, want) for got, want in zip(buffers, wanted))


def test_bonus_token_is_the_last_accepted_one():
    accepted = torch.tensor([[11, 12, -1], [21, 22, 23], [31, -1, -1]]).reshape(-1)
    bonus = torch.zeros(3, dtype=torch.int32)
    sgl_kernel.fill_bonus_tokens_cpu(accepted, torch.tensor([2, 3, 1], dtype=torch.int32), bonus, 3)
    assert bonus.tolist() == [12, 23, 31]


def test_accepted_slots_are_packed_to_the_front():
    out = torch.full((5,), -7, dtype=torch.int64)
    index = torch.tensor([[0, 2, -1], [3, -1, -1]])
    sgl_kernel.fill_accept_out_cache_loc_cpu(index, torch.tensor([10, 11, 12, 13, 14, 15]), out)
    assert out.tolist() == [10, 12, 13, -7, -7]


@pytest.mark.parametrize("select, wanted", [(None, [2, 3, 90, 91, 6, 92]), ([2, 3, 4], [2, 3, 90, 91, 92, 6])])
def test_ids_rotate_within_each_request(select, wanted):
    ids, starts, lengths = torch.tensor([1, 2, 3, 4, 5, 6]), torch.tensor([0, 3, 4]), torch.tensor([3, 1, 2])
    chosen = None if select is None else torch.tensor(select)
    sgl_kernel.rotate_input_ids_cpu(ids, starts, lengths, torch.tensor([[90], [91], [92]]), chosen)
    assert ids.tolist() == wanted


# Trees


def draft_tree(parents: list[int], topk: int) -> tuple[list[int], list[int]]:
    """The draft's own encoding of a tree that is given by each node's parent; node 0 is the root.

    Candidates are numbered group by group, topk to a group; group g holds the children, at most topk,
    of the g-th expanded node, the root first. Returns (parent_list, selected_index).
    """
    order = [0] + [node for node in range(1, len(parents) + 1) if node in parents]
    group = {node: place for place, node in enumerate(order)}
    candidate, taken = {}, {}
    for node, parent in enumerate(parents, start=1):
        candidate[node] = group[parent] * topk + taken.get(parent, 0)
        taken[parent] = taken.get(parent, 0) + 1
    return [-1] + [candidate[node] for node in order[1:]], [candidate[n] for n in range(1, len(parents) + 1)]


@st.composite
def trees(draw):
    """Parents of nodes 1..n-1, breadth first as the draft keeps them, and the topk that fits."""
    topk = draw(st.integers(1, 3))
    parents: list[int] = []
    for node in range(1, draw(st.integers(2, 7))):
        room = [p for p in range(parents[-1] if parents else 0, node) if parents.count(p) < topk]
        parents.append(draw(st.sampled_from(room)))
    return parents, topk


def build(parents_of: list[list[int]], topk: int, lengths: list[int], mode: int):
    n, requests = len(parents_of[0]) + 1, len(parents_of)
    encoded = [draft_tree(parents, topk) for parents in parents_of]
    width = max(len(parent_list) for parent_list, _ in encoded)
    parent_list = torch.tensor([pl + [-9] * (width - len(pl)) for pl, _ in encoded])
    selected = torch.tensor([s for _, s in encoded])
    columns = sum((length if mode == 0 else 0) + n for length in lengths)
    mask = torch.ones(n * columns, dtype=torch.bool)
    positions = torch.full((requests * n,), -9)
    links = torch.full((3, requests, n), -1)
    sgl_kernel.build_tree_kernel_efficient_cpu(
        parent_list, selected, torch.tensor(lengths), mask, positions, *links, topk, n, n, mode
    )
    return mask, positions, links


def ancestors(node: int, parents: list[int]) -> list[int]:
    return [node] if node == 0 else [node, *ancestors(parents[node - 1], parents)]


@quick
@given(trees(), st.integers(0, 9), st.sampled_from([0, 1]))
def test_a_tree_is_what_its_parents_say(tree, length, mode):
    parents, topk = tree
    n, lengths = len(parents) + 1, [length, length + 2]
    mask, positions, (index, first_child, sibling) = build([parents, parents], topk, lengths, mode)
    start = 0
    for request, prefix_len in enumerate(lengths):
        prefix = prefix_len if mode == 0 else 0
        block = mask[start : start + n * (prefix + n)].view(n, prefix + n)
        start += n * (prefix + n)
        assert bool(block[:, :prefix].all())
        for node in range(n):
            line = ancestors(node, parents)
            assert block[node, prefix:].nonzero().flatten().tolist() == sorted(line)
            assert positions[request * n + node] == prefix_len + len(line) - 1
            assert index[request, node] == request * n + node
            children, child = [], int(first_child[request, node])
            while child != -1:
                children.append(child)
                child = int(sibling[request, child])
            assert children == [c for c in range(1, n) if parents[c - 1] == node]


def test_a_node_whose_parent_was_not_kept_hangs_nowhere():
    # topk 2: candidate 2 is a child of candidate 0 (group 1), which is not among the kept ones.
    mask, positions = torch.ones(9, dtype=torch.bool), torch.zeros(3, dtype=torch.int64)
    links = torch.full((3, 1, 3), -1)
    sgl_kernel.build_tree_kernel_efficient_cpu(
        torch.tensor([[-1, 0, 1]]),
        torch.tensor([[1, 2]]),
        torch.tensor([4]),
        mask,
        positions,
        *links,
        2,
        2,
        3,
        1,
    )
    assert links[1].tolist() == [[1, -1, -1]] and links[2].tolist() == [[-1, -1, -1]]


def test_a_packed_mask_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="build_tree_kernel_efficient_cpu.*packed"):
        build_args = [torch.zeros(1, 1)] * 8
        sgl_kernel.build_tree_kernel_efficient_cpu(*build_args, 1, 1, 2, 2)


@quick
@given(trees(), st.data())
def test_greedy_verification_walks_the_path_that_the_target_agrees_with(tree, data):
    parents, topk = tree
    n, requests = len(parents) + 1, 2
    _, _, (index, first_child, sibling) = build([parents, parents], topk, [3, 5], 1)
    token = st.integers(0, 2)  # few tokens, so that paths of every length occur
    candidates = [data.draw(st.lists(token, min_size=n, max_size=n)) for _ in range(requests)]
    target = [data.draw(st.lists(token, min_size=n, max_size=n)) for _ in range(requests)]
    room = data.draw(st.integers(1, n))

    predicts = torch.full((requests * n,), -7, dtype=torch.int32)
    accept_index = torch.full((requests, room), -1, dtype=torch.int32)
    accepted = torch.full((requests,), -7, dtype=torch.int32)
    sgl_kernel.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accepted,
        candidates=torch.tensor(candidates),
        retrive_index=index,
        retrive_next_token=first_child,
        retrive_next_sibling=sibling,
        target_predict=torch.tensor(target),
    )
    for request in range(requests):
        path = [0]
        while len(path) < room:
            children = [c for c in range(1, n) if parents[c - 1] == path[-1]]
            agreed = [c for c in children if candidates[request][c] == target[request][path[-1]]]
            if not agreed:
                break
            path.append(agreed[0])
        rows = [request * n + node for node in path]
        assert accept_index[request].tolist() == rows + [-1] * (room - len(path))
        assert accepted[request] == len(path) - 1
        said = {row: target[request][row - request * n] for row in rows}
        assert predicts[request * n : (request + 1) * n].tolist() == [
            said.get(row, -7) for row in range(request * n, (request + 1) * n)
        ]


# Attention


def naive_attention(q, keys, values, sees, scale, cap=0.0, sink=None):
    """One query vector [width] over keys [l, width]: the textbook sum, in double precision."""
    logits = [float(q.double() @ key.double()) * scale for key in keys]
    logits = [cap * math.tanh(x / cap) if cap else x for x in logits]
    weights = [math.exp(x) if seen else 0.0 for x, seen in zip(logits, sees)]
    total = sum(weights) + (math.exp(float(sink)) if sink is not None else 0.0)
    return sum((w / total) * value.double() for w, value in zip(weights, values))


CASES = {
    "plain": {},
    "grouped heads": {"kv_heads": 2},
    "one kv head": {"kv_heads": 1},
    "logit cap": {"cap": 5.0},
    "sliding window": {"window": 3},
    "attention sinks": {"sinks": True},
    "values narrower than keys": {"value_width": 2},
    "not causal": {"causal": False},
    "new tokens only in the cache": {"cached_only": True},
    "a token tree": {"tree": True},
    "a token tree, whole rows": {"tree": "rows"},
}


@pytest.mark.parametrize("scales", [(), (1.0, 1.0)], ids=["earlier releases", "later releases"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_extend_attention(case, scales):
    torch.manual_seed(0)
    heads, width, kv_heads = 4, 6, case.get("kv_heads", 4)
    value_width, window, cap = case.get("value_width", width), case.get("window", 0), case.get("cap", 0.0)
    prefixes, news, rows = [5, 0, 2], [3, 4, 1], [2, 0, 3]
    lengths = [p + n for p, n in zip(prefixes, news)]
    starts = [0, 3, 7]
    slots = table().long()
    k_buffer = torch.randn(POOL * POOL_LEN, kv_heads, width)
    v_buffer = torch.randn(POOL * POOL_LEN, kv_heads, value_width)
    q, o = torch.randn(8, heads, width), torch.full((8, heads, value_width), 7.0)
    k, v = torch.randn(8, kv_heads * width), torch.randn(8, kv_heads * value_width)
    sinks = torch.randn(heads) if case.get("sinks") else None

    tree = None
    own = [torch.ones(n, n).tril().bool() for n in news]
    if case.get("tree"):
        own = [torch.rand(n, n) < 0.5 for n in news]
        for mask in own:
            mask.fill_diagonal_(True)
        whole = [torch.cat([torch.ones(n, p).bool(), m], 1) for n, p, m in zip(news, prefixes, own)]
        tree = torch.cat([mask.flatten() for mask in (whole if case["tree"] == "rows" else own)])
    causal = case.get("causal", True)
    if case.get("cached_only"):
        new_slots = torch.cat([slots[r, p : p + n] for r, p, n in zip(rows, prefixes, news)])
        k_buffer[new_slots], v_buffer[new_slots] = (
            k.view(8, kv_heads, width),
            v.view(8, kv_heads, value_width),
        )

    sgl_kernel.extend_attention_cpu(
        q,
        None if case.get("cached_only") else k,
        None if case.get("cached_only") else v,
        o,
        k_buffer,
        v_buffer,
        *scales,
        table(),
        torch.tensor(rows),
        torch.tensor(lengths),
        torch.tensor(news),
        torch.tensor(starts),
        max(news),
        0.3,
        cap,
        False,
        window,
        None,
        sinks,
        tree,
        *([causal] if scales or not causal else []),
    )
    for request, (row, prefix, new, start) in enumerate(zip(rows, prefixes, news, starts)):
        keys = torch.cat([k_buffer[slots[row, :prefix]], k[start : start + new].view(new, kv_heads, width)])
        values = torch.cat([v_buffer[slots[row, :prefix]], v[start : start + new].view(new, kv_heads, value_width)])
        for i in range(new):
            order = own[request][i].tolist() if causal else [True] * new
            sees = [True] * prefix + order
            if window:
                sees = [seen and prefix + i - j < window for j, seen in enumerate(sees)]
            for head in range(heads):
                kv = head // (heads // kv_heads)
                sink = sinks[head] if sinks is not None else None
                want = naive_attention(q[start + i, head], keys[:, kv], values[:, kv], sees, 0.3, cap, sink)
                torch.testing.assert_close(o[start + i, head].double(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scales", [(), (1.0, 1.0)], ids=["earlier releases", "later releases"])
@pytest.mark.parametrize("name", ["plain", "grouped heads", "logit cap", "sliding window", "attention sinks", "mla"])
def test_decode_attention_stores_then_attends(name, scales):
    torch.manual_seed(0)
    case, mla = CASES.get(name, {}), name == "mla"
    heads, width = 4, 6
    kv_heads, window, cap = 1 if mla else case.get("kv_heads", 4), case.get("window", 0), case.get("cap", 0.0)
    rows, lengths, slots = [3, 1], [6, 1], table().long()
    where = torch.stack([slots[row, length - 1] for row, length in zip(rows, lengths)])
    k_buffer = torch.randn(POOL * POOL_LEN, kv_heads, width)
    v_buffer = k_buffer[..., :4] if mla else torch.randn(POOL * POOL_LEN, kv_heads, width)
    k = torch.randn(2, kv_heads, width)
    v = k[..., :4] if mla else torch.randn(2, kv_heads, width)
    q, o = torch.randn(2, heads, width), torch.full((2, heads, v.shape[-1]), 7.0)
    sinks = torch.randn(heads) if case.get("sinks") else None
    sgl_kernel.decode_attention_cpu(
        q,
        k_buffer,
        v_buffer,
        *scales,
        o,
        k,
        v,
        where,
        torch.empty(0),
        table(),
        torch.tensor(rows),
        torch.tensor(lengths),
        0.3,
        cap,
        False,
        window,
        None,
        sinks,
    )
    assert torch.equal(k_buffer[where], k) and torch.equal(v_buffer[where], v)
    for request, (row, length) in enumerate(zip(rows, lengths)):
        mine = slots[row, :length]
        sees = [not window or length - 1 - j < window for j in range(length)]
        for head in range(heads):
            kv = head // (heads // kv_heads)
            sink = sinks[head] if sinks is not None else None
            want = naive_attention(q[request, head], k_buffer[mine, kv], v_buffer[mine, kv], sees, 0.3, cap, sink)
            torch.testing.assert_close(o[request, head].double(), want, rtol=1e-5, atol=1e-6)


def test_releases_before_sliding_windows_end_their_arguments_early():
    q, k = torch.randn(2, 1, 4), torch.randn(8, 1, 4)
    one, two = torch.tensor([0]), torch.tensor([2])
    old, new = torch.empty(2, 1, 4), torch.empty(2, 1, 4)
    common = (k, k, torch.arange(8).view(1, -1), one, torch.tensor([6]), two, one, 2, 0.3, 0.0)
    sgl_kernel.extend_attention_cpu(q, None, None, old, *common)
    sgl_kernel.extend_attention_cpu(q, None, None, new, *common, False, 0, None, None)
    assert torch.equal(old, new)


def test_bfloat16_is_summed_in_float32():
    q, k = torch.ones(1, 1, 4).bfloat16(), torch.zeros(300, 1, 4).bfloat16()
    v = torch.full((300, 1, 4), 1.0078125).bfloat16()
    o = torch.empty(1, 1, 4).bfloat16()
    one = torch.tensor([300])
    sgl_kernel.extend_attention_cpu(
        q,
        None,
        None,
        o,
        k,
        v,
        torch.arange(300).view(1, -1),
        torch.tensor([0]),
        one,
        torch.tensor([1]),
        torch.tensor([0]),
        1,
        1.0,
        0.0,
        False,
        0,
        None,
        None,
    )
    assert o.flatten().tolist() == [1.0078125] * 4


# What is not covered


def test_an_operation_that_is_not_covered_says_its_name_when_called():
    from sgl_kernel import some_cuda_kernel
    from sgl_kernel.kvcacheio import transfer_kv_all_layer

    for operation in (some_cuda_kernel, transfer_kv_all_layer):
        with pytest.raises(NotImplementedError, match=f"sgl_kernel.{operation.__name__} "):
            operation(1, key=2)


def test_a_scaled_cache_and_cross_attention_are_refused():
    with pytest.raises(NotImplementedError, match="decode_attention_cpu.*FP8"):
        sgl_kernel.decode_attention_cpu(None, None, None, 0.5, 1.0, None)
    with pytest.raises(NotImplementedError, match="extend_attention_cpu.*cross"):
        sgl_kernel.extend_attention_cpu(*[None] * 12, 1.0, 0.0, True, 0, None, None)


def test_the_engine_finds_the_attention_operations_and_no_amx_kernels():
    assert torch.ops.sgl_kernel.extend_attention_cpu is sgl_kernel.extend_attention_cpu
    assert torch.ops.sgl_kernel.decode_attention_cpu is sgl_kernel.decode_attention_cpu
    assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")
