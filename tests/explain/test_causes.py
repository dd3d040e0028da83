"""The catalogue is whole and sound, and the ranking claims no more than the evidence holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from detaudit.core.axes import AXES
from detaudit.core.errors import UnreadableError
from detaudit.core.model import Divergence, DivergenceKind, Explanation, ExplanationKind, Outcome, Toggle, Verdict
from detaudit.explain.catalogue import SCOPES, TABLE, Signature, catalogue, read
from detaudit.explain.causes import rank, ranked
from detaudit.explain.evidence import Evidence, source_of
from detaudit.explain.toggles import Pair, explained
from tests.zoo.expectations import FAULTS, ZOO

SEED_ENTRY = """
[[cause]]
id = "one"
rows = [1]
title = "a title"
explains = "why"
fix = "code()"
sources = ["pytorch#1"]
[cause.when]
leaf = ["grad.*"]
"""


class TestCatalogue:
    def test_every_row_of_the_survey_has_an_entry(self):
        assert {row for entry in catalogue() for row in entry.rows} == set(range(1, 42))
        assert len(catalogue()) > 41

    @pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.id)
    def test_entry(self, entry):
        assert entry.title and entry.explains.endswith(".") and entry.sources and entry.scope in SCOPES
        assert entry.fix == entry.fix.strip("\n") and "\t" not in entry.fix
        if entry.scope == "silent":
            assert entry.when == Signature() and entry.untested
        else:
            assert entry.when.leaf, "without a leaf a cause fits everything"
        if entry.scope != "runs" or "cuda" in entry.when.needs:
            assert entry.untested, "no test here can reproduce it, and the entry has to say so"

    @pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.id)
    def test_a_fix_in_python_can_be_pasted(self, entry):
        if entry.fix.startswith(("export ", "mkdir ")):
            return
        try:
            compile(entry.fix, entry.id, "exec")
        except (IndentationError, SyntaxError):  # the head of a block: its body is the user's
            compile(f"{entry.fix}\n    pass", entry.id, "exec")

    def test_the_default_table_is_beside_the_code(self):
        assert read(TABLE) == catalogue()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("", "[[cause", "cannot be read"),
        (SEED_ENTRY, "", "a list of [[cause]] tables and nothing else"),
        (SEED_ENTRY, SEED_ENTRY + SEED_ENTRY, "the id 'one' stands for 2 causes"),
        ('title = "a title"\n', "", "cause 1 (one): title is missing"),
        ('id = "one"\n', "", "cause 1 (without id): id is missing"),
        ("explains", "explain", "explains is missing"),
        ("rows = [1]", 'rows = ["1"]', "rows = ['1'] is not a list of int"),
        ("rows = [1]", "rows = [1]\nsince = 2", "unknown key 'since'; the legal ones are id, rows,"),
        ('fix = "code()"', 'fix = ""', "must say something"),
        ('fix = "code()"', "fix = 3", "fix = 3 is not a text"),
        ('fix = "code()"', 'fix = "code()"\nscope = "world"', "scope = 'world' is not one of runs, machines"),
        ("leaf =", "leafs =", "cause 1 (one), when: unknown key 'leafs'"),
        ('leaf = ["grad.*"]', 'leaf = "grad.*"', "leaf = 'grad.*' is not a list of str"),
        ("leaf =", 'step = "last"\nleaf =', "step = 'last' is not one of first, later"),
        ("leaf =", 'removed_by = ["threads"]\nleaf =', "removed_by = 'threads' is not one of compile-off"),
        ("leaf =", 'drill = ["ops"]\nleaf =', "drill = 'ops' is not one of"),
        ("leaf =", 'needs = ["gpu"]\nleaf =', "needs = 'gpu' is not one of"),
        ("leaf =", 'mentions = ["("]\nleaf =', "mentions = '(' is no regular expression"),
    ],
)
def test_a_mistake_in_the_table_is_named(tmp_path, old, new, words):
    path = tmp_path / "mine.toml"
    path.write_text(SEED_ENTRY.replace(old, new) if old else SEED_ENTRY + new)
    with pytest.raises(UnreadableError) as caught:
        read(path)
    assert words in str(caught.value)


def test_a_missing_table(tmp_path):
    with pytest.raises(UnreadableError, match=r"none\.toml"):
        read(tmp_path / "none.toml")


def tried(**diverged: int) -> dict[str, Toggle]:
    """Two pairs of each named axis (underscores for hyphens), so many of them diverged."""
    names = {name.replace("_", "-"): count for name, count in diverged.items()}
    return {name: Toggle(name, 2, count) for name, count in names.items()}


def gone(name: str) -> dict[str, Toggle]:
    return {name: Toggle(name, 2, 0), "plain": Toggle("plain", 2, 2)}


CPU = frozenset({"cuda", "ranks", "created-files"})
RACE = Evidence(
    leaf="grad.model.features", drill="operator", operator="aten.index_put_.default", size="rounding", absent=CPU
)

ZOO_CAUSES = {
    # case: (first leaf, what else the audit would know, causes of which one must come first)
    "race_gather_backward": ("grad.model.features", {"drill": "operator", "operator": "index_put"}, "index-put-race"),
    "race_index_put": ("input.net.0", {"drill": "operator", "operator": "index_put_"}, "index-put-race"),
    "race_duplicate_write": (
        "act.model.read",
        {"drill": "operator", "operator": "index_put_", "line": "self.memory[slot] = value", "size": "large"},
        "duplicate-index-write",
    ),
    "race_permuted_tree": ("input.q.0", {"drill": "operator", "operator": "index_put_"}, "index-put-race"),
    "unseeded_default_rng": ("batch.loader.0", {"drill": "outside"}, "unseeded-numpy"),
    "unseeded_python_shuffle": ("input.model.0", {"drill": "outside"}, "unseeded-python"),
    "time_seed": ("rng.torch", {"drill": "rng"}, "clock-seed"),
    "hash_seed": ("rng.torch", {"drill": "rng"}, "salted-hash-seed"),
    "set_order_labels": ("loss", {"drill": "outside"}, "string-set-order"),
    "address_order": ("input.model.0", {"drill": "control-flow"}, "address-order"),
    "tempfile_order": ("input.model.0", {"drill": "outside"}, "random-file-names"),
    "uninitialised_param": ("init.param.model.up", {"drill": "memory"}, "uninitialised-memory"),
    "unseeded_layer": ("init.param.fourier.frequency", {"drill": "rng"}, "unseeded-torch-generator"),
    "unseeded_sampler": ("rng.loader.loader.sampler", {"drill": "rng"}, "unseeded-torch-generator"),
    "unseeded_forward_noise": ("act.model.1", {"drill": "outside"}, "unseeded-numpy"),
    "host_thread_race": ("input.model.0", {"drill": "outside"}, "host-buffer-race"),
    "async_rollouts": ("input.critic.0", {"drill": "outside"}, "completion-order"),
    "loader_out_of_order": ("batch.loader.0", {"drill": "outside"}, "loader-out-of-order"),
    "racing_rng_draw": ("rng.torch", {"drill": "rng", "step": 3}, "shared-generator-race"),
    "late_reseed": ("rng.torch", {"drill": "rng", "step": 5}, "reseeded-mid-run"),
    "resume_checkpoint": ("init.param.model.0.weight", {"made": True}, "reads-earlier-output"),
    "clock_feature": ("input.model.0", {"drill": "outside", "step": 1}, "clock-as-data"),
    "clock_lr": ("optim.optimizer.group0.lr", {"drill": "outside"}, "clock-as-data"),
    "clock_buffer": ("buffer.model.clock", {"drill": "outside"}, "clock-as-data"),
    "sgld_optimizer": ("param.model.0.weight", {"drill": "outside"}, "unseeded-numpy"),
    "tail_noise": ("param.model.0.weight", {"drill": "outside", "step": 6}, "unseeded-numpy"),
    "random_batch_size": ("input.model.0", {"drill": "control-flow", "kind": "shape"}, "unseeded-python"),
    "stochastic_depth": ("act.net.blocks.1", {"drill": "control-flow", "kind": "missing"}, "unseeded-python"),
    "time_budget": ("step", {"drill": "unproven", "kind": "missing", "step": 400}, "time-budget"),
    "scaler_skip_once": ("skipped", {"drill": "", "kind": "missing", "step": 12}, "skipped-update"),
    "gan_unseeded_latent": ("input.G.0", {"drill": "outside", "step": 7}, "unseeded-numpy"),
    "ddp_one_rank": ("input.model.0", {"drill": "outside"}, "unseeded-numpy"),
}


def zoo_evidence(name: str) -> Evidence:
    leaf, known, _ = ZOO_CAUSES[name]
    facts = {"loader"} if leaf.startswith(("batch", "sampler", "rng.loader")) else set()
    known = dict(known)
    if known.pop("made", False):
        facts.add("created-files")
    absent = frozenset({"cuda", "ranks", "created-files", "loader", "one-thread"} - facts)
    return Evidence(
        leaf=leaf, source=source_of([str(ZOO / f"{name}.py")]), facts=frozenset(facts), absent=absent, **known
    )


class TestZoo:
    def test_every_fault_of_the_zoo_is_in_the_table(self):
        assert set(ZOO_CAUSES) == {case.name for case in FAULTS}

    @pytest.mark.parametrize("name", ZOO_CAUSES)
    def test_the_right_cause_comes_first(self, name):
        causes = rank(zoo_evidence(name))
        assert causes[0].id == ZOO_CAUSES[name][2], [(fit.entry.id, fit.signs) for fit in ranked(zoo_evidence(name))]
        assert causes[0].support == "signature" and "no experiment confirms it" in causes[0].against

    @pytest.mark.parametrize("name", ZOO_CAUSES)
    def test_and_is_no_less_with_an_experiment_of_its_own(self, name):
        wanted = ZOO_CAUSES[name][2]
        entry = next(entry for entry in catalogue() if entry.id == wanted)
        for axis in entry.when.removed_by:
            evidence = zoo_evidence(name)
            kept = tried(deterministic=2) if axis == "deterministic-fill" else {}
            best = rank(replace(evidence, toggles={**gone(axis), **kept}))[0]
            assert (best.id, best.support) == (wanted, "experiment")

    def test_every_cause_that_is_not_marked_untested_is_met_by_a_program(self):
        met = {wanted for *_, wanted in ZOO_CAUSES.values()}
        open_ids = {entry.id for entry in catalogue() if not entry.untested} - met
        assert open_ids <= {"no-seed", "extra-loader-iteration", "evaluation-draws", "operator-race"}


RACES = ("deterministic", "deterministic-fill", "threads-1")
CURES = {
    **dict.fromkeys([name for name in ZOO_CAUSES if name.startswith(("race_", "scaler"))], RACES),
    **dict.fromkeys(["hash_seed", "set_order_labels"], ("hash-seed",)),
    **dict.fromkeys([name for name, (*_, cause) in ZOO_CAUSES.items() if cause.startswith("unseeded")], ("entropy",)),
    "tempfile_order": ("entropy",),
    "uninitialised_param": ("deterministic-fill",),
    "loader_out_of_order": ("workers-0",),
}
"""Which axes really take a fault away; the others have none that does. A skipped update is only the mark of a race
before it: an axis catches the race, and proves nothing about the skip."""


@pytest.mark.parametrize("name", ZOO_CAUSES)
def test_the_suggested_toggles_lead_to_the_cause(name):
    """The experiments of a plain check, with pairs that end as they must for this fault."""
    evidence = zoo_evidence(name)
    first = Divergence(evidence.step, evidence.leaf, DivergenceKind(evidence.kind))
    found = Explanation(ExplanationKind(evidence.drill or "unproven"), 0, evidence.operator, code=evidence.line)
    verdict = Verdict(
        Outcome.DIVERGED,
        "they differ",
        first_divergence=first,
        explanation=found if evidence.drill else None,
        command=("python", str(ZOO / f"{name}.py")),
        created_files=("checkpoint.pt",) if "created-files" in evidence.facts else (),
    )
    cures = CURES.get(name, ())
    settled = name == "resume_checkpoint"
    tried = []

    def pair(axis):
        tried.append(axis)
        return Pair(not (settled or axis in cures))

    cause = explained(verdict, (), pair).explanation.cause
    assert cause.id == ZOO_CAUSES[name][2], (cause, tried)
    assert (cause.support == "experiment") == (bool(cures) and name != "scaler_skip_once"), (cause, tried)
    assert len(set(tried) - {"plain"}) <= 3


class TestSupport:
    def test_the_flag_alone_proves_no_race(self):
        plain = Evidence(leaf="grad.w", absent=CPU)
        alone = rank(plain.after(list(gone("deterministic").values())))[0]
        assert alone.id == "index-put-race" and alone.support != "experiment"
        assert "the deterministic flag alone proves no race" in alone.against
        both = rank(plain.after([*gone("deterministic").values(), Toggle("threads-1", 2, 0)]))[0]
        assert both.support == "experiment"
        assert rank(RACE.after(list(gone("deterministic").values())))[0].support == "experiment"

    def test_fill_proves_memory_only_where_the_flag_without_it_does_not_help(self):
        memory = Evidence(leaf="param.up", drill="memory", absent=CPU)
        alone = rank(memory.after(list(gone("deterministic-fill").values())))[0]
        assert alone.id == "uninitialised-memory" and alone.support == "signature"
        assert "which a kernel's race would explain as well" in alone.against
        assert rank(replace(memory, toggles={**gone("deterministic-fill"), **tried(deterministic=2)}))[0].support == (
            "experiment"
        )
        both = rank(replace(memory, toggles={**gone("deterministic-fill"), **gone("deterministic")}))[0]
        assert both.id == "uninitialised-memory" and both.support == "signature"

    def test_an_experiment_without_plain_pairs_that_diverge_is_none(self):
        for plain in ([], [Toggle("plain", 2, 0)]):
            found = rank(RACE.after([Toggle("threads-1", 2, 0), *plain]))[0]
            assert found.support == "signature"

    def test_a_toggle_that_changes_nothing_speaks_against_its_causes(self):
        evidence = zoo_evidence("unseeded_default_rng").after([Toggle("entropy", 2, 2), Toggle("plain", 2, 2)])
        numpy = next(cause for cause in rank(evidence) if cause.id == "unseeded-numpy")
        assert "it was still there with fixed entropy" in numpy.against and numpy.support == "weak"

    def test_thin_evidence_is_called_thin(self):
        found = rank(Evidence(leaf="grad.w"))[0]
        assert found.support == "weak" and "thin evidence: only the leaf fits" in found.against

    def test_an_experiment_says_how_many_pairs_it_rests_on(self):
        found = rank(RACE.after(list(gone("threads-1").values())))[0]
        assert (
            "few pairs: on one intra-op thread 0 of 2 pairs diverged (95 % interval of the rate: 0 to 85 %)"
            in found.against
        )
        assert "with nothing changed 2 of 2 pairs diverged" in found.against

    def test_an_undirected_axis_proves_nothing(self):
        for name in (name for name, axis in AXES.items() if not axis.directed):
            assert not RACE.after(list(gone(name).values())).removed(name)

    def test_no_cause_for_what_nothing_fits(self):
        assert rank(Evidence(leaf="my.own.leaf")) == []
        assert rank(Evidence(leaf="my.own.leaf", source="import time\ntime.time()\n")) == []


class TestPlausible:
    def test_machines_need_manifests_that_differ(self):
        evidence = Evidence(leaf="act.net", size="rounding")
        assert "thread-count" not in {cause.id for cause in rank(evidence)}
        assert rank(replace(evidence, differs=frozenset({"threads"})))[0].id == "thread-count"

    def test_facts_known_to_be_otherwise_exclude(self):
        conv = Evidence(leaf="grad.conv", drill="operator", operator="aten.cudnn_convolution.default")
        assert "cudnn-algorithm" in {cause.id for cause in rank(replace(conv, facts=frozenset({"cuda"})))}
        assert "cudnn-algorithm" not in {cause.id for cause in rank(replace(conv, absent=CPU))}
        one = replace(RACE, facts=frozenset({"one-thread"}))
        assert "index-put-race" not in {cause.id for cause in rank(one)}

    def test_silent_causes_explain_no_divergence(self):
        everything = {cause.id for leaf in ("batch.0", "rng.torch", "sampler.x") for cause in rank(Evidence(leaf=leaf))}
        assert not everything & {entry.id for entry in catalogue() if entry.scope == "silent"}


def test_words_in_comments_are_no_code(tmp_path):
    script = tmp_path / "train.py"
    script.write_text('"""default_rng() is used."""\n# as_completed()\nx = set(names)\n')
    assert source_of(["python", str(script)]) == "x = set(names)\n"
    script.write_text("not python (")
    assert source_of(["python", str(script)]) == "not python (\n"
    assert source_of(["python", str(Path(tmp_path) / "absent.py")]) == ""
