"""The step buffer: order, occurrences, folding, and leaves of other threads."""

from __future__ import annotations

import threading

from detaudit.capture.buffer import FOLDED, MAX_OCCURRENCES, Entry, StepBuffer
from detaudit.digest.select import LeafDigest
from detaudit.digest.stats import EMPTY


def entry(name: str, digest: int = 1) -> Entry:
    return Entry(name, LeafDigest(digest, "float32", (2,)), EMPTY)


def names(buffer: StepBuffer) -> list[str]:
    return [leaf.name for leaf in buffer.close()[0]]


def test_leaves_keep_the_order_of_execution_and_head_leaves_come_first() -> None:
    buffer = StepBuffer()
    for name in ("b", "a", "c"):
        buffer.add(entry(name))
    buffer.add(entry("rng.torch"), head=True)
    assert names(buffer) == ["rng.torch", "b", "a", "c"]
    assert buffer.empty


def test_further_occurrences_are_numbered() -> None:
    buffer = StepBuffer()
    for _ in range(3):
        buffer.add(entry("act.net"))
    assert names(buffer) == ["act.net", "act.net#1", "act.net#2"]


def folded(digests: list[int]) -> tuple[list[str], int]:
    buffer = StepBuffer()
    for digest in digests:
        buffer.add(entry("act.net", digest))
    leaves, values, _ = buffer.close()
    assert leaves[-1].dtype == FOLDED
    return [leaf.name for leaf in leaves], values[-1]


def test_occurrences_beyond_the_limit_fold_into_one_leaf_that_sees_values_order_and_count() -> None:
    many = list(range(MAX_OCCURRENCES + 5))
    labels, rolled = folded(many)
    assert len(labels) == MAX_OCCURRENCES + 1
    swapped = [*many[:-2], many[-1], many[-2]]
    assert folded(many) == (labels, rolled)
    assert folded(swapped)[1] != rolled
    assert folded([*many, 7])[1] != rolled
    assert folded([*many[:-1], 99])[1] != rolled


def from_threads(order: list[int]) -> tuple[list[str], list[int]]:
    """Three threads add the same leaves in a given order of arrival, then the closing thread adds its own."""
    buffer = StepBuffer()
    for number in order:
        thread = threading.Thread(target=lambda n=number: buffer.add(entry("act.net", n)))
        thread.start()
        thread.join()
    buffer.add(entry("loss", 9))
    leaves, digests, _ = buffer.close()
    return [leaf.name for leaf in leaves], digests


def test_the_order_in_which_threads_arrive_leaves_no_trace() -> None:
    first = from_threads([1, 2, 3])
    assert first[0] == ["act.net@threads", "act.net@threads#1", "act.net@threads#2", "loss"]
    assert from_threads([3, 1, 2]) == first
    assert from_threads([1, 2, 4]) != first


def test_equal_leaves_are_one_object_so_that_layouts_can_be_found_by_identity() -> None:
    buffer = StepBuffer()
    buffer.add(entry("a"))
    first = buffer.close()[0]
    buffer.add(entry("a", digest=5))
    assert buffer.close()[0][0] is first[0]
