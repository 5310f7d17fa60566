"""Cut Tatoeba's English-Spanish pairs of up to seven words into two domains: statements, and questions (the new one).

    python bench/question_slice.py ../shared/data/tatoeba_es_en OUT

writes OUT/statements.tsv, OUT/questions.tsv (2,000 pairs), OUT/spanish-questions.txt (other questions, Spanish alone),
and the two halves of the development set: OUT/statements-dev.tsv and OUT/questions-dev.tsv.
"""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path

SLICE, MONOLINGUAL, LONGEST = 2_000, 6_000, 7


def main(data: Path, out: Path) -> None:
    """Write the five files."""
    out.mkdir(parents=True, exist_ok=True)
    for part, suffix in (("train", ""), ("dev", "-dev")):
        with gzip.open(data / f"{part}.tsv.gz", "rt", encoding="utf-8") as file:
            lines = sorted({line.rstrip("\n") for line in file if len(line.split("\t")[0].split()) <= LONGEST})
        random.Random(1).shuffle(lines)
        questions = [line for line in lines if line.split("\t")[0].endswith("?")]
        statements = [line for line in lines if "?" not in line]
        if part == "train":
            spanish = [line.split("\t")[1] for line in questions[SLICE : SLICE + MONOLINGUAL]]
            _write(out / "spanish-questions.txt", spanish)
            questions = questions[:SLICE]
        _write(out / f"statements{suffix}.tsv", statements)
        _write(out / f"questions{suffix}.tsv", questions)


def _write(file: Path, lines: list[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{file}: {len(lines):,}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
