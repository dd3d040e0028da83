"""Classification of scikit-learn's digits: real data, a loader with workers, dropout, BatchNorm. Clean by default.

The flow is `run`: `load_images`, `Training` over as many epochs as the steps need, `accuracy` on held-out images, and
one line of `summary` on stdout.

    python -m detaudit.workloads.digits --steps 200 --eval-steps 3 --batch 128 --seed 0 [--inject FAULT[,FAULT]]
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import detaudit
from detaudit.core.errors import UsageError
from detaudit.workloads.digits_data import (
    HELD_OUT,
    LEVELS,
    NAMES,
    SIDE,
    Digits,
    evaluation_loader,
    load_images,
    no_shift,
    numbered,
    seeded_shift,
    training_loader,
    unseeded_shift,
)
from detaudit.workloads.faults import FaultKind
from detaudit.workloads.launch import Audit, Options, main
from detaudit.workloads.races import RACING_ELEMENTS, racing_gather

AUGMENT = "numpy-augment"
SET_ORDER = "set-order"
TIMED_EVAL = "timed-eval"
GATHER_RACE = "gather-race"
FAULTS = {
    AUGMENT: FaultKind("the shift of an image comes from an unseeded numpy generator (late: at the next epoch)"),
    SET_ORDER: FaultKind("classes are numbered in the order of a set of strings (late: at the next epoch)"),
    TIMED_EVAL: FaultKind("an evaluation every 40 ms of wall time draws from torch's global generator"),
    GATHER_RACE: FaultKind("the gather of grey-level vectors races in its backward", races=True),
}
WIDTH = 16
EVAL_SECONDS = 0.04


class DigitNet(nn.Module):
    """Two strided convolutions beside a learnt vector for each (pixel, grey level); `forward(levels)` gives logits.

    `levels` is int64 `[B, 8, 8]`, the logits float32 `[B, 10]`. `racing` switches on the fault `gather-race`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.racing = False
        self.levels = nn.Parameter(torch.zeros(SIDE * SIDE * LEVELS, WIDTH))
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(32 * 2 * 2 + WIDTH, len(NAMES)))

    def forward(self, levels: Tensor) -> Tensor:
        pixels = levels.to(torch.float32).unsqueeze(1) / (LEVELS - 1)
        return self.head(torch.cat([self.convolutions(pixels), self._level_sum(levels.flatten(1))], dim=1))

    def _level_sum(self, levels_BP: Tensor) -> Tensor:
        row_BP = levels_BP + LEVELS * torch.arange(levels_BP.shape[1], device=levels_BP.device)
        if self.racing:
            return racing_gather(self.levels, row_BP).sum(1)
        # A matrix product adds in a fixed order on every device, the backward of a gather does not.
        return self.levels.new_zeros(row_BP.shape[0], self.levels.shape[0]).scatter_(1, row_BP, 1.0) @ self.levels


class Training:
    """Network, optimizer, data and generators of one run."""

    def __init__(self, options: Options) -> None:
        check_sizes(options)
        self._options = options
        self._images, self._names = load_images()
        self._generator = torch.Generator().manual_seed(options.seed)
        self._evaluated = time.monotonic()
        self.net = DigitNet().to(options.device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)

    def epochs(self, audit: Audit) -> Tensor:
        """Train for the steps asked for; returns the last 0-dim loss."""
        step, loss = 0, torch.zeros(())
        while step < self._options.steps:
            for levels, label in training_loader(self._data(step), self._options.batch, self._generator):
                loss = self.step(step, levels.to(self._options.device), label.to(self._options.device), audit)
                audit.step()
                step += 1
                if step == self._options.steps:
                    break
        return loss

    def step(self, step: int, levels: Tensor, label: Tensor, audit: Audit) -> Tensor:
        """One update on a batch: levels int64 `[B, 8, 8]`, label int64 `[B]`."""
        if self._options.faults.active(TIMED_EVAL, step):
            self._evaluate_if_due()
        self.net.racing = self._options.faults.active(GATHER_RACE, step)
        audit.leaf("checksums.levels", levels)
        audit.leaf("checksums.labels", label)
        audit.leaf("checksums.torch_rng", torch.get_rng_state())
        logits = self.net(levels)
        audit.leaf("checksums.logits", logits.detach())
        loss = F.cross_entropy(logits, label)
        audit.leaf("checksums.loss", loss.detach())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def accuracy(self, batches: int, generator: torch.Generator | None) -> float:
        """Share of held-out digits named rightly, over at most `batches` batches of 120."""
        labels = [numbered(NAMES)[name] for name in self._names[-HELD_OUT:]]
        held_out = evaluation_loader(Digits(self._images[-HELD_OUT:], labels, no_shift), generator)
        self.net.eval()
        right = total = 0
        with torch.no_grad():
            for levels, label in [batch for _, batch in zip(range(batches), held_out, strict=False)]:
                right += int((self.net(levels.to(self._options.device)).argmax(1).cpu() == label).sum())
                total += len(label)
        self.net.train()
        return right / max(total, 1)

    def _data(self, step: int) -> Digits:
        faults, known = self._options.faults, self._names[:-HELD_OUT]
        # The fault numbers the classes as set() yields them: by string hashes, new in every process.
        number = numbered(set(known) if faults.active(SET_ORDER, step) else NAMES)
        shift = unseeded_shift if faults.active(AUGMENT, step) else seeded_shift
        return Digits(self._images[:-HELD_OUT], [number[name] for name in known], shift)

    def _evaluate_if_due(self) -> None:
        if time.monotonic() - self._evaluated >= EVAL_SECONDS:
            self.accuracy(1, generator=None)
            self._evaluated = time.monotonic()


def run(options: Options) -> str:
    """Train and evaluate under `detaudit.record`. The summary depends on the options alone, unless a fault acts."""
    training = Training(options)
    with detaudit.record(training.net, training.optimizer) as audit:
        loss = training.epochs(audit)
        share = training.accuracy(options.eval_steps, torch.Generator().manual_seed(options.seed))
    return (
        f"digits steps={options.steps} batch={options.batch} seed={options.seed} "
        f"inject={options.faults.describe()} final_loss={loss.item().hex()} accuracy={share:g}"
    )


def check_sizes(options: Options) -> None:
    """Raise UsageError for a batch that the data cannot fill, or that is too small for `gather-race` to race."""
    least = -(-RACING_ELEMENTS // (SIDE * SIDE * WIDTH))
    if GATHER_RACE in options.faults and options.batch < least:
        raise UsageError(f"fault {GATHER_RACE!r} does not race with --batch {options.batch}; use {least} or more")
    if options.batch > 1797 - HELD_OUT:
        raise UsageError(
            f"--batch {options.batch} is more than the {1797 - HELD_OUT} training digits; use a smaller one"
        )


if __name__ == "__main__":
    sys.exit(main(run, FAULTS, __doc__ or ""))
