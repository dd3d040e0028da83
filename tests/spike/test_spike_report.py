from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import spike_runs
from spike_dumps import DumpSpec, Effect, write
from spike_runs import Spec

from detaudit.core.errors import UnreadableError, UsageError
from detaudit.spike import present, results, svg, tables
from detaudit.spike.detect import detect
from detaudit.spike.present_html import html
from detaudit.spike.read_dump import find_dumps, read_dump
from detaudit.spike.select import select
from detaudit.spike.sources import load
from detaudit.spike.trace import trace
from detaudit.spike.wording import word


@pytest.fixture(scope="module")
def phases(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    root = tmp_path_factory.mktemp("report")
    written = spike_runs.write(Spec(gain=5.0), root / "run")
    p1 = detect(load(written.path, written.kind))
    spec = DumpSpec(layers=5, effects=(Effect(layers=(2, 3, 4), factor=1.4),), drop=(("B", "layers.1.mlp"),))
    folders = write(spec, root / "dumps")
    p3 = trace({side: read_dump(find_dumps(folders[side])[0]) for side in "ABCD"})
    return p1, select(p1), p3


class Checker(HTMLParser):
    """Collects tags and fails on what does not close."""

    VOID = frozenset({"meta", "line", "path", "circle", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_tables_of_the_seed_are_there(phases: Any) -> None:
    titles = [table.title for section in tables.sections(*phases, "en") for table in section.tables]
    assert titles[:4] == ["Data overview", "Candidate coordinates", "Across optimizer steps", "Candidate coordinates"]
    assert "Directions" in titles and "Starts per metric" in titles and "Layers not compared" in titles
    head = next(
        table.head for section in tables.sections(*phases, "en") for table in section.tables if "Anchor" in table.title
    )
    assert head[:8] == ["L", "F_A", "F_B", "F_C", "F_D", "F_A/B", "F_C/D", "F anomaly"] and len(head) == 15


def test_every_phase_ends_in_problem_evidence_and_advice(phases: Any) -> None:
    for section in tables.sections(*phases, "en"):
        names = [name for name, _ in section.statements]
        assert names[0] == "Problem" and "Evidence" in names and "Advice" in names
    impact = dict(tables.phase2_section(phases[1], "en").statements)["Impact"]
    assert impact.startswith("unproven (data-borne, hardware-borne)")


def test_flags_and_gaps_are_marked_in_the_layer_table(phases: Any) -> None:
    mlp = next(anchor for anchor in phases[2]["anchors"] if anchor["name"] == "mlp")
    rows = tables.layer_table(mlp, lambda text: text).rows
    assert "F!" in rows[2][7] and "F!" not in rows[0][7] and rows[1][7] == "-"
    assert "B!" not in rows[2][14]


def test_normal_is_refused_while_a_layer_was_not_compared(phases: Any) -> None:
    directions = next(t for t in tables.phase3_section(phases[2], "en").tables if t.title == "Directions")
    by_name = {row[0]: row for row in directions.rows}
    assert by_name["backward"][1] == "undecided" and "does not mean normal" in by_name["backward"][4]
    for page in (
        present.text("x", tables.sections(*phases, "en")),
        present.markdown("x", tables.sections(*phases, "en")),
    ):
        assert "consistent" not in page


def test_a_checksum_divergence_has_its_table(phases: Any) -> None:
    found = {
        **phases[2]["checksum_divergence"],
        "verdict": "gap",
        "operator": "Torch.pow.0.forward",
        "unmatched": ["x"],
    }
    titles = [t.title for t in tables.phase3_section(phases[2], "en").tables]
    assert "Checksums of A and B" not in titles, "these dumps carry none"
    table = tables.phase3_section({**phases[2], "checksum_divergence": found}, "en").tables[-1]
    assert table.title == "Checksums of A and B" and ["Operator", "Torch.pow.0.forward"] in table.rows


def test_what_was_not_seen_and_questions_stand_in_the_report(phases: Any) -> None:
    p1 = {**phases[0], "not_seen": ["rank(s) 7 were not recorded"], "questions": ["K?"], "outcome": "question"}
    text = present.text("x", tables.sections(p1, None, None, "en"))
    assert "Not seen: rank(s) 7 were not recorded" in text and "Question: K?" in text


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_equal_input_gives_equal_bytes(phases: Any, lang: str, form: str) -> None:
    def render() -> str:
        sections = tables.sections(*phases, lang)
        if form == "html":
            return html("t", sections, *phases, lang)
        return {"text": present.text, "markdown": present.markdown}[form]("t", sections)

    assert render() == render() and render().endswith("\n")


def test_chinese_headings_are_the_seeds(phases: Any) -> None:
    text = present.text(word("Spike localisation", "zh"), tables.sections(*phases, "zh"))
    for heading in (
        "Spike 根因定位分析",
        "数据总览",
        "候选根因坐标",
        "跨 step 判定",
        "方向判定汇总",
        "未对齐层 uncompared_layers",
        "F异常",
        "偏离",
        "问题",
        "证据",
        "建议",
    ):
        assert heading in text
    assert word("no such heading", "zh") == "no such heading"


def test_columns_align_under_wide_characters() -> None:
    table = tables.Table("t", ["参数", "x"], [["a", "1"], ["很长的名字", "2"]])
    lines = present.text("t", [tables.Section("s", [table])]).splitlines()
    rows = [line for line in lines if line.endswith(("x", "1", "2")) and line.startswith("  ")]
    assert len({present._width(line) for line in rows}) == 1


def test_markdown_escapes_pipes() -> None:
    table = tables.Table("t", ["a"], [["x|y"]])
    assert "| x\\|y |" in present.markdown("t", [tables.Section("s", [table])])


def test_the_page_is_well_formed_and_self_contained(phases: Any) -> None:
    page = html("a < b", tables.sections(*phases, "en"), *phases, "en")
    checker = Checker()
    checker.feed(page)
    assert checker.open == [] and checker.seen["svg"] >= 2 + 2 * 3
    assert "a &lt; b" in page and "http" not in page.replace("http://www.w3.org/2000/svg", "") and "<script" not in page


def test_the_root_is_marked_in_curve_and_heat(phases: Any) -> None:
    p1, p2, _ = phases
    page = html("t", tables.sections(p1, p2, None, "en"), p1, p2, None, "en")
    assert f'fill="none" stroke="{svg.ROOT_COLOUR}" stroke-width="2"/>' in page and ">root<" in page
    assert 'stroke="#111"' in page
    moved = {**p2, "root_cause_coordinate": {**p2["root_cause_coordinate"], "micro_step": 3}}
    assert ">root<" not in html("t", tables.sections(p1, moved, None, "en"), p1, moved, None, "en")


def test_phase_one_without_anomalies_draws_no_curve(tmp_path: Path) -> None:
    written = spike_runs.write(Spec(scope="none", ranks=2, steps=4), tmp_path)
    p1 = detect(load(written.path, written.kind))
    page = html("t", tables.sections(p1, select(p1), None, "en"), p1, select(p1), None, "en")
    assert page.count("<svg") == 1 and "no abnormal gradient: none seen" in page


def test_charts_survive_gaps_zeros_and_single_values() -> None:
    lines = svg.lines("t", ["0", "1", "2"], [("a", [None, 0.0, 5.0], False), ("b", [None] * 3, True)], None, "root")
    assert lines.startswith("<svg") and "nan" not in lines
    assert "nan" not in svg.lines("t", [], [], (0, 0.0), "root")
    assert "#d9d9d9" in svg.heat("t", ["r"], ["0", "1"], [[None, 4.0]], (0, 1))
    ratios = svg.ratios("t", ["0", "1"], [-1.5, None], [1.0, None], (0.9, 1.1), [True, False], "bound")
    assert svg.ROOT_COLOUR in ratios and "nan" not in ratios


def test_long_tables_say_how_much_they_left_out(phases: Any) -> None:
    p1 = {**phases[0], "groups": phases[0]["groups"][:1] * 80}
    candidates = tables.phase1_section(p1, "en").tables[1]
    assert len(candidates.rows) == tables.MAX_ROWS and candidates.note == "... 20 more"


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (1.23456, "1.235"), (7, "7"), ("x", "x"), (1e-9, "1e-09")])
def test_values_are_shown(value: Any, text: str) -> None:
    assert tables.show(value) == text


def test_results_are_strict_json_and_written_whole(tmp_path: Path, phases: Any) -> None:
    path = tmp_path / "p1.json"
    results.write(path, results.dumps(phases[0]))
    assert results.load(path, 1) == json.loads(json.dumps(phases[0])) and [p.name for p in tmp_path.iterdir()] == [
        "p1.json"
    ]
    with pytest.raises(ValueError, match="JSON compliant"):
        results.dumps({"x": float("nan")})


@pytest.mark.parametrize(
    ("text", "says"), [("{", "cut short"), ('{"phase": 2, "outcome": "x"}', "phase 2"), ("[]", "phase None")]
)
def test_files_of_another_kind_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "p1.json"
    path.write_text(text)
    with pytest.raises(UnreadableError, match=says):
        results.load(path, 1)
    with pytest.raises(UnreadableError, match="cannot read"):
        results.load(tmp_path / "none.json", 1)


def test_an_unwritable_place_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give another path"):
        results.write(tmp_path / "no" / "p1.json", "{}")
