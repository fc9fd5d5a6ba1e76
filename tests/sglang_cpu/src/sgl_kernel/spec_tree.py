"""The draft tree: building it, verifying it greedily, and packing what was accepted.

A tree of N nodes is kept per request as links: node 0 is the last committed token, ``next_token`` leads to the first
child, ``next_sibling`` to the next child of the same parent, -1 to nothing.

Call sites: ``sglang/kernels/ops/speculative/spec_tree.py``, ``eagle.py`` and ``multi_layer_eagle.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FULL_MASK, _QLEN_ONLY = 0, 1  # sglang's TreeMaskMode


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Links the selected draft tokens into a tree; writes the mask, the positions and the three link tables.

    parent_list [R, P]: for group g of topk candidates, the candidate that it grew from; selected_index [R, N-1]: the
    chosen candidates in ascending order, candidate c belonging to group c // topk, and group 0 growing from the root;
    verified_seq_len [R]. tree_mask: flat bool, N x N per request (mode QLEN_ONLY) or N x (length + N) per request
    with the first ``length`` columns left alone (mode FULL_MASK); positions [R * N]; the tables [R, N], full of -1.
    """
    if tree_mask_mode not in (_FULL_MASK, _QLEN_ONLY):
        raise NotImplementedError(
            f"tree mask mode {tree_mask_mode} is bit packed, which no CPU path of SGLang asks for"
        )
    nodes = draft_token_num
    mask_start = 0
    lengths = verified_seq_len.tolist()
    for request, (parents, selected) in enumerate(zip(parent_list.tolist(), selected_index.tolist(), strict=True)):
        length = lengths[request]
        parent_of = _parents(parents, selected, topk)
        depth_of = [0] * nodes
        seen = torch.eye(nodes, dtype=torch.bool)
        seen[:, 0] = True
        first_child, next_sibling = [-1] * nodes, [-1] * nodes
        for node in range(1, nodes):
            # An orphan keeps only itself and the root in view, like a child of the root one level down.
            parent = parent_of[node]
            depth_of[node] = 1 if parent is None else depth_of[parent] + 1
            if parent is not None:
                seen[node] |= seen[parent]
        for node in range(nodes - 1, 0, -1):
            # From the last to the first, so that each list of children ends up in ascending order.
            parent = parent_of[node]
            if parent is not None:
                next_sibling[node], first_child[parent] = first_child[parent], node
        prefix = length if tree_mask_mode == _FULL_MASK else 0
        mask_end = mask_start + nodes * (prefix + nodes)
        tree_mask[mask_start:mask_end].view(nodes, prefix + nodes)[:, prefix:] = seen
        mask_start = mask_end
        positions[request * nodes : (request + 1) * nodes] = torch.tensor(depth_of) + length
        retrive_index[request] = torch.arange(request * nodes, (request + 1) * nodes)
        retrive_next_token[request] = torch.tensor(first_child)
        retrive_next_sibling[request] = torch.tensor(next_sibling)


def _parents(parent_list: list[int], selected: list[int], topk: int) -> list[int | None]:
    """The parent node of each node; None for the root and for a candidate whose parent was not selected."""
    node_of = {candidate: node for node, candidate in reversed(list(enumerate(selected, start=1)))}
    return [None] + [
        0 if candidate // topk == 0 else node_of.get(parent_list[candidate // topk]) for candidate in selected
    ]


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
    """Walks each tree along the tokens that the target predicts, as far as the tree has them.

    candidates, retrive_* and target_predict [R, N]; accept_index [R, A] (full of -1): the flat indices of the accepted
    nodes, the root first; accept_token_num [R]: how many nodes were accepted, the root not counted; predicts [R * N]:
    at each accepted node, the token that follows it.
    """
    tokens, index = candidates.tolist(), retrive_index.tolist()
    first_child, next_sibling = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    wanted = target_predict.flatten().tolist()
    for request in range(len(tokens)):
        node, accepted = 0, [index[request][0]]
        while len(accepted) < accept_index.shape[1]:
            target = wanted[accepted[-1]]
            node = first_child[request][node]
            while node != -1 and tokens[request][node] != target:
                node = next_sibling[request][node]
            if node == -1:
                break
            accepted.append(index[request][node])
        accept_index[request, : len(accepted)] = torch.tensor(accepted)
        accept_token_num[request] = len(accepted) - 1
        predicts[accepted] = torch.tensor([wanted[i] for i in accepted], dtype=predicts.dtype)


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """The last accepted token of each request: accept_tokens [R * accept_stride], accept_lens [R] -> bonus_tokens [R]."""
    last = torch.arange(len(accept_lens)) * accept_stride + accept_lens.long() - 1
    bonus_tokens[: len(last)] = accept_tokens.flatten()[last].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Packs the slots of the accepted nodes to the front: accept_index (any shape, -1 = none) in reading order."""
    accepted = accept_index[accept_index > -1].long()
    accept_out_cache_loc[: len(accepted)] = out_cache_loc[accepted].to(accept_out_cache_loc.dtype)


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None,
) -> None:
    """Shifts each request's tokens one to the left, in place, and appends its new token.

    input_ids [T]; extend_start_loc, extend_seq_lens [R]; topk_index [R, ...]: the new tokens; select_index [R]: where
    to put them instead of at the end.
    """
    new_tokens = topk_index.flatten()
    for request, (start, length) in enumerate(
        zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)
    ):
        if length:
            end = start + length
            input_ids[start : end - 1] = input_ids[start + 1 : end].clone()
            last = end - 1 if select_index is None else int(select_index[request])
            input_ids[last] = new_tokens[request]
