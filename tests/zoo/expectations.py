"""What an audit of each program in this folder must say, as data.

`Case.command()` is what goes after `--` of `detaudit check`; run it in an empty working directory that the two runs
share, with `environment()`. Programs know nothing of detaudit. `selfcheck.py` proves the programs themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ZOO = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Case:
    """One audited command and the known answer."""

    name: str
    argv: tuple[str, ...]
    """What follows `python`: options, script, arguments; `torchrun` as first word takes python's place."""
    verdict: str
    """clean, diverged or inconclusive"""
    step: int | None = None
    """Expected first divergent step; None: any."""
    leaf_glob: str = ""
    """Globs for the expected first divergent leaf, or for the unsupported one; alternatives parted by `|`."""
    kind: str = ""
    """value, missing, shape or dtype, alternatives parted by `|`; empty: any."""
    why: str = ""
    """The row of facts/pytorch-determinism.md section 3, the issue or the rule that the case models."""
    marks: tuple[str, ...] = ()
    """slow: compiles; threads: races between two CPU threads; ranks: several trails; tail."""
    status: int = 0
    """Exit status of the program itself; negative: killed by that signal."""
    status_b: int | None = None
    """Exit status of the second run in the same directory, where it is another one."""
    warning: str = ""
    """Glob for a warning that must stand beside the verdict, in lower case."""

    def command(self, python: str = sys.executable) -> list[str]:
        """The full command line, with absolute paths."""
        words = [str(ZOO / word) if word.endswith(".py") else word for word in self.argv]
        if words[0] == "torchrun":
            return [str(Path(python).with_name("torchrun")), "--standalone", *words[1:]]
        return [python, *words]

    def environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The user's environment: no hash seed, and this folder importable for `python -m`."""
        env = {key: value for key, value in base.items() if key != "PYTHONHASHSEED"}
        if self.argv[0] == "-m":
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ZOO), base.get("PYTHONPATH", "")]))
        return env

    @property
    def differs(self) -> bool:
        """Whether the digests printed by two plain runs differ."""
        return self.verdict == "diverged"


def _clean(name: str, *argv: str, why: str, **more: object) -> Case:
    return Case(name, argv or (f"{name}.py",), "clean", why=why, **more)  # type: ignore[arg-type]


