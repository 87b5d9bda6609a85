"""Slowdown of a training of XGBoost with the hook, by what is recorded and by save interval.

5000 rows of 20 features, 100 rounds of depth 6, two evaluation sets, one thread. Trainings with and without
the hook take turns, in pairs, and the order within a pair changes. The ratio of a pair is the CPU time of the
training thread with the hook divided by the CPU time without it: other processes count little in it. The
result is the median of the ratios with quartiles. The hook is created before the time starts and closed after
the time ends.

metrics         metrics only, of every saved round
importance      feature importance of all five types, 100 scalars per saved round
trees           the table of all trees so far
shap            mean absolute SHAP values of 500 rows
none            a save interval that no round reaches: the cost of the callback itself

With --smdebug, smdebug is measured too, in its own environment
(`python3 scripts/make_peers.py smdebug-xgboost`). It needs XGBoost 1.7, which takes about five times as long
for the same training. So its ratios cannot be compared with those of tdcore, but the milliseconds that a hook
adds to a saved round can.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import tdcore as td
from benchmarks.boosting_problem import INTERVALS, ROUNDS, Problem, plain_seconds, ratios
from benchmarks.environment import ROOT, add_out, save, version
from tdcore.hooks.xgboost import Hook

KINDS = {"metrics": [], "importance": ["feature_importance"], "trees": ["trees"], "shap": ["average_shap"]}
NEVER = 1 << 30
PEER = ROOT / ".venvs" / "smdebug-xgboost" / "bin" / "python"


def hooked(problem: Problem, kind: str, interval: int, folder: Path) -> float:
    """CPU seconds of a training with the hook."""
    when = td.SaveConfig(start_step=NEVER) if interval == NEVER else td.SaveConfig(save_interval=interval)
    data = {"train_data": problem.shap} if kind == "shap" else {}
    with Hook(folder, save_config=when, include_collections=KINDS.get(kind, []), **data) as hook:
        found = problem.seconds([hook])
    counters = hook.counters()
    if counters.drops:
        raise RuntimeError(f"{kind} at interval {interval}: {counters}")
    return found


def of_smdebug(pairs: int, kinds: list[str]) -> dict[str, Any]:
    """Versions and ratios of smdebug, from a process in its environment."""
    if not PEER.exists():
        raise SystemExit(f"{PEER} does not exist: python3 scripts/make_peers.py smdebug-xgboost")
    script = Path(__file__).parent / "peers" / "smdebug_boosting.py"
    done = subprocess.run([PEER, script, str(pairs), *kinds], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.rpartition("RESULT ")[2])
    return found


def spread(name: str, found: list[float]) -> dict[str, float]:
    """Median and quartiles, which are also printed."""
    low, median, high = statistics.quantiles(found, n=4)
    print(f"{name:34} {median:.3f} ({low:.3f} to {high:.3f})", flush=True)
    return {"median": median, "q1": low, "q3": high}


def added(slowdown: dict[str, dict[str, float]], seconds: float, kinds: list[str]) -> dict[str, float]:
    """Milliseconds that the hook adds to a saved round, which are also printed."""
    found = {}
    for kind in kinds:
        found[kind] = (slowdown[f"{kind}, interval 1"]["median"] - 1) * seconds / ROUNDS * 1000
        print(f"{kind:34} adds {found[kind]:.2f} ms to a saved round", flush=True)
    return found


def main() -> None:
    """Measure, print and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS), help="what is recorded")
    parser.add_argument("--smdebug", action="store_true", help="measure smdebug too")
    add_out(parser)
    options = parser.parse_args()
    problem = Problem()
    problem.seconds([])
    slowdown: dict[str, dict[str, float]] = {}
    for kind, interval in [("none", NEVER), *((kind, each) for kind in options.kinds for each in INTERVALS)]:
        name = kind if interval == NEVER else f"{kind}, interval {interval}"
        slowdown[name] = spread(
            name, ratios(problem, partial(hooked, problem, kind, interval), options.pairs)
        )
    seconds = plain_seconds(problem)
    result: dict[str, Any] = {
        "method": __doc__,
        "pairs": options.pairs,
        "xgboost": version("xgboost-cpu") or version("xgboost"),
        "ratio_of_cpu_time": slowdown,
        "plain_seconds": seconds,
        "added_ms_per_saved_round": added(slowdown, seconds, options.kinds),
    }
    if options.smdebug:
        peer = of_smdebug(options.pairs, options.kinds)
        measured = {name: spread(f"smdebug, {name}", found) for name, found in peer.pop("ratios").items()}
        by_round = added(measured, peer["plain_seconds"], options.kinds)
        result["smdebug"] = {**peer, "ratio_of_cpu_time": measured, "added_ms_per_saved_round": by_round}
    print(save("boosting", result, options.out))


if __name__ == "__main__":
    main()
