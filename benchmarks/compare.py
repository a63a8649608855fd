#!/usr/bin/env python3
"""Compares two benchmark records: compare.py BEFORE.json AFTER.json

A case is better or worse only where the medians differ by more than the noise of both runs: half the
distance between their 10th and 90th percentiles, and at least 2 %, by which cards differ.
"""

import argparse
import json
import sys

MIN_NOISE = 0.02


def load(path):
    with open(path) as file:
        record = json.load(file)
    if record.get("schema") != "snapmla.bench.v1":
        sys.exit(f"{path}: expected schema snapmla.bench.v1, got {record.get('schema')!r}")
    return record


def noise(timing):
    return (timing["p90_us"] - timing["p10_us"]) / 2 / timing["median_us"]


def compare(before, after, regime):
    """Rows (name, before us, after us, change, noise, verdict) of the cases in either record."""
    cases_before = {case["name"]: case for case in before["cases"]}
    cases_after = {case["name"]: case for case in after["cases"]}
    rows = []
    for name in list(cases_before) + [n for n in cases_after if n not in cases_before]:
        a, b = cases_before.get(name), cases_after.get(name)
        if a is None or b is None:
            rows.append((name, None, None, None, None, "only before" if b is None else "only after"))
            continue
        if a["error"] or b["error"]:
            rows.append((name, None, None, None, None, "failed before" if a["error"] else "FAILED"))
            continue
        old, new = a[regime], b[regime]
        change = new["median_us"] / old["median_us"] - 1
        limit = max(MIN_NOISE, noise(old), noise(new))
        verdict = "same" if abs(change) <= limit else "better" if change < 0 else "WORSE"
        rows.append((name, old["median_us"], new["median_us"], change, limit, verdict))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--regime", choices=("burst", "sustained"), default="sustained")
    parser.add_argument("--fail-on-worse", action="store_true", help="exit 1 if any case is worse or failed")
    args = parser.parse_args()
    before, after = load(args.before), load(args.after)
    for label, record in (("before", before), ("after", after)):
        print(f"{label:>6}: {record['commit']} on {record['gpu']}, {record['nvidia_smi']}, {record['date']}")
    if before["gpu"] != after["gpu"]:
        print("note: different GPUs")
    rows = compare(before, after, args.regime)
    print(f"{'case':<40} {'before us':>10} {'after us':>10} {'change':>8} {'noise':>7}  verdict")
    for name, old, new, change, limit, verdict in rows:
        if old is None:
            print(f"{name:<40} {'':>10} {'':>10} {'':>8} {'':>7}  {verdict}")
        else:
            print(f"{name:<40} {old:>10.2f} {new:>10.2f} {change:>+8.1%} {limit:>7.1%}  {verdict}")
    verdicts = [row[-1] for row in rows]
    print(", ".join(f"{verdicts.count(v)} {v}" for v in sorted(set(verdicts))))
    bad = any(v in ("WORSE", "FAILED") for v in verdicts)
    return 1 if args.fail_on_worse and bad else 0


if __name__ == "__main__":
    sys.exit(main())