CLEAN = [
    _clean("mlp", why="baseline"),
    _clean("gan", why="two optimizers, each with its own steps"),
    _clean("grad_accumulation", why="several backward calls to one step"),
    _clean("grad_scaler", why="row 40: a skipped update (step 3) in both runs"),
    _clean("checkpointing", why="rows 21, 22: recomputation, with dropout and BatchNorm"),
    _clean("lbfgs", why="a closure called several times in one step"),
    _clean("closure_adamw", why="Lightning: forward and backward inside optimizer.step(closure=...)"),
    _clean("inplace_relu", why="facts 0.8: in-place edits of module outputs"),
    _clean("weight_tying", why="one parameter under two names"),
    _clean("compiled", why="facts 4.2: torch.compile, eager backend", marks=("slow",)),
    _clean("compiled_inductor", "compiled.py", "--backend", "inductor", why="torch.compile, Inductor", marks=("slow",)),
    _clean(
        "ddp_gloo", "torchrun", "--nproc-per-node", "2", "ddp_gloo.py",
        why="row 36: DDP on gloo; a trail a rank, the launcher leaves none", marks=("ranks",),
    ),
    _clean("mp_spawn", why="ranks that the script starts itself", marks=("ranks",)),
    _clean("thread_training", why="training in a thread other than main"),
    _clean("loader_workers_fork", "loader_workers.py", "--start-method", "fork", why="rows 6, 7 done right"),
    _clean("loader_workers_spawn", "loader_workers.py", "--start-method", "spawn", why="rows 6, 7 done right"),
    _clean("iterable_dataset", why="no sampler: only the batch can be digested"),
    _clean("manual_sgd", why="no optimizer: one backward is one step", warning="*optimizer*"),
    _clean("ema_swa", why="weights changed after the last update; digested again at exit"),
    _clean("lr_scheduler", why="hyper-parameters of two param groups are leaves"),
    _clean("sparse_embedding", why="sparse gradients"),
    _clean("complex_params", why="complex and conjugate tensors"),
    _clean("bf16_model", why="bfloat16 parameters and optimizer state"),
    _clean("bool_mask", why="bool inputs, keyword inputs"),
    _clean("autocast_bf16", why="bfloat16 activations over float32 parameters"),
    _clean("trainer_class", why="model and optimizer are attributes, not variables"),
    _clean("raw_tensors", why="an optimizer over tensors of no module: opt[i]"),
    _clean("transformer_encoder", why="facts 4.1: the fast path must stay on"),
    _clean("rnn_lstm", why="nested tuple outputs, packed sequences"),
    _clean("chatty_stdout", why="much and binary stdout; differing stdout is only a warning", warning="*stdout*"),
    _clean("fork_child", why="a forked child must not write into the parent's trail"),
    _clean("os_exit", why="no atexit handler runs"),
    _clean("tiny_package", "-m", "tiny_package", why="python -m package"),
    _clean("eval_between", why="rows 3, 4 done right: evaluation on its own generator"),
    _clean("last_batch_smaller", why="shapes change from step to step"),
    _clean("pickling", why="no hook or attribute may stick to what is pickled or deep-copied"),
    _clean("gradient_penalty", why="double backward; autograd.grad inside a step is no step"),
    _clean("unfreeze_later", why="param groups grow; parameters without a gradient"),
    _clean("odd_tensors", why="empty, 0-dim, strided, expanded, sparse, bool, uint8 leaves"),
    _clean("func_transforms", why="functorch wrappers have no memory: they reach forward hooks; no backward() call"),
    _clean("storage_freed", why="facts digests: `.numpy()` would pin the storage; cached pointers go stale"),
    _clean("environ_cleared", why="environment and directory change; a Python child without the recorder"),
    _clean("user_hooks", why="the user's own hooks keep working"),
    _clean("structured_outputs", why="dataclass, dict and named-tuple outputs and inputs; fused AdamW"),
    _clean("strict_warnings", "-W", "error", "mlp.py", why="the recorder raises no warning"),
]  # fmt: skip


def _fault(name: str, leaf_glob: str, step: int | None, why: str, *argv: str, **more: object) -> Case:
    return Case(name, argv or (f"{name}.py",), "diverged", step, leaf_glob, why=why, **more)  # type: ignore[arg-type]


