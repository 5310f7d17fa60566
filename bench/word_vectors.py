"""Word vectors: words learnt from a second and quality, ours against gensim's word2vec, in turn on the same text.

    pip install gensim
    python bench/word_vectors.py TEXT.txt[.gz] [--kinds skipgram,cbow] [--threads 1,2] [--epochs 5] [--rounds 3]

Both read the same lines, with vectors of 100 numbers, windows of 5, 5 noise words, words that occur 5 times or more,
and frequent words thinned at 1e-3. Counted are the words of the text before thinning; building the vocabulary is not
timed. With two threads gensim has two workers, and ours makes its batches in a process beside the one that learns; the
CPU time of that process is not counted. Beside other work the seconds of the CPU say more than those of the clock.
Quality is Spearman's correlation with what people say of pairs of words: WordSim-353 and SimLex-999, which come with
gensim.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import gensim
import torch
from gensim.models import KeyedVectors, Word2Vec
from gensim.test.utils import datapath

from regard.data.formats.lines import read_lines
from regard.data.tokenizers.text import TextTokenizer
from regard.families.language import words as word_updates
from regard.families.language.recipe import WordsRecipe
from regard.training.optim import schedule
from regard.training.recipe.load import load_recipe, open_task

RATES = {"skipgram": 0.025, "cbow": 0.05}  # of ours; gensim's is its default, 0.025
JUDGED = {"WordSim-353": "wordsim353.tsv", "SimLex-999": "simlex999.txt"}


@dataclass
class Run:
    """One training."""

    clock: float
    cpu: float
    quality: dict[str, float]


def ours(recipe: WordsRecipe, folder: Path, epochs: int) -> Run:
    """Train with Regard."""
    torch.manual_seed(recipe.seed)
    task = open_task(recipe, folder, torch.device("cpu"), lambda: None)
    model = task.build()
    per_epoch = len(task.loader.plan(0))
    rate = schedule("cosine", lr=recipe.training.lr, warmup=0, steps=epochs * per_epoch)
    clock, cpu = time.perf_counter(), time.process_time()
    for step, (epoch, _, batch) in enumerate(task.loader, start=1):
        if epoch == epochs:
            break
        word_updates.update(model, batch, rate(step))
    clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
    return Run(clock, cpu, judged(named_vectors(task.tokenizer, model.words.weight.detach())))


def named_vectors(tokenizer: TextTokenizer, vectors: torch.Tensor) -> KeyedVectors:
    """Vectors by word, as gensim judges them, frequent words first: it reads no more than 300,000."""
    found = KeyedVectors(vectors.shape[1])
    words = {word: place for word, place in tokenizer.library.get_vocab().items() if place < len(vectors)}
    found.add_vectors(list(words), vectors[list(words.values())].numpy())
    return found


def gensims(lines: list[list[str]], kind: str, threads: int, epochs: int, seed: int) -> Run:
    """Train with gensim."""
    model = Word2Vec(
        vector_size=100, window=5, min_count=5, negative=5, sg=kind == "skipgram", workers=threads, seed=seed
    )
    model.build_vocab(lines)
    clock, cpu = time.perf_counter(), time.process_time()
    model.train(lines, total_examples=len(lines), epochs=epochs)
    clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
    return Run(clock, cpu, judged(model.wv))


def judged(vectors: KeyedVectors) -> dict[str, float]:
    """The correlations of a model's cosines with people's judgement."""
    return {name: vectors.evaluate_word_pairs(datapath(file))[1].statistic for name, file in JUDGED.items()}


def told(name: str, words: int, runs: list[Run]) -> str:
    """One line of the report."""
    clock, cpu = (words / statistics.median(getattr(run, field) for run in runs) for field in ("clock", "cpu"))
    quality = (f"{each} {statistics.mean(run.quality[each] for run in runs):.3f}" for each in JUDGED)
    return f"  {name}: {clock:,.0f} words/s, {cpu:,.0f} words/s of CPU; {', '.join(quality)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--kinds", default="skipgram,cbow")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    lines = [line.lower().split() for line in read_lines(asked.text)]
    words = asked.epochs * sum(map(len, lines))
    print(f"gensim {gensim.__version__}, torch {torch.__version__}; {words:,} words in {asked.epochs} epochs; "
          f"compiled code: {'yes' if word_updates.library() else 'no'}")  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        text = Path(place) / "text.txt"
        text.write_text("\n".join(map(" ".join, lines)) + "\n", encoding="utf-8")
        for kind in asked.kinds.split(","):
            for threads in map(int, asked.threads.split(",")):
                torch.set_num_threads(threads)
                pairs = []
                for seed in range(1, asked.rounds + 1):
                    recipe = load_recipe("wikitext2-word2vec", [
                        f"data.train={text}", "data.valid=''", f"model.preset={kind}", f"training.lr={RATES[kind]}",
                        "training.validate_every=0", f"seed={seed}", f"training.workers={threads - 1}",
                    ])  # fmt: skip
                    assert isinstance(recipe, WordsRecipe)
                    mine = ours(recipe, Path(place) / "data", asked.epochs)
                    pairs.append((mine, gensims(lines, kind, threads, asked.epochs, seed)))
                mine, theirs = map(list, zip(*pairs, strict=True))
                clock, cpu = (
                    statistics.median(getattr(b, field) / getattr(a, field) for a, b in pairs)
                    for field in ("clock", "cpu")
                )
                print(f"{kind}, threads: {threads}; ours is {clock:.2f} times as fast, {cpu:.2f} by CPU time")
                print(told("ours", words, mine), told("gensim", words, theirs), sep="\n", flush=True)


if __name__ == "__main__":
    main()
