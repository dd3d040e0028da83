"""Each kind of explanation from the smallest pair of traces that shows it, and the traps around it."""

from __future__ import annotations

import pytest

from detaudit.core.model import DivergenceKind, ExplanationKind
from detaudit.explain.classify import classify, find_leaf
from tests.explain.made_traces import Made, divergence

LEAF = divergence("grad.w")


def racing(out: str, rerun: tuple[int, int, int] | None = (9, 10, 4)) -> Made:
    """zeros -> index_put (in the backward of line 7) -> sum -> the leaf; only index_put differs by itself."""
    made = Made().op("new_zeros", "", "1:z", line=7)
    made.op(
        "index_put",
        "1:z 2:i 3:g",
        f"4:{out}",
        line=7,
        node="IndexBackward0",
        rerun=rerun,
        module="net.conv",
        values=("True",),
    )
    return made.op("sum", f"4:{out}", f"5:s{out}", line=9).leaf("grad.w", f"5:s{out}")


def explain(a: Made, b: Made, first=LEAF):
    return classify(a.trace, b.trace, first)


class TestOperator:
    def test_equal_inputs_unequal_outputs_and_confirmed(self):
        found = explain(racing("x"), racing("y"))
        assert (found.kind, found.operator, found.line, found.module) == ("operator", "index_put", 7, "net.conv")
        assert found.rate == "18 of 20 re-executions on the same inputs differ"
        text = "\n".join(found.evidence)
        assert "3 of 3 inputs of index_put are equal" in text and "IndexBackward0" in text
        assert "known alternative: torch.index_select" in text
        assert "reaches grad.w through index_put -> sum" in text

    def test_one_run_confirms(self):
        assert explain(racing("x", (0, 40, 1)), racing("y")).kind is ExplanationKind.OPERATOR

    @pytest.mark.parametrize("rerun", [None, (0, 40, 1)])
    def test_without_confirmation_it_is_unproven(self, rerun):
        found = explain(racing("x", rerun), racing("y", rerun))
        assert found.kind is ExplanationKind.UNPROVEN and found.operator == "index_put" and found.line == 7

    def test_the_first_on_the_path_and_not_a_later_one(self):
        def made(out):
            run = racing(out)
            run.op("index_put", f"1:z 5:s{out}", f"6:t{out}", line=20, rerun=(9, 10, 9))
            return run.leaf("grad.v", f"6:t{out}")

        assert explain(made("x"), made("y"), divergence("grad.v")).line == 7

    def test_one_off_the_path_is_not_blamed(self):
        """It races, earlier and confirmed, but nothing of it reaches the leaf: the clock does."""

        def made(out, clock):
            run = racing(out)
            return run.op("full", "", f"8:{clock}", line=30, values=("[4]", clock)).leaf("input.net.0", f"8:{clock}")

        found = explain(made("x", "0.1"), made("y", "0.2"), divergence("input.net.0"))
        assert (found.kind, found.line) == ("outside", 30)

    def test_an_inplace_operator_on_a_view(self):
        def made(out):
            run = Made().op("zeros", "", "1:z").op("add_", "1:p", f"1:{out}", line=4, rerun=(5, 10, 3))
            return run.op("sum", f"1:w{out}", f"2:{out}", line=5).leaf("grad.w", f"2:{out}")

        found = explain(made("x"), made("y"))
        assert (found.kind, found.line) == ("operator", 4)


class TestOutside:
    def test_an_unproduced_tensor_names_its_first_consumer(self):
        def made(data):
            return Made().op("mul", f"1:{data} 2:c", f"3:m{data}", line=5).leaf("grad.w", f"3:m{data}")

        found = explain(made("x"), made("y"))
        assert (found.kind, found.operator, found.line) == ("outside", "mul", 5)

    def test_the_leaf_itself_is_unproduced(self):
        def made(data):
            return (
                Made().op("zeros", "", "9:z").leaf("batch.0", f"1:{data}").op("mul", f"1:{data}", f"2:{data}", line=6)
            )

        found = explain(made("x"), made("y"), divergence("batch.0"))
        assert (found.kind, found.line) == ("outside", 6)

    def test_written_by_equal_operators_and_then_by_nobody(self):
        """Another thread writes into the buffer: every traced write of it is equal."""

        def made(data):
            run = Made().op("copy_", "", "1:c", line=2)
            return run.op("mul", f"1:{data}", f"3:m{data}", line=5).leaf("grad.w", f"3:m{data}")

        found = explain(made("x"), made("y"))
        assert (found.kind, found.line) == ("outside", 5)

    def test_the_same_tensors_in_another_order(self):
        def made(order):
            run = Made().op("stack", " ".join(f"{n}:{d}" for n, d in enumerate(order)), f"9:{order}", line=3)
            return run.leaf("grad.w", f"9:{order}")

        found = explain(made("xyz"), made("zyx"))
        assert found.kind is ExplanationKind.OUTSIDE and "the same 3 tensors in another order" in found.evidence

    def test_a_plain_value(self):
        def made(value):
            run = Made().op("full", "", f"1:{value}", line=3, values=("[2]", value)).leaf("grad.w", f"1:{value}")
            return run

        found = explain(made("0.25"), made("0.5"))
        assert found.kind is ExplanationKind.OUTSIDE
        assert "full takes the plain value 0.25 in A and 0.5 in B" in found.evidence

    def test_a_leaf_that_is_no_tensor(self):
        def made(rate):
            return Made().op("mul", "1:a", f"2:{rate}", line=8, values=(rate,))

        found = explain(made("0.1"), made("0.2"), divergence("optim.opt.group0.lr"))
        assert (found.kind, found.line) == ("outside", 8) and "plain value" in found.evidence[0]

    def test_a_value_that_left_torch_and_came_back_leads_on(self):
        def made(out, number):
            run = racing(out).op("_local_scalar_dense", f"5:s{out}", "", line=11, values=(number,))
            return run.op("full", "", f"8:{number}", line=12, values=(number,)).leaf("input.net.0", f"8:{number}")

        found = explain(made("x", "1.0"), made("y", "1.5"), divergence("input.net.0"))
        assert (found.kind, found.line) == ("operator", 7)
        assert any("left torch" in line and ":11" in line for line in found.evidence)


