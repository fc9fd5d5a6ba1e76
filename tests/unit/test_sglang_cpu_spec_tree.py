"""The draft tree kernels of the CPU test server against loops that follow each path by itself."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

# On a machine with the real sgl_kernel there is nothing to test.
pytest.importorskip("sgl_kernel.torch_ops", exc_type=ImportError)

import sgl_kernel

FULL_MASK, QLEN_ONLY, QLEN_ONLY_BITPACKING = 0, 1, 2


@dataclass
class Drafted:
    """What a draft of some depth proposes for one request, in SGLang's encoding, and the tree that it means.

    Step 0 gives topk candidates 0..topk-1; each later step keeps topk parents and gives topk candidates of each, so
    that group g (g >= 1) of candidates g*topk..g*topk+topk-1 grows from candidate ``parent_list[g]``.
    """

    parent_list: list[int]
    selected: list[int]
    paths: list[list[int]]  # per node: the candidates from the root's child down to it


def draft_tree(rng: random.Random, topk: int, depth: int, nodes: int) -> Drafted:
    parent_list = [-1]
    frontier = list(range(topk))
    path = {candidate: [candidate] for candidate in frontier}
    for _ in range(depth - 1):
        parents = rng.sample(frontier, topk) if len(frontier) >= topk else frontier
        frontier = []
        for parent in parents:
            group = len(parent_list)
            parent_list.append(parent)
            for candidate in range(group * topk, (group + 1) * topk):
                path[candidate] = [*path[parent], candidate]
                frontier.append(candidate)
    # A set of candidates that holds every candidate's ancestors, as the best scores always do.
    chosen: set[int] = set()
    for candidate in rng.sample(sorted(path), len(path)):
        if len(chosen | set(path[candidate])) <= nodes - 1:
            chosen |= set(path[candidate])
    selected = sorted(chosen)
    return Drafted(parent_list, selected, [[]] + [path[candidate] for candidate in selected])


def build(drafts: list[Drafted], lengths: list[int], topk: int, depth: int, mode: int) -> dict[str, torch.Tensor]:
    requests, nodes = len(drafts), len(drafts[0].paths)
    cells = requests * nodes * nodes + (nodes * sum(lengths) if mode == FULL_MASK else 0)
    made = {
        "mask": torch.ones(cells, dtype=torch.bool),
        "positions": torch.full((requests * nodes,), -9),
        "index": torch.full((requests, nodes), -1),
        "next_token": torch.full((requests, nodes), -1),
        "next_sibling": torch.full((requests, nodes), -1),
    }
    sgl_kernel.build_tree_kernel_efficient_cpu(
        torch.tensor([draft.parent_list for draft in drafts]),
        torch.tensor([draft.selected for draft in drafts]),
        torch.tensor(lengths),
        made["mask"],
        made["positions"],
        made["index"],
        made["next_token"],
        made["next_sibling"],
        topk,
        depth,
        nodes,
        mode,
    )
    return made


def children(paths: list[list[int]], node: int) -> list[int]:
    return [other for other, path in enumerate(paths) if path and path[:-1] == paths[node]]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(2, 9),
    st.integers(0, 999),
    st.sampled_from([FULL_MASK, QLEN_ONLY]),
)
def test_build_tree(topk: int, depth: int, nodes: int, seed: int, mode: int) -> None:
    rng = random.Random(seed)
    nodes = min(nodes, 1 + topk + (depth - 1) * topk * topk)
    drafts: list[Drafted] = []
    while len(drafts) < 2:
        draft = draft_tree(rng, topk, depth, nodes)
        if len(draft.paths) == nodes:
            drafts.append(draft)
    lengths = [rng.randint(1, 6) for _ in drafts]
    made = build(drafts, lengths, topk, depth, mode)
    cell = 0
    for request, (draft, length) in enumerate(zip(drafts, lengths, strict=True)):
        for node, path in enumerate(draft.paths):
            if mode == FULL_MASK:
                assert made["mask"][cell : cell + length].all()
                cell += length
            for other, above in enumerate(draft.paths):
                ancestor_or_self = path[: len(above)] == above
                assert bool(made["mask"][cell]) == ancestor_or_self, (node, other)
                cell += 1
            assert int(made["positions"][request * nodes + node]) == length + len(path)
            assert int(made["index"][request, node]) == request * nodes + node
            linked = []
            child = int(made["next_token"][request, node])
            while child != -1:
                linked.append(child)
                child = int(made["next_sibling"][request, child])
            assert linked == children(draft.paths, node)
    assert cell == len(made["mask"])


def test_build_tree_of_a_chain_is_the_causal_mask() -> None:
    draft = Drafted([-1, 0, 1], [0, 1, 2], [[], [0], [0, 1], [0, 1, 2]])
    made = build([draft], [7], topk=1, depth=3, mode=QLEN_ONLY)
    assert torch.equal(made["mask"].view(4, 4), torch.ones(4, 4, dtype=torch.bool).tril())
    assert made["positions"].tolist() == [7, 8, 9, 10]
    assert made["next_token"].tolist() == [[1, 2, 3, -1]]
    assert made["next_sibling"].tolist() == [[-1] * 4]


def test_build_tree_of_one_step_has_no_parent_list() -> None:
    draft = Drafted([], [0, 1], [[], [0], [1]])
    made = build([draft], [3], topk=2, depth=1, mode=QLEN_ONLY)
    assert made["next_token"].tolist() == [[1, -1, -1]]
    assert made["next_sibling"].tolist() == [[-1, 2, -1]]


def test_build_tree_refuses_a_packed_mask() -> None:
    draft = Drafted([-1], [0], [[], [0]])
    with pytest.raises(NotImplementedError, match="bit packed"):
        build([draft], [3], topk=1, depth=1, mode=QLEN_ONLY_BITPACKING)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(2, 9), st.integers(2, 6), st.integers(0, 9999))
def test_verify_tree_greedy(topk: int, depth: int, nodes: int, most: int, seed: int) -> None:
    rng = random.Random(seed)
    nodes = min(nodes, 1 + topk + (depth - 1) * topk * topk)
    drafts: list[Drafted] = []
    while len(drafts) < 3:
        draft = draft_tree(rng, topk, depth, nodes)
        if len(draft.paths) == nodes:
            drafts.append(draft)
    made = build(drafts, [4] * len(drafts), topk, depth, QLEN_ONLY)
    # Few token ids, so that paths are accepted; siblings may even carry the same one.
    tokens = torch.tensor([[rng.randrange(3) for _ in range(nodes)] for _ in drafts])
    target = torch.tensor([[rng.randrange(3) for _ in range(nodes)] for _ in drafts])
    predicts = torch.full((len(drafts) * nodes,), -5, dtype=torch.int32)
    accept_index = torch.full((len(drafts), most), -1, dtype=torch.int32)
    accepted_drafts = torch.full((len(drafts),), -5, dtype=torch.int32)
    sgl_kernel.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accepted_drafts,
        candidates=tokens,
        retrive_index=made["index"],
        retrive_next_token=made["next_token"],
        retrive_next_sibling=made["next_sibling"],
        target_predict=target,
    )
    expected_predicts = [-5] * len(predicts)
    for request, draft in enumerate(drafts):
        walk = [0]
        while len(walk) < most:
            wanted = int(target[request, walk[-1]])
            fitting = [node for node in children(draft.paths, walk[-1]) if int(tokens[request, node]) == wanted]
            if not fitting:
                break
            walk.append(fitting[0])
        flat = [request * nodes + node for node in walk]
        assert accept_index[request].tolist() == flat + [-1] * (most - len(walk))
        assert int(accepted_drafts[request]) == len(walk) - 1
        for node in walk:
            expected_predicts[request * nodes + node] = int(target[request, node])
    assert predicts.tolist() == expected_predicts


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_fill_bonus_tokens(lens: list[int]) -> None:
    tokens = torch.arange(len(lens) * 4) + 100
    bonus = torch.zeros(len(lens), dtype=torch.int32)
    sgl_kernel.fill_bonus_tokens_cpu(tokens, torch.tensor(lens, dtype=torch.int32), bonus, 4)
    assert bonus.tolist() == [100 + 4 * request + count - 1 for request, count in enumerate(lens)]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(-1, 9), min_size=1, max_size=12))
def test_fill_accept_out_cache_loc(index: list[int]) -> None:
    slots = torch.arange(10) + 50
    out = torch.zeros(len(index), dtype=torch.int64)
    sgl_kernel.fill_accept_out_cache_loc_cpu(torch.tensor(index, dtype=torch.int32), slots, out)
    packed = [50 + node for node in index if node >= 0]
    assert out.tolist() == packed + [0] * (len(index) - len(packed))


@pytest.mark.parametrize("at_the_end", [True, False])
def test_rotate_input_ids(at_the_end: bool) -> None:
    tokens = torch.tensor([1, 2, 3, 10, 20, 21])
    select = None if at_the_end else torch.tensor([1, 3, 4])
    sgl_kernel.rotate_input_ids_cpu(
        tokens, torch.tensor([0, 3, 4]), torch.tensor([3, 1, 2]), torch.tensor([[91], [92], [93]]), select
    )
    assert tokens.tolist() == ([2, 3, 91, 92, 21, 93] if at_the_end else [2, 91, 3, 92, 93, 21])


def test_murmur_hash_equals_the_published_algorithm() -> None:
    def rotate(x: int, bits: int) -> int:
        return (x << bits | x >> 32 - bits) & 0xFFFFFFFF

    def murmur3(data: bytes) -> int:
        value = 0
        for start in range(0, len(data), 4):
            block = int.from_bytes(data[start : start + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
            value ^= rotate(block, 15) * 0x1B873593 & 0xFFFFFFFF
            value = rotate(value, 13) * 5 + 0xE6546B64 & 0xFFFFFFFF
        value ^= len(data)
        value = (value ^ value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
        value = (value ^ value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
        return value ^ value >> 16

    assert murmur3(b"test") == 0xBA6BD213  # a published value
    seeds = torch.tensor([0, 1, 2**63 + 12345, 2**64 - 1], dtype=torch.uint64)
    positions, columns = torch.tensor([0, 7, 2**31 + 3, 5]), torch.arange(3)
    hashed = torch.ops.sgl_kernel.murmur_hash32_cpu.default(seeds, positions, columns)
    assert hashed.dtype == torch.uint32
    expected = [
        [
            murmur3(seed.to_bytes(8, "little") + position.to_bytes(4, "little") + column.to_bytes(4, "little"))
            for column in columns.tolist()
        ]
        for seed, position in zip(seeds.tolist(), positions.tolist(), strict=True)
    ]
    assert hashed.tolist() == expected
