"""Experts cut into parts for memory nodes: pretended nodes give the same bits; parts are placed page by page."""

import numpy as np
import pytest

from hetero.native import ExpertBank, Kernels, Pool, allocate, down_offset, expert_bytes
from tests.native.test_moe import routes, run
from tests.native.weights import USABLE, bank, cpus, normal

EXPERTS, HIDDEN = 7, 256


@pytest.fixture(params=USABLE)
def kernels(request):
    return Kernels(request.param)


@pytest.mark.parametrize(
    ("formats", "inter"), [(("Q4_0",) * 3, 512), (("Q4_K", "Q4_K", "Q6_K"), 256), (("F32",) * 3, 40)]
)
def test_any_number_of_nodes_gives_the_same_bits(kernels, formats, inter):
    """1, 2 and 4 nodes, workers of all, some or one of them, and more nodes than there are parts to share out."""
    experts, *_ = bank(kernels, formats, EXPERTS, HIDDEN, inter)
    x = normal(np.random.default_rng(1), 90, HIDDEN)
    ids, weights = routes(90, 0, EXPERTS)
    with Pool(cpus(2), kernels) as pool:
        whole = [run(kernels, pool, experts, x[:n], ids[:n], weights[:n]) for n in (1, 5, 90)]
    for nodes in ([0], [0, 1], [1, 0], [0, 1, 2, 3], [3], [0, 0, 1], [63, 2]):
        with Pool(cpus(len(nodes)), kernels, nodes) as pool:
            for n, expected in zip((1, 5, 90), whole, strict=True):
                assert np.array_equal(run(kernels, pool, experts, x[:n], ids[:n], weights[:n]), expected)


def empty_bank(n_experts, hidden, inter, data=None):
    formats = ("F32",) * 3
    stride = expert_bytes(*formats, hidden, inter)
    memory = allocate(n_experts * stride) if data is None else data[: n_experts * stride]
    return ExpertBank(n_experts, hidden, inter, *formats, memory, stride, down_offset("F32", "F32", hidden, inter))


@pytest.mark.parametrize("nodes", [[0], [0, 0], [0, 0, 0]])
def test_all_whole_pages_of_a_bank_are_placed_once(kernels, nodes):
    """Every pretended node is the system's node 0; only a system that refuses places nothing."""
    experts = empty_bank(3, 160, 80)
    placed = kernels.place(experts, nodes)
    if placed == 0:
        pytest.skip("NOT TESTED: placing memory on nodes (the system refuses)")
    used = 3 * (experts.down_offset + 4 * 160 * 96)  # rows of down are padded to whole blocks of 32 k
    assert used - 3 * 4096 < placed <= used
    experts.data[:] = 3
    assert (experts.data == 3).all()


def test_placing_cuts_memory_into_no_mappings_of_its_own(kernels):
    """A process has 65,530 of them, fewer than a large model has parts of experts. Node 63 does not exist."""
    experts = empty_bank(100, 64, 32)
    experts.data[-1] = 7
    before = mappings()
    if kernels.place(experts, [0, 63]) == 0:
        pytest.skip("NOT TESTED: placing memory on nodes (the system refuses)")
    assert mappings() < before + 50
    assert experts.data[-1] == 7


def mappings():
    with open("/proc/self/maps", encoding="ascii") as maps:
        return len(maps.readlines())


def test_memory_off_page_borders_is_left_alone(kernels):
    experts = empty_bank(1, 64, 32, allocate(1 << 20)[64:])
    assert kernels.place(experts, [0, 0]) == 0


def test_wrong_nodes_are_refused(kernels):
    with pytest.raises(ValueError, match="2 nodes for 1 CPUs"):
        Pool([0], kernels, [0, 1])
    with pytest.raises(ValueError, match="node 64 of worker 1"):
        Pool([0, 0], kernels, [0, 64])
    with pytest.raises(ValueError, match="0 nodes"):
        kernels.place(empty_bank(1, 64, 32), [])