class TestRandom:
    def made(self, state, seed="1"):
        run = Made().op("randn", "", "0:r", random="torch:first").seed("torch.manual_seed", seed, line=2)
        run.op("bernoulli_", "", f"1:{state}", line=4, random=f"torch:{state}")
        return run.leaf("act.drop", f"1:{state}")

    def test_a_seed_that_differs(self):
        found = explain(self.made("x", "17"), self.made("y", "18"), divergence("act.drop"))
        assert (found.kind, found.operator, found.line) == ("rng", "torch.manual_seed", 2)
        assert any("17 in A, 18 in B" in line for line in found.evidence)

    def own(self, state, mine="1", other="1"):
        """Two generators of the program's own; the second is drawn from."""
        run = Made().seed("torch.Generator.manual_seed", other, line=2, own=1)
        run.seed("torch.Generator.manual_seed", mine, line=3, own=2).seed("torch.manual_seed", other, line=5)
        run.op("randn", "", f"1:{state}", random=f"own cpu:{state}", own=2, line=4)
        return run.leaf("act.drop", f"1:{state}")

    def test_a_seed_of_its_own_generator(self):
        found = explain(self.own("x", mine="17"), self.own("y", mine="18"), divergence("act.drop"))
        assert (found.kind, found.operator, found.line) == ("rng", "torch.Generator.manual_seed", 3)
        assert any("17 in A, 18 in B" in line for line in found.evidence)

    def test_the_seed_of_another_generator_is_not_to_blame(self):
        found = explain(self.own("x", other="17"), self.own("y", other="18"), divergence("act.drop"))
        assert (found.kind, found.line) == ("rng", 4) and "17" not in "".join(found.evidence)

    def test_a_seed_in_one_run_only(self):
        b = Made().op("randn", "", "0:r", random="torch:first")
        b.op("bernoulli_", "", "1:y", line=4, random="torch:y").leaf("act.drop", "1:y")
        found = explain(self.made("x"), b, divergence("act.drop"))
        assert found.kind is ExplanationKind.RNG and any("called in run A only" in line for line in found.evidence)

    def test_an_extra_draw(self):
        a = Made().op("rand", "", "5:q", line=9, random="torch:s0")
        a.op("bernoulli_", "", "1:x", line=4, random="torch:s1").leaf("act.drop", "1:x")
        b = Made().op("bernoulli_", "", "1:y", line=4, random="torch:s0").leaf("act.drop", "1:y")
        found = explain(a, b, divergence("act.drop"))
        assert (found.kind, found.operator, found.line) == ("rng", "rand", 9)
        assert any("only run A drew" in line for line in found.evidence)

    def test_neither_a_seed_nor_a_draw_in_sight(self):
        found = explain(self.made("x"), self.made("y"), divergence("act.drop"))
        assert (found.kind, found.line) == ("rng", 4) and any("another thread" in line for line in found.evidence)

    def test_the_generator_itself_is_the_leaf(self):
        found = explain(self.made("x", "17"), self.made("y", "18"), divergence("rng.torch"))
        assert (found.kind, found.line) == ("rng", 2)

    def test_other_numbers_from_an_equal_state_are_unproven(self):
        def made(out):
            return Made().op("bernoulli_", "", f"1:{out}", random="torch:s").leaf("act.drop", f"1:{out}")

        assert explain(made("x"), made("y"), divergence("act.drop")).kind is ExplanationKind.UNPROVEN


