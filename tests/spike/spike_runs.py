"""Generates monitor data with a known answer, and says beforehand whether the data determine it.

Per rank, optimizer step, micro-step and parameter a gradient norm g = base * exp(N(0, noise)); accumulated norms follow
n_i^2 = n_{i-1}^2 + g^2 + 2 rho n_{i-1} g with rho ~ U(-0.1, 0.3). A spike multiplies g at (rank, step, micro-step,
parameter) by a factor, and at shallower parameters by factor * decay^distance. Contamination multiplies every rank's
gradients from the next step on.
"""

from __future__ import annotations

import csv
import math
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from detaudit.spike.order_statistics import t_quantile

MODULES = ("mlp", "self_attention", "input_layernorm")
RHO = (-0.1, 0.3)
DETERMINED, INSUFFICIENT, FREE, CLEAN = "determined", "insufficient", "free", "clean"


@dataclass(frozen=True)
class Spec:
    """One generated run. `scope` is one or all; `value` replaces the factor by nan or inf; `layout` is csv, csv_v2,
    trend_flat or trend_micro."""

    seed: int = 0
    ranks: int = 4
    layers: int = 2
    steps: int = 8
    window: int = 4
    mode: str = "cumulative"
    layout: str = "csv"
    reduced: bool = True
    noise: float = 0.1
    common_noise: float = 0.0
    slope: float = 0.0
    scope: str = "one"
    rank: int = 1
    step: int = 4
    micro: int = 1
    target: int = 2
    factor: float = 50.0
    decay: float = 0.7
    value: str = ""
    gain: float = 1.0
    gain_steps: int = 10**6
    missing: tuple[int, ...] = ()
    silent_targets: int = 0
    tiny_targets: int = 0
    restart: bool = False
    pp_local: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters in hook-firing order, deep to shallow."""
        inner = [f"module.decoder.layers.{n}.{m}.weight" for n in reversed(range(self.layers)) for m in MODULES]
        return ("module.head.weight", *inner, "module.embedding.weight")

    @property
    def layer_of(self) -> tuple[int, ...]:
        """Depth of every parameter: 0 for the head, growing towards the embedding."""
        return (0, *(1 + i // len(MODULES) for i in range(self.layers * len(MODULES))), self.layers + 1)

    @property
    def spiked(self) -> bool:
        return self.scope in ("one", "all")


@dataclass(frozen=True)
class Truth:
    """The injected coordinate and what the recorded data determine of it. `rank` is None when all ranks spiked."""

    label: str
    rank: int | None = None
    step: int | None = None
    micro: int | None = None
    target: str = ""
    window: int = 0
    margin: float = math.nan


def gradients(spec: Spec) -> np.ndarray:
    """Per-micro-batch norms [R, P, S, K] with spike and contamination."""
    rng = np.random.default_rng(spec.seed)
    shape = (spec.ranks, len(spec.names), spec.steps, spec.window)
    base = np.exp(rng.uniform(-2, 1, shape[1]))
    g = base[None, :, None, None] * np.exp(rng.normal(0, spec.noise, shape))
    g *= np.exp(rng.normal(0, spec.common_noise, (1, 1, spec.steps, 1)) + spec.slope * np.arange(spec.steps)[:, None])
    if spec.pp_local:
        g *= np.exp(rng.uniform(-1, 1, (spec.ranks, shape[1], 1, 1)))
    if spec.tiny_targets:
        g[:, -spec.tiny_targets :] *= 1e-9 / base[-spec.tiny_targets :, None, None]
    if spec.spiked:
        depth = np.array(spec.layer_of)
        ranks = range(spec.ranks) if spec.scope == "all" else (spec.rank,)
        for p in range(spec.target, shape[1]):
            if p == spec.target or depth[p] > depth[spec.target]:
                factor = max(1.0, spec.factor * spec.decay ** (depth[p] - depth[spec.target]))
                for r in ranks:
                    g[r, p, spec.step, spec.micro] *= factor
        g[:, :, spec.step + 1 : spec.step + 1 + spec.gain_steps] *= spec.gain
    return g


def accumulate(g: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    n = g.copy()
    rho = rng.uniform(*RHO, g.shape)
    for k in range(1, g.shape[-1]):
        before, add = n[..., k - 1], g[..., k]
        n[..., k] = np.sqrt(before**2 + add**2 + 2 * rho[..., k] * before * add)
    return n


def norms(spec: Spec) -> tuple[np.ndarray, np.ndarray]:
    """Recorded grad_unreduced norms [R, P, S, K] and grad_reduced norms [P, S]."""
    g = gradients(spec)
    rng = np.random.default_rng(spec.seed + 10**6)
    n = accumulate(g, rng) if spec.mode == "cumulative" else g
    reduced = np.sqrt(np.mean(np.sum(g**2, axis=3), axis=0))
    if spec.spiked and spec.value:
        bad = math.nan if spec.value == "nan" else math.inf
        ranks = slice(None) if spec.scope == "all" else slice(spec.rank, spec.rank + 1)
        after = slice(spec.micro, None) if spec.mode == "cumulative" else slice(spec.micro, spec.micro + 1)
        n[ranks, spec.target, spec.step, after] = bad
        reduced[spec.target, spec.step] = bad
    if spec.silent_targets:
        n[:, -spec.silent_targets :] = math.nan
        reduced[-spec.silent_targets :] = math.nan
    return n, reduced


def truth(spec: Spec) -> Truth:
    """The answer, and whether the data determine it: from amplitude, noise and sample sizes alone, before detection.

    The margin is how far (in log) even an unlucky spike stands above the threshold that the stated rate of false alarms
    demands with this noise; below 0.25 either outcome is fair. A spike on a rank that was not recorded, and a spike of
    all ranks in the first step (which looks like a cold start), are not determined at all.
    """
    if not spec.spiked:
        return Truth(CLEAN)
    name = spec.names[spec.target]
    margin = math.inf if spec.value else _margin(spec)
    fixed = {"step": spec.step, "micro": spec.micro, "target": name, "window": spec.window, "margin": margin}
    if spec.scope == "one" and spec.rank in spec.missing:
        return Truth(INSUFFICIENT, None, **fixed)
    rank = spec.rank if spec.scope == "one" else None
    recorded = spec.ranks - len(spec.missing)
    if recorded == 1 and spec.scope == "all":
        rank = next(r for r in range(spec.ranks) if r not in spec.missing)
    if spec.scope == "all" and spec.missing and spec.window == 1:
        return Truth(INSUFFICIENT if not spec.value and margin > 0.25 else FREE, rank, **fixed)
    cold = spec.step == 0 and (spec.scope == "all" or recorded < 2) and not spec.value
    return Truth(DETERMINED if margin > 0.25 and not cold else FREE, rank, **fixed)


def _margin(spec: Spec) -> float:
    rng = np.random.default_rng(7)
    trials = 4000
    sigma = math.hypot(spec.noise, spec.common_noise)
    g = np.exp(rng.normal(0, sigma, (trials, spec.window)))
    usual = _added(g, spec, rng)
    g[:, spec.micro] *= spec.factor
    spiked = _added(g, spec, np.random.default_rng(7))
    recorded = spec.ranks - len(spec.missing)
    cells = recorded * len(spec.names) * spec.steps * spec.window
    few = spec.steps < 6
    pairs = recorded * len(spec.names) * (spec.steps - 1) * spec.window
    own = recorded * (spec.steps - 1)
    freedom = max(3.0, 0.25 * pairs if few else min(0.37 * pairs, 10 + 0.37 * own))
    spread = np.median(np.abs(usual - np.median(usual))) * 1.4826
    bar = max(math.log(2), t_quantile(0.005 / cells, freedom) * 1.25 * spread * (1.5 if few else 1.0))
    if spec.scope == "all" and few:
        bar *= 1.5
    unlucky = np.quantile(spiked, 0.005) - np.median(usual)
    lag = abs(spec.slope) * 9
    # A cell of the first three steps is judged against what follows, which may be contaminated for the most part.
    follow = min(spec.gain_steps, spec.steps - 1 - spec.step, 8)
    tainted = spec.step < 3 and 2 * follow >= min(spec.steps - 1, 8)
    return float(unlucky - bar - lag - (math.log(spec.gain) if tainted else 0.0))


def _added(g: np.ndarray, spec: Spec, rng: np.random.Generator) -> np.ndarray:
    """log contribution at the spike's micro-step as a reader can estimate it."""
    if spec.mode != "cumulative" or spec.micro == 0:
        return np.log(g[:, spec.micro])
    n = accumulate(g, rng)
    before, after = n[:, spec.micro - 1], n[:, spec.micro]
    added = np.where(after > before, np.sqrt(np.abs(after**2 - before**2)), np.abs(after - before))
    return np.log(np.maximum(added, 1e-12))


