"""The page pool keeps every page in exactly one state and shares equal prefixes only."""

import random

import pytest

from hetero.engine.pages import PAGE, PagePool


def store(pool, ids, reuse=True):
    """A sequence with all of `ids` in the cache."""
    sequence = pool.open(ids, reuse)
    assert pool.reserve(sequence, len(ids))
    pool.extend(sequence, ids[sequence.length :])
    return sequence


def test_a_second_request_shares_the_full_pages_of_an_equal_prefix():
    pool = PagePool(16)
    ids = list(range(3 * PAGE + 5))
    first = store(pool, ids)
    second = pool.open([*ids, 7], reuse=True)
    assert second.pages == first.pages[:3]
    assert second.tokens == ids[: 3 * PAGE]


def test_at_least_one_token_is_left_to_compute():
    pool = PagePool(8)
    ids = list(range(2 * PAGE))
    pool.close(store(pool, ids))
    assert pool.open(ids, reuse=True).length == PAGE
    assert pool.open([*ids, 0], reuse=True).length == 2 * PAGE


def test_pages_are_shared_only_when_everything_before_is_equal():
    pool = PagePool(8)
    tail = list(range(100, 100 + PAGE))
    pool.close(store(pool, [1] * PAGE + tail))
    assert pool.open([2] * PAGE + tail + [0], reuse=True).length == 0


def test_reuse_false_shares_nothing():
    pool = PagePool(8)
    ids = list(range(2 * PAGE))
    pool.close(store(pool, ids))
    assert pool.open([*ids, 0], reuse=False).length == 0


def test_reserve_takes_nothing_when_there_is_too_little():
    pool = PagePool(3)
    held = pool.open([], reuse=True)
    assert pool.reserve(held, 2 * PAGE)
    other = pool.open([], reuse=True)
    assert not pool.reserve(other, 2 * PAGE)
    assert other.pages == []
    assert pool.available == 1


def test_content_is_evicted_oldest_first_and_only_when_needed():
    pool = PagePool(4)
    old, new = [1] * PAGE, [2] * PAGE
    pool.close(store(pool, old))
    pool.close(store(pool, new))
    third = pool.open([], reuse=True)
    pool.reserve(third, 3 * PAGE)
    assert pool.open([*old, 0], reuse=True).length == 0
    assert pool.open([*new, 0], reuse=True).length == PAGE


def test_a_truncated_sequence_forgets_its_tail():
    pool = PagePool(8)
    ids = list(range(3 * PAGE))
    sequence = store(pool, ids)
    pool.truncate(sequence, PAGE + 1)
    assert sequence.tokens == ids[: PAGE + 1]
    assert len(sequence.pages) == 2
    pool.extend(sequence, [9] * (PAGE - 1))
    pool.close(sequence)
    assert pool.open([*ids, 0], reuse=True).length == PAGE
    assert pool.open(ids[: PAGE + 1] + [9] * (PAGE - 1) + [0], reuse=True).length == 2 * PAGE


def test_truncating_a_shared_page_leaves_the_other_users_content():
    pool = PagePool(8)
    ids = list(range(2 * PAGE))
    first = store(pool, ids)
    second = store(pool, [*ids, 5])
    pool.truncate(second, PAGE + 3)
    assert first.tokens == ids
    assert second.pages[-1] != first.pages[1], "a write to the cut page would change the first request's content"


def test_a_lone_sequence_stays_contiguous():
    pool = PagePool(32)
    sequence = pool.open([], reuse=True)
    for length in range(1, 10 * PAGE, 7):
        pool.reserve(sequence, length)
    assert sequence.contiguous
    assert sequence.pages == list(range(sequence.pages[0], sequence.pages[0] + len(sequence.pages)))


@pytest.mark.parametrize("seed", range(5))
def test_pages_are_never_lost_or_given_twice(seed):
    rng = random.Random(seed)
    pool, live = PagePool(20), []
    for _ in range(400):
        if live and rng.random() < 0.4:
            pool.close(live.pop(rng.randrange(len(live))))
            continue
        ids = [rng.randrange(2)] * PAGE * rng.randrange(1, 4) + [rng.randrange(3)] * rng.randrange(1, 70)
        sequence = pool.open(ids, reuse=True)
        if not pool.reserve(sequence, len(ids)):
            pool.close(sequence)
            continue
        pool.extend(sequence, ids[sequence.length :])
        live.append(sequence)
        tails = [page for s in live for page in s.pages[len(s.keys) :]]
        assert len(tails) == len(set(tails)), "an unfinished page has one owner"
        assert pool.available + len({page for s in live for page in s.pages}) == 20
    for sequence in live:
        pool.close(sequence)
    assert pool.available == 20
