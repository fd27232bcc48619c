"""The tree of draft tokens: built from the draft's choices, then verified against the target's.

A request has n nodes: node 0 is the last token that is certain, nodes 1..n-1 are draft tokens.
Links are first child and next sibling, -1 for none, so a tree is three [requests, n] tensors.
"""

from __future__ import annotations

from torch import Tensor

FULL_MASK, QLEN_ONLY = 0, 1


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill links, positions and visibility of each request's n = draft_token_num nodes.

    parent_list [requests, candidates]: entry c is the candidate that the c-th group of topk grew from.
    selected_index [requests, n - 1]: which candidates were kept, ascending. seq_lens [requests].
    positions [requests * n]; retrieve_* [requests, n], links preset to -1. tree_mask, flat bool, is
    [requests, n, n] (QLEN_ONLY), or per request [n, seq_len + n] with the prefix columns preset (FULL_MASK).
    """
    mode, n = int(tree_mask_mode), draft_token_num
    if mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"sgl_kernel.build_tree_kernel_efficient_cpu with a packed mask (mode {mode})")
    mask_start = 0
    for request, length in enumerate(seq_lens.tolist()):
        kept = selected_index[request].tolist()
        grown_from = (parent_list[request] if parent_list.dim() > 1 else parent_list).tolist()
        parents = _parents(kept, grown_from, topk)

        prefix = length if mode == FULL_MASK else 0
        block = tree_mask[mask_start : mask_start + n * (prefix + n)].view(n, prefix + n)[:, prefix:]
        mask_start += n * (prefix + n)
        block.fill_(False)
        block[:, 0] = True
        for node in range(n):
            path = _path_up(node, parents, depth)
            block[node, path] = True
            positions[request * n + node] = length + len(path)
            retrieve_index[request, node] = request * n + node
        for node in range(n - 1, 0, -1):  # last first, so that a list of children comes out ascending
            parent = parents[node]
            if parent is not None:
                retrieve_next_sibling[request, node] = retrieve_next_token[request, parent]
                retrieve_next_token[request, parent] = node


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk down from the root, each time to the child that holds what the target would have said.

    candidates, retrive_* and target_predict [requests, n]. Filled: accept_index [requests, steps + 1]
    with rows of the accepted nodes, root first; accept_token_num [requests] without the root;
    predicts [requests * n] with the target's token at each accepted row, the bonus token last.
    """
    chosen = target_predict.reshape(-1).tolist()
    rows, tokens = retrive_index.tolist(), candidates.tolist()
    first_child, sibling = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    for request in range(candidates.shape[0]):
        node, accepted = 0, [rows[request][0]]
        while len(accepted) < accept_index.shape[1]:
            child = first_child[request][node]
            while child != -1 and tokens[request][child] != chosen[accepted[-1]]:
                child = sibling[request][child]
            if child == -1:
                break
            node = child
            accepted.append(rows[request][node])
        for place, row in enumerate(accepted):
            accept_index[request, place] = row
            predicts[row] = chosen[row]
        accept_token_num[request] = len(accepted) - 1


def _parents(kept: list[int], grown_from: list[int], topk: int) -> list[int | None]:
    """Each node's parent node. None: the root, and a node whose parent the draft did not keep."""
    node_of = {candidate: place + 1 for place, candidate in reversed(list(enumerate(kept)))}
    parents: list[int | None] = [None]
    for candidate in kept:
        group = candidate // topk
        parents.append(0 if group == 0 else node_of.get(grown_from[group]))
    return parents


def _path_up(node: int, parents: list[int | None], depth: int) -> list[int]:
    """The node and its ancestors below the root, at most `depth` of them."""
    path: list[int] = []
    above: int | None = node
    while above and len(path) < depth:
        path.append(above)
        above = parents[above]
    return path