FAULTS = [
    _fault(
        "race_gather_backward", "grad.*", None, "row 16: backward of x[idx]; forward leaves equal", marks=("threads",),
    ),
    _fault("race_index_put", "input.*", None, "row 16: index_put_ accumulate, ahead of the module", marks=("threads",)),
    _fault("race_duplicate_write", "act.*|buffer.*", None, "row 17: whole values change", marks=("threads",)),
    _fault(
        "race_permuted_tree", "input.*|act.*|loss*", None,
        "issue 2, tree-rebuild-race: no leaf holds the tree; its first consumer is named", marks=("threads",),
    ),
    _fault("unseeded_default_rng", "batch.*", 0, "row 2: sampler and global generators equal"),
    _fault("unseeded_python_shuffle", "input.*|batch.*", 0, "python's generator decides bits, but is only context"),
    _fault("time_seed", "rng.torch|init.*", 0, "row 1"),
    _fault("hash_seed", "rng.torch|init.*", 0, "row 9: hash() of a string as a seed"),
    _fault("set_order_labels", "loss*", 0, "row 9: hand-made targets are no module's input"),
    _fault("address_order", "input.*", 0, "row 9: id() order"),
    _fault("tempfile_order", "input.*", None, "row 10: file names from tempfile decide the order"),
    _fault("uninitialised_param", "init.param.*up", 0, "row 20"),
    _fault("unseeded_layer", "init.param.*frequency", 0, "row 1, stable-baselines3#292: one part unseeded"),
    _fault("unseeded_sampler", "rng.loader*|rng.sampler*|sampler.*", 0, "row 15: the sampler's own generator"),
    _fault("unseeded_forward_noise", "act.*", 0, "row 2, inside forward"),
    _fault("host_thread_race", "input.*", None, "row 23"),
    _fault("async_rollouts", "input.*", None, "row 8"),
    _fault("loader_out_of_order", "batch.*|sampler.*", None, "row 8: in_order=False"),
    _fault("racing_rng_draw", "rng.torch|init.*|input.*|act.*", None, "row 4: an extra consumer that races"),
    _fault("late_reseed", "rng.torch|act.*", 5, "issue 2, prng-drift, late"),
    _fault("resume_checkpoint", "init.*|rng.torch", 0, "rows 11-13: run B resumes from A's file (created_files)"),
    _fault("clock_feature", "input.*", None, "the clock as data"),
    _fault("clock_lr", "optim.*", 0, "a hyper-parameter; gradients of the step are equal"),
    _fault("clock_buffer", "buffer.*", 0, "a buffer alone differs"),
    _fault("sgld_optimizer", "param.*|optim.*", 0, "noise inside the update; gradients of the step are equal"),
    _fault("tail_noise", "param.*", None, "after the last update: found in the tail, not in a step", marks=("tail",)),
    _fault("random_batch_size", "input.*", None, "shapes differ", kind="shape"),
    _fault("stochastic_depth", "act.*", None, "control flow: modules of one run only", kind="missing|value"),
    _fault("time_budget", "*", None, "one run has more steps", kind="missing"),
    _fault(
        "scaler_skip_once", "grad.*|param.*|optim.*|skipped*", None, "row 40: one run skips an update",
        kind="missing|value", marks=("threads",),
    ),
    _fault("gan_unseeded_latent", "input.G.*", 7, "two optimizers: `step 7, opt_g` is the fourth turn of opt_g"),
    _fault(
        "ddp_one_rank", "input.*", 0, "Megatron-LM#6610: `first` is per rank; rank 1 has it",
        "torchrun", "--nproc-per-node", "2", "ddp_one_rank.py", marks=("ranks",),
    ),
]  # fmt: skip

CONTROLS = [
    Case(f"{case.name}_fixed", (*case.argv, "--fixed"), "clean", why=f"control of {case.name}", marks=case.marks)
    for case in FAULTS
    if case.name != "time_seed"
] + [Case("time_seed_fixed", ("time_seed.py", "--seed", "59"), "clean", why="control of time_seed")]
"""Each fault taken away: the same program must be clean."""

CLEAN_WITH_WARNING = [
    _clean("harmless_unseeded", why="row 2: consumed, unseeded, decides nothing", warning="*seed*"),
    _clean("manual_autograd", why="no optimizer: torch.autograd.grad counts as a backward call", warning="*optimizer*"),
    _clean("nan_both", why="NaN in the same bits in both runs, from step 2", warning="*nan*"),
]

INCONCLUSIVE = [
    Case("never_trains", ("never_trains.py",), "inconclusive", why="nothing recorded"),
    Case("evaluates_only", ("evaluates_only.py",), "inconclusive", why="no step"),
    Case("crash_step_50", ("crash_step_50.py",), "inconclusive", why="a failing child; last whole step 49", status=1),
    Case("exit_three", ("exit_three.py",), "inconclusive", why="a failing child, all 8 steps equal", status=3),
    Case("sigkill_self", ("sigkill_self.py",), "inconclusive", why="killed in step 6; 0-5 are readable", status=-9),
    Case("meta_input", ("meta_input.py",), "inconclusive", leaf_glob="input.*", why="an unsupported leaf is named"),
    Case("quantised_input", ("quantised_input.py",), "inconclusive", leaf_glob="input.*", why="unsupported leaf"),
    Case(
        "second_run_fails", ("second_run_fails.py",), "inconclusive", status_b=1,
        why="run A leaves a folder that run B refuses to overwrite",
    ),
    Case("isolated_python", ("-I", "mlp.py"), "inconclusive", why="python -I cannot import the recorder"),
    Case("no_environment", ("-E", "mlp.py"), "inconclusive", why="python -E ignores PYTHONPATH"),
]  # fmt: skip

CASES: list[Case] = [*CLEAN, *CLEAN_WITH_WARNING, *FAULTS, *CONTROLS, *INCONCLUSIVE]
