"""A corpus larger than the memory it may take: 2 GB of generated sentence pairs are prepared and trained on.

python bench/streaming.py [--gigabytes 2] [--steps 30] [--workers 1] [--folder DIR] [--json FILE]

Phrases of the built-in corpus, joined at random, make the corpus. `regard data prepare` and `regard train` then run as
anyone would run them, and the resident memory of each is read five times a second: that of the processes it started
too, pages of mapped files too, and pages that several processes share once. How long the loader kept the loop waiting
is what metrics.jsonl tells: a share of the time between two logs; the first also holds the plan of the epoch.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from regard.data.synthetic.phrasebook import phrases
from regard.plan.machine import describe
from regard.training.metrics_log import METRICS, read_metrics

PHRASES, JOINED = 20_000, (2, 6)
ROOM = 4  # times the corpus size on disk: texts, their sorted copy, tokens
LIMIT_MB = 1500


@dataclass(frozen=True)
class Command:
    """The time and memory of a command."""

    seconds: float
    peak_mb: float


def generate(file: Path, size: int) -> int:
    """Write pairs until the file has `size` bytes; returns their number."""
    book = [(pair.source, pair.target) for pair in phrases("es", part="train", count=PHRASES, seed=1, max_words=20)]
    rng, written, count = random.Random(1), 0, 0
    with file.open("wb") as out:
        while written < size:
            sources, targets = zip(*rng.choices(book, k=rng.randint(*JOINED)), strict=True)
            written += out.write(f"{'; '.join(sources)}\t{'; '.join(targets)}\n".encode())
            count += 1
    return count


def watched(*words: str) -> Command:
    """Run a command of Regard to its end, and record its memory."""
    began, peak = time.monotonic(), 0
    process = subprocess.Popen([sys.executable, "-m", "regard", *words])
    while process.poll() is None:
        peak = max(peak, resident(process.pid))
        time.sleep(0.2)
    if process.returncode:
        raise SystemExit(f"regard {words[0]} failed")
    return Command(time.monotonic() - began, peak / 1e6)


def resident(process: int) -> int:
    """Bytes in memory of a process and its child processes."""
    total = 0
    with suppress(OSError):  # a child process has just ended
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        for thread in Path(f"/proc/{process}/task").iterdir():
            total += sum(resident(int(child)) for child in (thread / "children").read_text().split())
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        report(Path(folder), round(given.gigabytes * 1e9), given.steps, given.workers, given.json)


def report(folder: Path, size: int, steps: int, workers: int, file: Path | None) -> None:
    """Generate, prepare, train, and print the results."""
    if shutil.disk_usage(folder).free < ROOM * size:
        raise SystemExit(f"{folder} has no room for {ROOM * size:,} bytes; choose another place with --folder")
    corpus, run = folder / "pairs.tsv", folder / "run"
    pairs = generate(corpus, size)
    print(f"{describe(1)}\n{pairs:,} pairs, {corpus.stat().st_size:,} bytes", flush=True)
    changes = (
        f"data.train={corpus}", "data.source=en", "data.target=es", "data.split=0.0005", f"training.steps={steps}",
        "training.batch_tokens=2048", f"training.workers={workers}", "training.log_every=5", "training.average=0",
        "training.validate_every=0", "training.checkpoint_every=0", "training.metric=loss",
    )  # fmt: skip
    recipe = ("pairs-transformer", *(word for change in changes for word in ("--set", change)), "-o", str(run))
    preparing = watched("data", "prepare", *recipe)
    print(f"prepared in {preparing.seconds:,.0f} s: {size / 1e6 / preparing.seconds:.1f} MB/s", flush=True)
    training = watched("train", *recipe, "--resume")
    laps = [row["waiting"] for row in read_metrics(run / METRICS) if row["kind"] == "train"]
    later = sum(laps[1:]) / max(len(laps) - 1, 1)
    for name, command in (("preparing", preparing), ("training", training)):
        print(f"{name}: peak resident memory {command.peak_mb:,.0f} MB (limit {LIMIT_MB:,})")
    print(f"the loop waited for the loader: {laps[0]:.1%} of the first lap, {later:.2%} of the later ones")
    if file:
        found = {"preparing": asdict(preparing), "training": asdict(training), "waiting": laps, "pairs": pairs}
        file.write_text(json.dumps({"machine": describe(1), "bytes": size, "workers": workers, **found}, indent=1))
    if max(preparing.peak_mb, training.peak_mb) > LIMIT_MB:
        raise SystemExit("too much memory")


if __name__ == "__main__":
    main()
