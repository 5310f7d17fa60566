"""Word vectors: how many words a second are learnt from, ours against gensim's word2vec, in turn on the same text.

    pip install gensim
    python bench/word_vectors.py TEXT.txt[.gz] [--kind skipgram|cbow] [--words 1000000] [--rounds 3]

Both read the same lines, with vectors of 100 numbers, windows of 5, 5 noise words, words that occur 5 times or more,
and frequent words thinned at 1e-3. Counted are the words of the text before thinning, one pass each, on two threads.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from regard.data.formats.lines import read_lines
from regard.training.optim import adamw
from regard.training.tasks.catalog import load_recipe, open_task
from regard.training.tasks.word_vectors_recipe import WordsRecipe

THREADS = 2


def ours(recipe: WordsRecipe, folder: Path) -> float:
    """Seconds of one pass with Regard."""
    task = open_task(recipe, folder, torch.device("cpu"), lambda: None)
    model = task.build()
    optimizer = adamw(model.parameters(), betas=(0.9, 0.99), weight_decay=0.0)
    for group in optimizer.param_groups:
        group["lr"] = 5e-3
    began = time.perf_counter()
    for epoch, _, batch in task.loader:
        if epoch:
            break
        optimizer.zero_grad()
        (task.loss(model, batch).total / batch.tokens).backward()
        optimizer.step()
    return time.perf_counter() - began


def gensims(lines: list[list[str]], kind: str) -> float | None:
    """Seconds of one pass with gensim; None if it is not installed."""
    try:
        from gensim.models import Word2Vec
    except ImportError:
        return None
    model = Word2Vec(vector_size=100, window=5, min_count=5, negative=5, sg=kind == "skipgram", workers=THREADS)
    model.build_vocab(lines)
    began = time.perf_counter()
    model.train(lines, total_examples=len(lines), epochs=1)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--kind", choices=["skipgram", "cbow"], default="skipgram")
    parser.add_argument("--words", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(THREADS)
    lines, words = [], 0
    for line in read_lines(asked.text):
        lines.append(line.lower().split())
        words += len(lines[-1])
        if words >= asked.words:
            break
    with tempfile.TemporaryDirectory() as place:
        text = Path(place) / "text.txt"
        text.write_text("\n".join(map(" ".join, lines)) + "\n", encoding="utf-8")
        recipe = load_recipe(
            "wikitext2-word2vec", [f"data.train={text}", "data.valid=''", f"model.preset={asked.kind}"]
        )
        assert isinstance(recipe, WordsRecipe)
        pairs = [(ours(recipe, Path(place) / "data"), gensims(lines, asked.kind)) for _ in range(asked.rounds)]
    print(f"{asked.kind}: {words:,} words; ours {words / statistics.median(p[0] for p in pairs):,.0f} words/s", end="")
    ratios = [theirs / mine for mine, theirs in pairs if theirs]
    if ratios:
        theirs = statistics.median(p[1] for p in pairs if p[1])
        print(f", gensim {words / theirs:,.0f} words/s; ours is {statistics.median(ratios):.2f} times as fast")
    else:
        print("; gensim is not installed")


if __name__ == "__main__":
    main()
