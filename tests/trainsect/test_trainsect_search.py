"""The search for minimal sufficient sets against a memoised oracle: right answers, few questions."""

import itertools
import math
import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detaudit.trainsect.search import Oracle, all_sets, is_concentration, quickxplain

CASES = {
    "single": [{0}],
    "two independent": [{0}, {1}],
    "pair": [{0, 1}],
    "triple": [{0, 1, 2}],
    "a or (b and c)": [{0}, {1, 2}],
    "3 of 4": [set(each) for each in itertools.combinations(range(4), 3)],
}

# Means of facts table 4.3 (QuickXplain of one set, the whole tree) over 60 random instances of 64 units.
ONE = {"single": 10.3, "two independent": 9.4, "pair": 16.8, "triple": 22.8, "a or (b and c)": 12.4, "3 of 4": 21.1}
TREE = {"single": 10.9, "two independent": 20.9, "pair": 18.6, "triple": 25.2, "a or (b and c)": 28.7, "3 of 4": 92.3}


def instance(case, n, seed):
    """Units in random order, and the hidden sets as names."""
    units = [f"shard-{i}" for i in range(n)]
    chosen = random.Random(f"{case}:{n}:{seed}").sample(units, 4)
    hidden = [frozenset(chosen[i] for i in each) for each in CASES[case]]
    return units, hidden


def oracle_of(units, hidden):
    oracle = Oracle(lambda real: any(each <= real for each in hidden))
    oracle.know(units, True)
    oracle.know((), False)
    return oracle


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [16, 64, 256])
def test_one_set_is_minimal_and_within_the_bound(case, n):
    for seed in range(60):
        units, hidden = instance(case, n, seed)
        oracle = oracle_of(units, hidden)
        found = quickxplain(oracle, units)
        assert found in hidden
        k = len(found)
        assert oracle.asked <= 2 * k * math.log2(n / k) + 2 * k


@pytest.mark.parametrize("case", CASES)
def test_mean_of_questions_for_one_set(case):
    counts = []
    for seed in range(60):
        units, hidden = instance(case, 64, seed)
        oracle = oracle_of(units, hidden)
        quickxplain(oracle, units)
        counts.append(oracle.asked)
    assert mean(counts) <= 1.1 * ONE[case]


@pytest.mark.parametrize("case", CASES)
def test_the_tree_finds_all_sets(case):
    counts = []
    for seed in range(60):
        units, hidden = instance(case, 64, seed)
        oracle = oracle_of(units, hidden)
        found = all_sets(oracle, units)
        assert found.complete and set(found.sufficient) == set(hidden)
        counts.append(oracle.asked)
    assert mean(counts) <= 1.1 * TREE[case]


@pytest.mark.parametrize("case", [case for case in CASES if case != "3 of 4"])
def test_the_default_budget_covers_all_but_concentration(case):
    for seed in range(60):
        units, hidden = instance(case, 256, seed)
        oracle = oracle_of(units, hidden)
        oracle.budget = 45
        assert all_sets(oracle, units).complete


def test_concentration_exhausts_the_budget_and_says_so():
    units, hidden = instance("3 of 4", 64, 1)
    oracle = oracle_of(units, hidden)
    oracle.budget = 45
    found = all_sets(oracle, units)
    assert not found.complete and "BUDGET-EXHAUSTED" in found.note and oracle.asked == 45


def test_concentration_stops_the_tree_early():
    units, hidden = instance("3 of 4", 16, 1)
    found = all_sets(oracle_of(units, hidden), units, stop=is_concentration)
    assert not found.complete and is_concentration(found.sufficient)


def test_leave_one_out_would_name_nobody_for_two_independent_causes():
    units, hidden = instance("two independent", 16, 0)
    oracle = oracle_of(units, hidden)
    assert all(oracle([u for u in units if u != out]) for out in units)
    assert set(all_sets(oracle, units).sufficient) == set(hidden)


def test_a_question_asked_twice_counts_once():
    oracle = Oracle(lambda real: len(real) > 1)
    assert oracle("ab") and oracle("ba") and not oracle("a") and oracle.asked == 2


@given(st.sets(st.frozensets(st.integers(0, 7), min_size=1, max_size=3), min_size=1, max_size=3))
def test_sets_and_corrections_of_any_family(family):
    """The sets found are the minimal ones, and every correction set hits each of them."""
    hidden = [frozenset(map(str, each)) for each in family]
    minimal = {each for each in hidden if not any(other < each for other in hidden)}
    units = [str(i) for i in range(8)]
    found = all_sets(oracle_of(units, hidden), units)
    assert set(found.sufficient) == minimal and found.complete
    assert all(cut & each for cut in found.corrections for each in minimal)


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (["abc", "abd", "acd"], True),
        (["abc", "abd"], False),
        (["ab", "cd", "ef"], False),
        (["a", "a", "a"], False),
        (["ab", "abc", "bc"], False),
    ],
)
def test_what_counts_as_concentration(sets, expected):
    assert is_concentration([frozenset(each) for each in sets]) is expected