class TestControlFlow:
    def test_a_leaf_of_one_run(self):
        a = Made().op("mul", "1:a", "2:b", line=1).op("addmm", "2:b", "3:c", line=5, module="net.block0")
        a.leaf("act.net.block0", "3:c").op("sum", "3:c", "4:d", line=7)
        b = Made().op("mul", "1:a", "2:b", line=1).op("sum", "2:b", "4:e", line=7)
        found = explain(a, b, divergence("act.net.block0", kind=DivergenceKind.MISSING))
        assert (found.kind, found.operator, found.line, found.module) == ("control-flow", "addmm", 5, "net.block0")

    def test_another_producer(self):
        """Objects in the order of their addresses: equal operators, but the first input is another's."""
        a = Made().op("randn", "", "1:x", line=1).op("randn", "", "2:y", line=1)
        a.op("stack", "1:x 2:y", "3:xy", line=4).leaf("input.net.0", "3:xy")
        b = Made().op("randn", "", "1:x", line=1).op("randn", "", "2:y", line=1)
        b.op("stack", "2:y 1:x", "3:yx", line=4).leaf("input.net.0", "3:yx")
        found = explain(a, b, divergence("input.net.0"))
        assert (found.kind, found.line) == ("control-flow", 4)
        assert "the same 2 tensors in another order" in found.evidence

    def test_an_operator_that_one_run_lacks_on_the_path(self):
        a = Made().op("mul", "1:a", "2:b", line=1).op("relu_", "2:b", "2:c", line=3).leaf("act.net", "2:c")
        b = Made().op("mul", "1:a", "2:b", line=1).leaf("act.net", "2:b")
        found = explain(a, b, divergence("act.net"))
        assert (found.kind, found.operator, found.line) == ("control-flow", "relu_", 3)

    def test_a_missing_leaf_with_equal_operators_is_unproven(self):
        found = explain(racing("x"), racing("x"), divergence("act.q", kind=DivergenceKind.MISSING))
        assert found.kind is ExplanationKind.UNPROVEN


class TestMemory:
    def test_a_leaf_that_nobody_wrote(self):
        def made(found):
            return Made().op("empty", "", "1:-", line=3, allocates=True).leaf("init.param.up", f"1:{found}!")

        found = explain(made("x"), made("y"), divergence("init.param.up"))
        assert (found.kind, found.line) == ("memory", 3)

    def test_an_operator_reads_it(self):
        def made(found):
            run = Made().op("empty", "", "1:-", line=3, allocates=True).op("mul", f"1:{found}!", f"2:{found}", line=6)
            return run.leaf("grad.w", f"2:{found}")

        found = explain(made("x"), made("y"))
        assert (found.kind, found.line) == ("memory", 3) and ":6" in found.evidence[0]

    def test_memory_written_outside_torch_is_no_memory_error(self):
        def made(found):
            return Made().op("empty", "", "1:-", line=3, allocates=True).leaf("grad.w", f"1:{found}")

        assert explain(made("x"), made("y")).kind is ExplanationKind.OUTSIDE


class TestUnproven:
    def test_a_tensor_from_before_the_window(self):
        def made(state):
            return Made(4, 5, old=(1,)).op("mul", f"1:{state}", f"2:{state}", line=3).leaf("grad.w", f"2:{state}")

        found = explain(made("x"), made("y"), divergence("grad.w", 4))
        assert found.kind is ExplanationKind.UNPROVEN and "older than the traced steps" in found.evidence[0]

    def test_a_trace_that_broke_off(self):
        a, b = racing("x"), racing("y")
        b.trace.notes.append("the tracer failed at aten.add: TypeError")
        found = explain(a, b)
        assert found.kind is ExplanationKind.UNPROVEN and "run B cannot be used" in found.evidence[0]

    def test_no_operator_at_all(self):
        assert explain(Made(), Made()).kind is ExplanationKind.UNPROVEN

    def test_a_leaf_of_another_thread(self):
        found = explain(racing("x"), racing("y"), divergence("act.net@threads"))
        assert found.kind is ExplanationKind.UNPROVEN

    def test_unknown_digests_are_not_unequal(self):
        def made(out):
            return Made().op("mul", f"1:{'-'}", f"2:{out}", line=3, rerun=(0, 3, 1)).leaf("grad.w", f"2:{out}")

        assert explain(made("x"), made("y")).kind is ExplanationKind.UNPROVEN


def test_occurrences_of_a_leaf():
    trace = Made().leaf("act.net", "1:a").leaf("act.net", "2:b").next_step().leaf("act.net", "3:c").trace
    assert find_leaf(trace, divergence("act.net")).digest == "a"
    assert find_leaf(trace, divergence("act.net#1")).digest == "b"
    assert find_leaf(trace, divergence("act.net", 1)).digest == "c"
    assert find_leaf(trace, divergence("act.net#2")) is None and find_leaf(trace, divergence("act.net#more")) is None


def test_exchanging_the_sides_keeps_the_answer():
    left, right = explain(racing("x"), racing("y")), explain(racing("y"), racing("x"))
    assert (left.kind, left.operator, left.line) == (right.kind, right.operator, right.line)
