"""The tracer in a process: what it records, and that it changes nothing."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from detaudit.explain import rerun
from tests.explain.tracing import traced


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(8, 1))


def train(steps: int = 4, after_step=lambda number: None, net=None, optimizer=torch.optim.Adam) -> list[str]:
    """The losses of a small training, bit for bit."""
    torch.manual_seed(3)
    net = net or model()
    opt = optimizer(net.parameters(), lr=1e-2)
    seen = []
    for number in range(steps):
        loss = net(torch.randn(5, 6)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        after_step(number)
        seen.append(loss.item().hex())
    return [*seen, *(p.detach().double().sum().item().hex() for p in net.parameters()), torch.rand(1).item().hex()]


def named(trace, name):
    return [op for op in trace.ops if op.name == name]


class TestNothingChanges:
    @pytest.mark.parametrize("window", [(0, 0), (0, 3), (1, 2), (2, 9)])
    def test_the_bits_of_a_clean_program(self, tmp_path, window):
        plain = train()
        trace, result = traced(tmp_path / "t", train, window)
        assert result == plain
        assert trace.steps == [step for step in range(5) if window[0] <= step <= min(window[1], 4)]
        assert trace.complete and not trace.notes

    def test_no_operator_of_a_clean_program_is_named_by_running_it_again(self, tmp_path):
        trace, _ = traced(tmp_path / "t", train, (0, 3))
        repeated = [op for op in trace.ops if op.rerun]
        assert len(repeated) > 100 and not [op for op in repeated if op.rerun[0]]

    def test_running_again_does_not_move_running_statistics(self, tmp_path):
        """The schema of native_batch_norm denies that it writes them."""
        net = model()
        plain = train(net=model())
        _, result = traced(tmp_path / "t", lambda: train(net=net), (0, 3))
        assert net[1].num_batches_tracked == 4 and len(result) == len(plain)

    def test_the_mode_stack_is_as_it_was(self, tmp_path):
        heights = []
        traced(tmp_path / "t", lambda: train(after_step=lambda n: heights.append(_height())), (1, 2))
        assert heights == [1, 1, 0, 0]

    def test_a_second_optimizer_and_closures(self, tmp_path):
        def closures():
            torch.manual_seed(0)
            net = nn.Linear(3, 1)
            opt = torch.optim.LBFGS(net.parameters(), max_iter=4)
            x, y = torch.randn(7, 3), torch.randn(7, 1)

            def closure():
                opt.zero_grad()
                loss = (net(x) - y).square().mean()
                loss.backward()
                return loss

            return [opt.step(closure).item().hex() for _ in range(3)]

        assert traced(tmp_path / "t", closures, (0, 2))[1] == closures()


def _height() -> int:
    return torch._C._len_torch_dispatch_stack()


class TestUsersModes:
    def test_a_flop_counter_around_the_step(self, tmp_path):
        def counted():
            torch.manual_seed(0)
            net, counts = nn.Linear(6, 8), []
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(4):
                with FlopCounterMode(display=False) as counter:
                    net(torch.randn(5, 6)).square().mean().backward()
                    opt.step()
                counts.append(counter.get_total_flops())
            return counts, _height()

        counts, height = counted()
        trace, (traced_counts, traced_height) = traced(tmp_path / "t", counted, (1, 2))
        assert traced_counts == counts and height == 0
        assert traced_height == 1, "it cannot leave beneath the user's mode: it looks the other way until it can"
        assert {op.step for op in trace.ops} == {1, 2} and named(trace, "aten.addmm.default")

    def test_a_mode_around_the_whole_training_stays_on_top(self, tmp_path):
        def counted():
            with FlopCounterMode(display=False) as counter:
                losses = train()
                top = torch._C._get_dispatch_stack_at(_height() - 1)
            return losses, counter.get_total_flops(), type(top).__name__

        plain = counted()
        trace, result = traced(tmp_path / "t", counted, (1, 2))
        assert result == plain and "Flop" in result[2] and named(trace, "aten.addmm.default")


class TestWhatIsRecorded:
    def test_inputs_are_digested_before_they_are_written(self, tmp_path):
        def program():
            x = torch.arange(4.0)
            x.add_(1.0)
            x.mul_(2.0)
            return train(1)

        trace, _ = traced(tmp_path / "t", program)
        add, mul = named(trace, "aten.add_.Tensor")[0], named(trace, "aten.mul_.Tensor")[0]
        assert add.inputs[0].digest != add.outputs[0].digest == mul.inputs[0].digest
        assert add.inputs[0].storage == add.outputs[0].storage == mul.inputs[0].storage

    def test_the_line_and_the_module(self, tmp_path):
        trace, _ = traced(tmp_path / "t", lambda: train(1))
        forward = named(trace, "aten.addmm.default")[0]
        assert forward.site.file == __file__ and forward.site.function == "train"
        assert forward.module.endswith(".0") and forward.node == ""

    def test_a_backward_operator_has_the_line_of_its_forward(self, tmp_path):
        def program():
            torch.manual_seed(0)
            h = torch.randn(4, 3, requires_grad=True)
            opt = torch.optim.SGD([h], lr=0.1)
            index = torch.tensor([0, 1, 1])
            picked = h[index]  # the forward line
            torch.zeros(2).add(1)  # makes no node: it must not take the line's place
            picked.square().sum().backward()
            opt.step()

        trace, _ = traced(tmp_path / "t", program)
        (gather,) = named(trace, "aten.index.Tensor")
        (scatter,) = named(trace, "aten.index_put.default")
        assert scatter.site == gather.site and scatter.node == "IndexBackward0"

    def test_recomputation_has_its_own_line(self, tmp_path):
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(6, 6)

            def forward(self, x):
                return torch.tanh(self.layer(x))

        def program():
            torch.manual_seed(0)
            block = Block()
            opt = torch.optim.SGD(block.parameters(), lr=0.1)
            losses = []
            for _ in range(2):
                loss = checkpoint(block, torch.randn(3, 6), use_reentrant=False).sum()
                loss.backward()
                opt.step()
                losses.append(loss.item().hex())
            return losses

        plain = program()
        trace, result = traced(tmp_path / "t", program)
        assert result == plain
        forward, again = named(trace, "aten.addmm.default")[:2]
        assert forward.site == again.site and again.node == "" and forward.module == again.module

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_backward_of_a_recomputed_function(self, tmp_path, reentrant):
        """Recomputation stops early inside of `layer`, so that its call never returns."""

        def program():
            torch.manual_seed(0)
            h, layer = torch.randn(4, 6, requires_grad=True), nn.Linear(6, 6)
            opt = torch.optim.SGD([h, *layer.parameters()], lr=0.1)
            index = torch.tensor([0, 1, 1])

            def pick(rows):
                return layer(rows[index])

            checkpoint(pick, h, use_reentrant=reentrant).square().sum().backward()
            opt.step()
            return h.sum().item().hex()

        trace, _ = traced(tmp_path / "t", program)
        gathers, (scatter,) = named(trace, "aten.index.Tensor"), named(trace, "aten.index_put.default")
        assert {gather.site.function for gather in gathers} == {"pick"} and len(gathers) == 2
        assert scatter.site == gathers[0].site and scatter.node == "IndexBackward0"

    def test_a_function_of_the_users_with_its_own_backward(self, tmp_path):
        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, gradient):
                return gradient.cumsum(0)

        def program():
            x = torch.ones(3, requires_grad=True)
            Twice.apply(x).sum().backward()
            return train(1)

        trace, _ = traced(tmp_path / "t", program)
        (found,) = named(trace, "aten.cumsum.default")
        assert found.node == "TwiceBackward" and found.site.function in ("forward", "program")

    def test_leaves_lie_on_storages_of_operators(self, tmp_path):
        trace, _ = traced(tmp_path / "t", lambda: train(1))
        written = {operand.storage for op in trace.ops for operand in op.outputs}
        leaves = {leaf.name.split(".")[0] for leaf in trace.leaves if leaf.storage in written}
        assert {"init", "input", "act", "loss", "grad", "param"} <= leaves

    def test_the_recorder_is_not_traced(self, tmp_path):
        trace, _ = traced(tmp_path / "t", lambda: train(1))
        assert not named(trace, "aten.isfinite.default") and not named(trace, "aten.abs.default")

    def test_random_operators_carry_their_generator(self, tmp_path):
        def program():
            own = torch.Generator().manual_seed(1)
            torch.rand(2, generator=own)
            return train(1)

        trace, _ = traced(tmp_path / "t", program)
        states = [op.random for op in trace.ops if op.random]
        assert states[0].startswith("own cpu:") and states[1].startswith("torch:") and states[1] != states[2]
        assert not any(op.rerun for op in trace.ops if op.random)

    def test_seeds_are_seen_with_their_line(self, tmp_path):
        def program():
            np.random.seed(5)
            return train(1)

        trace, _ = traced(tmp_path / "t", program)
        seeds = {seed.function: seed for seed in trace.reseeds}
        assert seeds["numpy.random.seed"].value == "5" and seeds["torch.manual_seed"].value == "3"
        assert seeds["torch.manual_seed"].site.function == "train"

    def test_seeds_of_own_generators_are_seen_with_their_line_and_number(self, tmp_path):
        def program():
            first, second = torch.Generator(), torch.Generator("cpu")
            assert first.manual_seed(7) is first and second.set_state(first.get_state()) is second
            drawn = torch.rand(2, generator=second)
            assert second.seed() != 7 and second.initial_seed() != 7
            train(1)
            return drawn, first

        trace, (drawn, first) = traced(tmp_path / "t", program)
        own = [seed for seed in trace.reseeds if seed.own]
        assert [(seed.function.rpartition(".")[2], seed.own) for seed in own] == [
            ("manual_seed", 1), ("set_state", 2), ("seed", 2)
        ]  # fmt: skip
        assert own[0].value == "7" and own[1].value.startswith("<Tensor ") and own[2].value == ""
        assert all(seed.site.function == "program" and seed.site.line for seed in own)
        assert [op.own for op in trace.ops if op.random.startswith("own")] == [2]
        assert torch.equal(drawn, torch.rand(2, generator=torch.Generator().manual_seed(7)))
        assert torch.Generator is torch._C.Generator and isinstance(first, torch.Generator)

    def test_own_generators_stay_what_they_are(self, tmp_path):
        def program():
            own = torch.Generator().manual_seed(7)
            copies = [copy.deepcopy(own), pickle.loads(pickle.dumps(own)), own.clone_state()]
            state = own.get_state()
            order = list(DataLoader(TensorDataset(torch.arange(8)), shuffle=True, generator=own))
            train(1)
            assert isinstance(torch.default_generator, torch.Generator)
            return [torch.equal(copied.get_state(), state) for copied in copies], order

        _, (same, order) = traced(tmp_path / "t", program)
        own = torch.Generator().manual_seed(7)
        plain = list(DataLoader(TensorDataset(torch.arange(8)), shuffle=True, generator=own))
        assert same == [True] * 3 and [x.item() for (x,) in order] == [x.item() for (x,) in plain]

    def test_data_of_the_host_comes_in_and_goes_out(self, tmp_path):
        def program():
            x = torch.from_numpy(np.ones(3))
            torch.tensor([1.0, 2.0])
            x.tolist()
            return train(1)

        names = [op.name for op in traced(tmp_path / "t", program)[0].ops]
        came = names.index("host.from_numpy")
        assert came < names.index("aten.lift_fresh.default", came) < names.index("host.tolist")

    def test_tensors_from_before_the_window_are_known(self, tmp_path):
        trace, _ = traced(tmp_path / "t", train, (2, 2))
        first = next(op for op in trace.ops if op.name == "aten.addmm.default")
        assert first.inputs[0].storage in trace.old and first.inputs[1].storage not in trace.old

    def test_another_thread_is_not_traced(self, tmp_path):
        def program():
            thread = threading.Thread(target=lambda: torch.ones(3).cumsum(0))
            thread.start()
            thread.join()
            return train(1)

        assert not named(traced(tmp_path / "t", program)[0], "aten.cumsum.default")

    def test_torch_compile_is_said_to_run_eagerly(self, tmp_path):
        def program():
            torch.compile(lambda x: x, backend="eager")
            return train(1)

        assert "eagerly" in traced(tmp_path / "t", program)[0].notes[0]


class TestUnwrittenMemory:
    def reads(self, tmp_path, program):
        def whole():
            program()
            return train(1)

        trace, _ = traced(tmp_path / "t", whole)
        return [operand.unwritten for op in named(trace, "aten.exp.default") for operand in op.inputs]

    def test_read_before_anything_is_written(self, tmp_path):
        assert self.reads(tmp_path, lambda: torch.empty(4).exp()) == [True]

    @pytest.mark.parametrize("write", ["zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"])
    def test_writing_over_it_is_no_read(self, tmp_path, write):
        assert self.reads(tmp_path, lambda: getattr(torch.empty(4), write)().exp()) == [False]

    def test_out_writes(self, tmp_path):
        def program():
            out = torch.empty(4)
            torch.add(torch.ones(4), 1, out=out)
            out.exp()

        assert self.reads(tmp_path, program) == [False]

    def test_a_part_written_through_a_view_leaves_the_rest(self, tmp_path):
        def program():
            x = torch.empty(4, 3)
            x[:, 0] = 1.0
            x.exp()
            x[:, 1:].fill_(2.0)
            x.exp()

        assert self.reads(tmp_path, program) == [True, False]

    def test_only_the_part_that_is_read_counts(self, tmp_path):
        def program():
            x = torch.empty(4)
            x[:2] = 1.0
            x[:2].exp()
            x[2:].exp()

        assert self.reads(tmp_path, program) == [False, True]


class TestRerun:
    def test_what_differs_is_counted(self):
        calls = iter([1, 2, 2, 3] + [3] * 20)
        found = rerun.repeat(lambda: next(calls), (), {}, None, [1], lambda result, a, k: [result], 3)
        assert found == (9, 10, 3)

    def test_agreement_stops_early(self):
        assert rerun.repeat(lambda: 1, (), {}, None, [1], lambda result, a, k: [result], 3) == (0, 3, 1)

    def test_without_a_digest_nothing_is_claimed(self):
        assert rerun.repeat(lambda: 1, (), {}, None, [None], lambda result, a, k: [None], 3) is None

    def test_clones_share_what_the_originals_share(self):
        base = torch.arange(6.0)
        whole, part = base.view(2, 3), base[3:]
        (first, second), _ = rerun.Snapshot([part]).arguments((whole, part), {})
        second.zero_()
        assert first[1].tolist() == [0, 0, 0] and base[3:].tolist() == [3, 4, 5]
        assert (first.stride(), second.storage_offset()) == (whole.stride(), 3)