@dataclass
class Written:
    """A run on disk: what to give to detect, and which options it needs."""

    path: Path
    kind: str
    options: dict[str, object] = field(default_factory=dict)


def write(spec: Spec, folder: Path) -> Written:
    """Write the run in its layout."""
    n, reduced = norms(spec)
    if spec.layout.startswith("trend"):
        return _write_trend(spec, folder, n, reduced)
    return _write_csv(spec, folder, n, reduced)


def _text(value: float, digits: int = 6) -> str:
    return "nan" if math.isnan(value) else "inf" if math.isinf(value) else repr(round(float(value), digits))


def _write_csv(spec: Spec, folder: Path, n: np.ndarray, reduced: np.ndarray) -> Written:
    rng = np.random.default_rng(spec.seed + 1)
    micro = spec.window > 1
    for rank in range(spec.ranks):
        if rank in spec.missing:
            continue
        own = folder / f"Dec01_07-38-{rank % 60:02d}-rank{rank}-{rank:08x}"
        if spec.restart and rank == 0:
            old = folder / f"Nov30_22-00-00-rank{rank}-{rank + 77:08x}"
            _rank_files(spec, old, n[rank] * np.exp(rng.normal(0, 3, n[rank].shape)), None, micro, rng)
        if spec.layout == "csv_v2":
            own = folder / f"rank_{rank}"
        _rank_files(spec, own, n[rank], reduced if spec.reduced else None, micro, rng)
    return Written(folder, "csv", {"world_size": spec.ranks} if spec.missing else {})


