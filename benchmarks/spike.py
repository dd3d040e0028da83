"""Benchmark of `detaudit spike detect` against a bare pyarrow parse of the same files and a pandas version of the rule.

    python benchmarks/spike.py make DIR [--ranks 64 --steps 1000 --targets 400] [--layout small|joined|trend]
    python benchmarks/spike.py run DIR [--peers arrow,detaudit,pandas] [--rounds 1]
    python benchmarks/spike.py truth [--cases 600]

`make` writes monitor CSV (`small`: one file per rank and step; `joined`: one per rank) or a trend.db of the same
rows. `run` interleaves the peers, each in a fresh process, and prints wall time and peak memory as a table. `truth`
scores the random cases of the tests and the seed's rules as worded.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "spike")]
SPIKE = {"rank": 5, "step": 600, "target": 37, "factor": 50.0}


def series(ranks: int, steps: int, targets: int):  # type: ignore[no-untyped-def]
    """Norms of one rank after another, [S, P], rounded as the monitor rounds; one spike."""
    rng = np.random.default_rng(0)
    base = np.exp(rng.uniform(-2, 1, targets))
    for rank in range(ranks):
        norms = base * np.exp(rng.normal(0, 0.15, (steps, targets)))
        if rank == SPIKE["rank"] % ranks:
            norms[int(SPIKE["step"] * steps / 1000), SPIKE["target"] % targets :] *= SPIKE["factor"]
        yield rank, np.round(norms, 6)


def make(args: argparse.Namespace) -> None:
    names = [f"module.decoder.layers.{i // 8}.part{i % 8}.weight" for i in reversed(range(args.targets))]
    root = Path(args.dir)
    root.mkdir(parents=True, exist_ok=True)
    if args.layout == "trend":
        return make_trend(args, root, names)
    header = "vpp_stage,name,step,norm,min,max,shape,dtype\n"
    for rank, norms in series(args.ranks, args.steps, args.targets):
        folder = root / f"Dec01_07-38-18-rank{rank}-{rank:08x}"
        folder.mkdir(exist_ok=True)
        texts = []
        for step in range(args.steps):
            rows = "".join(
                f'0,{name},{step},{x:.6f},-0.01,0.01,"[8, 8]",torch.float32\n'
                for name, x in zip(names, norms[step], strict=True)
            )
            if args.layout == "small":
                (folder / f"grad_unreduced_{step}-{step}.csv").write_text(header + rows)
            else:
                texts.append(rows)
        if texts:
            (folder / f"grad_unreduced_0-{args.steps - 1}.csv").write_text(header + "".join(texts))
        print(f"rank {rank}", end="\r", file=sys.stderr)


def make_trend(args: argparse.Namespace, root: Path, names: list[str]) -> None:
    db = sqlite3.connect(root / "monitor_data.trend.db")
    db.executescript(
        """
        PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
        CREATE TABLE monitoring_targets (target_id INTEGER PRIMARY KEY AUTOINCREMENT, target_name TEXT NOT NULL,
            vpp_stage INTEGER NOT NULL, micro_step INTEGER NOT NULL DEFAULT 0);
        CREATE TABLE monitoring_metrics (metric_id INTEGER PRIMARY KEY AUTOINCREMENT, metric_name TEXT UNIQUE NOT NULL);
        CREATE TABLE trend_data (rank INTEGER NOT NULL, step INTEGER NOT NULL, target_id INTEGER NOT NULL,
            metric_id INTEGER NOT NULL, norm REAL, PRIMARY KEY (rank, step, target_id, metric_id)) WITHOUT ROWID;
        INSERT INTO monitoring_metrics (metric_name) VALUES ('grad_unreduced');
        """
    )
    db.executemany("INSERT INTO monitoring_targets (target_name, vpp_stage) VALUES (?, 0)", [(n,) for n in names])
    for rank, norms in series(args.ranks, args.steps, args.targets):
        rows = ((rank, s, p + 1, 1, float(norms[s, p])) for s in range(args.steps) for p in range(args.targets))
        db.executemany("INSERT INTO trend_data VALUES (?, ?, ?, ?, ?)", rows)
    db.commit()
    db.close()


def peer_arrow(root: Path) -> dict[str, object]:
    """Parse every file, every column, nothing else."""
    import pyarrow.csv as arrow

    rows = 0
    for path in sorted(root.rglob("*.csv")):
        rows += arrow.read_csv(path).num_rows
    return {"rows": rows}


def peer_detaudit(root: Path, parser: str = "auto") -> dict[str, object]:
    from detaudit.spike.detect import Options, detect
    from detaudit.spike.select import select
    from detaudit.spike.sources import load

    database = root / "monitor_data.trend.db"
    loaded = load(database if database.exists() else root, parser=parser, metric="grad_unreduced")
    read = time.perf_counter()
    result = detect(loaded, Options(window=1 if database.exists() else 0))
    root_cause = select(json.loads(json.dumps(result)))["root_cause_coordinate"] or {}
    return {
        "rows": loaded.rows,
        "analysis_s": round(time.perf_counter() - read, 1),
        "answer": [root_cause.get(key) for key in ("rank", "optimizer_step", "target_name")],
    }


def peer_csv(root: Path) -> dict[str, object]:
    return peer_detaudit(root, "csv")


def peer_pandas(root: Path) -> dict[str, object]:
    """The step-level rule with pandas: per target, norm > q3 + 5 IQR or > median + 10 MAD, then the largest
    deviation."""
    import re

    import pandas as pd

    frames = []
    database = root / "monitor_data.trend.db"
    if database.exists():
        table = pd.read_sql("SELECT rank, step, target_id AS name, norm FROM trend_data", sqlite3.connect(database))
    else:
        for path in sorted(root.rglob("*.csv")):
            frame = pd.read_csv(path, usecols=["name", "step", "norm"], dtype={"name": "category"})
            frame["rank"] = int(re.search(r"rank(\d+)", path.parent.name)[1])  # type: ignore[index]
            frames.append(frame)
        table = pd.concat(frames, ignore_index=True)
        table["name"] = table["name"].astype("category")
    group = table.groupby("name", observed=True)["norm"]
    q1, q3, median = (group.transform("quantile", q) for q in (0.25, 0.75, 0.5))
    mad = (table["norm"] - median).abs().groupby(table["name"], observed=True).transform("median")
    spikes = table[(table["norm"] > q3 + 5 * (q3 - q1)) | (table["norm"] > median + 10 * mad)]
    best = spikes.loc[(spikes["norm"] / median[spikes.index]).idxmax()]
    return {"rows": len(table), "answer": [int(best["rank"]), int(best["step"]), str(best["name"])]}


PEERS = {"arrow": peer_arrow, "detaudit": peer_detaudit, "detaudit-csv": peer_csv, "pandas": peer_pandas}


def one(args: argparse.Namespace) -> None:
    start = time.perf_counter()
    result = PEERS[args.peer](Path(args.dir))
    result["wall_s"] = round(time.perf_counter() - start, 2)
    result["peak_gib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    print(json.dumps(result))


def run(args: argparse.Namespace) -> None:
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{'peer':14} {'wall s':>8} {'peak GiB':>9} {'rows':>10}  answer")
    for _ in range(args.rounds):
        for peer in args.peers.split(","):
            command = [sys.executable, __file__, "one", args.dir, "--peer", peer]
            try:
                done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=args.timeout)
            except subprocess.TimeoutExpired:
                print(f"{peer:14} stopped after {args.timeout} s", flush=True)
                continue
            if done.returncode:
                print(f"{peer:14} failed: {(done.stderr.strip().splitlines() or [done.returncode])[-1]}", flush=True)
                continue
            r = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{peer:14} {r['wall_s']:8.1f} {r['peak_gib']:9.2f} {r['rows']:10}  "
                f"{r.get('answer', '')} {r.get('analysis_s', '')}",
                flush=True,
            )


def truth(args: argparse.Namespace) -> None:
    import spike_runs
    import spike_scoring
    import spike_seed_rules

    ours: list[tuple[str, str]] = []
    seeds: list[tuple[str, str]] = []
    for seed in range(args.first, args.first + args.cases):
        spec = spike_runs.random_spec(seed)
        label = spike_runs.truth(spec)
        with tempfile.TemporaryDirectory() as folder:
            scored = spike_scoring.score(spec, label, spike_scoring.answer(spec, Path(folder)))
        ours.append((label.label, scored.outcome))
        seeds.append((label.label, spike_seed_rules.score(spec, label)))
        if spike_scoring.failed(label.label, scored.outcome):
            print(f"case {seed}: {label.label} -> {scored.outcome} {scored.fields} {scored.detail}")
    for name, scores in (("detaudit", ours), ("seed rules", seeds)):
        for label, counts in sorted(spike_scoring.tabulate(scores).items()):
            total = sum(counts.values())
            print(
                f"{name:11} {label:13} {total:4}  "
                + ", ".join(f"{k} {v} ({v / total:.1%})" for k, v in sorted(counts.items()))
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    making = verbs.add_parser("make")
    making.add_argument("dir")
    making.add_argument("--ranks", type=int, default=64)
    making.add_argument("--steps", type=int, default=1000)
    making.add_argument("--targets", type=int, default=400)
    making.add_argument("--layout", choices=("small", "joined", "trend"), default="small")
    running = verbs.add_parser("run")
    running.add_argument("dir")
    running.add_argument("--peers", default="arrow,detaudit")
    running.add_argument("--rounds", type=int, default=1)
    running.add_argument("--timeout", type=int, default=240, help="seconds a peer may take (default 240)")
    single = verbs.add_parser("one")
    single.add_argument("dir")
    single.add_argument("--peer", choices=tuple(PEERS), required=True)
    scoring = verbs.add_parser("truth")
    scoring.add_argument("--cases", type=int, default=600)
    scoring.add_argument("--first", type=int, default=0, help="first seed; take one that nothing was tuned on")
    args = parser.parse_args()
    {"make": make, "run": run, "one": one, "truth": truth}[args.verb](args)


if __name__ == "__main__":
    main()
