"""One mean and interval over the held-out chains of several folds, each the output of `regard evaluate ... --json`.

python bench/folds.py FOLD.json ...
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from regard.families.folding.metrics import interval, mean


def main() -> None:
    """Print the mean precision of long-range contacts over all held-out chains, its interval, and the baselines."""
    chains: dict[str, float] = {}
    baselines: dict[str, list[tuple[float, int]]] = {}
    for path in sys.argv[1:]:
        told = json.loads(Path(path).read_text(encoding="utf-8").strip().splitlines()[-1])
        (group,) = [value for name, value in told.items() if name.startswith("held out")]
        found = {name: scores.get("precision", math.nan) for name, scores in group["each chain"].items()}
        if twice := chains.keys() & found.keys():
            raise SystemExit(f"{path}: {sorted(twice)[0]} was held out in an earlier fold as well")
        chains |= found
        for name, value in group.items():
            if name.startswith("long-range L/5 precision, "):
                baselines.setdefault(name.partition(", ")[2], []).append((value, len(found)))
    low, high = interval(list(chains.values()))
    print(f"{len(chains)} chains: long-range L/5 precision {mean(chains.values()):.3f} ({low:.3f} to {high:.3f})")
    for name, parts in baselines.items():
        count = sum(size for _, size in parts)
        print(f"{name}: {sum(value * size for value, size in parts) / count:.3f}")


if __name__ == "__main__":
    main()