def _rank_files(
    spec: Spec, folder: Path, n: np.ndarray, reduced: np.ndarray | None, micro: bool, rng: np.random.Generator
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    version_2 = spec.layout == "csv_v2"
    name_columns = ["step", "module_name", "scope"] if version_2 else ["name", "step"]
    statistics = ["norm", "min", "max"]
    rng.shuffle(statistics)
    for step in range(spec.steps):
        for metric, scope in (("grad_unreduced", "unreduced"), ("grad_reduced", "reduced")):
            if scope == "reduced" and reduced is None:
                continue
            fine = micro and scope == "unreduced"
            header = ["vpp_stage", *name_columns, *(["micro_step"] if fine else []), *statistics, "shape", "dtype"]
            stem = f"weight_grad_step{step}-{step}" if version_2 else f"{metric}_{step}-{step}"
            path = folder / f"{stem}.csv"
            if version_2 and micro:
                header = ["vpp_stage", *name_columns, "micro_step", *statistics, "shape", "dtype"]
            new = not path.exists()
            with path.open("a", newline="") as stream:
                writer = csv.writer(stream)
                if new:
                    writer.writerow(header)
                for k in range(spec.window if fine or scope == "unreduced" else 1):
                    for p, name in enumerate(spec.names):
                        value = n[p, step, k] if scope == "unreduced" else reduced[p, step]
                        row = {"norm": _text(value), "min": "-0.1", "max": "0.1"}
                        where = {"name": name, "module_name": name, "scope": scope, "step": step}
                        cells = [0, *(where[c] for c in name_columns), *([k] if "micro_step" in header else [])]
                        writer.writerow([*cells, *(row[s] for s in statistics), "[8, 8]", "torch.float32"])


def _write_trend(spec: Spec, folder: Path, n: np.ndarray, reduced: np.ndarray) -> Written:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "monitor_data.trend.db"
    flat = spec.layout == "trend_flat"
    db = sqlite3.connect(path)
    db.executescript(
        """
        CREATE TABLE monitoring_targets (target_id INTEGER PRIMARY KEY AUTOINCREMENT, target_name TEXT NOT NULL,
            vpp_stage INTEGER NOT NULL, micro_step INTEGER NOT NULL DEFAULT 0,
            UNIQUE(target_name, vpp_stage, micro_step));
        CREATE TABLE monitoring_metrics (metric_id INTEGER PRIMARY KEY AUTOINCREMENT, metric_name TEXT UNIQUE NOT NULL);
        CREATE TABLE trend_data (rank INTEGER NOT NULL, step INTEGER NOT NULL, target_id INTEGER NOT NULL,
            metric_id INTEGER NOT NULL, min REAL, max REAL, norm REAL,
            PRIMARY KEY (rank, step, target_id, metric_id)) WITHOUT ROWID;
        """
    )
    ids: dict[tuple[int, int], int] = {}
    for k in range(1 if flat else spec.window):
        for p, name in enumerate(spec.names):
            row = db.execute(
                "INSERT INTO monitoring_targets (target_name, vpp_stage, micro_step) VALUES (?, 0, ?)", (name, k)
            )
            ids[p, k] = int(row.lastrowid or 0)
    # Activations come first, so metric 1 is not the gradient.
    metrics = ["actv", "grad_unreduced", *(["grad_reduced"] if spec.reduced else [])]
    number = {name: i + 1 for i, name in enumerate(metrics)}
    db.executemany("INSERT INTO monitoring_metrics (metric_name) VALUES (?)", [(name,) for name in metrics])
    rows = []
    for rank in range(spec.ranks):
        if rank in spec.missing:
            continue
        for s in range(spec.steps):
            for k in range(spec.window):
                step = s * spec.window + k if flat else s
                for p in range(len(spec.names)):
                    target = ids[p, 0 if flat else k]
                    rows.append((rank, step, target, number["grad_unreduced"], -0.1, 0.1, _sql(n[rank, p, s, k])))
                    if spec.reduced and k == 0:
                        rows.append((rank, step, ids[p, 0], number["grad_reduced"], -0.1, 0.1, _sql(reduced[p, s])))
    db.executemany("INSERT OR IGNORE INTO trend_data VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    db.commit()
    db.close()
    return Written(path, "trend.db", {"world_size": spec.ranks} if spec.missing else {})


def _sql(value: float) -> float | None:
    if math.isnan(value):
        return None
    return 1e9 + 1 if math.isinf(value) else min(round(float(value), 8), 1e9)


def random_spec(seed: int) -> Spec:
    """One case of the random set: all variants of the recipe, mixed."""
    rng = np.random.default_rng(seed * 7919 + 13)

    def pick(*options: object) -> object:
        return options[int(rng.integers(len(options)))]

    window = int(pick(1, 2, 3, 4, 6, 8, 16))  # type: ignore[call-overload]
    steps = int(pick(4, 6, 8, 12, 20)) if window < 8 else int(pick(4, 6, 8))  # type: ignore[call-overload]
    ranks = int(pick(2, 3, 4, 8))  # type: ignore[call-overload]
    layers = int(pick(1, 2, 4))  # type: ignore[call-overload]
    layout = str(pick("csv", "csv", "csv_v2", "trend_flat", "trend_flat", "trend_micro"))
    mode = str(pick("cumulative", "independent"))
    scope = str(pick("one", "one", "one", "all", "none"))
    spec = Spec(
        seed=seed,
        ranks=ranks,
        layers=layers,
        steps=steps,
        window=window,
        mode=mode,
        layout=layout,
        # A flat series of independent norms shows its window only through grad_reduced.
        reduced=bool(pick(True, False)) or (layout == "trend_flat" and mode == "independent" and window > 1),
        noise=float(pick(0.05, 0.1, 0.15)),  # type: ignore[arg-type]
        common_noise=float(pick(0.0, 0.0, 0.05)),  # type: ignore[arg-type]
        slope=float(pick(0.0, 0.0, 0.01, -0.02)),  # type: ignore[arg-type]
        scope=scope,
        rank=int(rng.integers(ranks)),
        step=int(rng.integers(steps)),
        micro=int(rng.integers(window)),
        target=int(rng.integers(2 + layers * len(MODULES))),
        factor=float(pick(3, 10, 50, 1000)),  # type: ignore[arg-type]
        decay=float(pick(0.5, 0.7, 0.9)),  # type: ignore[arg-type]
        value=str(pick("", "", "", "", "nan", "inf")),
        gain=float(pick(1.0, 1.0, 1.5, 2.0, 5.0)),  # type: ignore[arg-type]
        gain_steps=int(pick(2, 10**6)),  # type: ignore[call-overload]
        missing=(int(rng.integers(ranks)),) if rng.random() < 0.15 and ranks > 2 else (),
        tiny_targets=1 if rng.random() < 0.2 else 0,
        restart=layout == "csv" and rng.random() < 0.2,
        pp_local=rng.random() < 0.2,
    )
    if spec.tiny_targets and spec.target >= len(spec.names) - 1:
        return Spec(**{**spec.__dict__, "tiny_targets": 0})
    return spec
