"""How well cosines of sentence vectors agree with human ratings: Spearman's correlation on the STS-B development set.

python bench/similarity.py MODEL [FILE]    # MODEL: a folder or hf:owner/name; FILE: GLUE's dev.tsv or dev.tsv.gz
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np

from regard.checkpoints.folder import local_folder
from regard.families.language.encoder import TextEncoder

FILE = "../shared/data/glue/STS-B/dev.tsv.gz"


def main(model: str, file: str = FILE) -> None:
    firsts, seconds, scores = read(Path(file))
    encoder = TextEncoder.load(local_folder(model))
    cosines = (encoder.embed(firsts) * encoder.embed(seconds)).sum(dim=-1).numpy()
    print(f"{len(scores)} pairs, {encoder.pooling} pooling: Spearman {100 * spearman(cosines, scores):.2f}")


def read(file: Path) -> tuple[list[str], list[str], np.ndarray]:
    """First sentences, second sentences, and human similarity ratings from 0 to 5."""
    content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    rows = [line.split("\t") for line in content.decode().rstrip("\n").split("\n")[1:]]
    return [row[7] for row in rows], [row[8] for row in rows], np.array([float(row[9]) for row in rows])


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson's correlation of the ranks; equal values share their mean rank."""
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def ranks(values: np.ndarray) -> np.ndarray:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[places]


if __name__ == "__main__":
    main(*sys.argv[1:])
