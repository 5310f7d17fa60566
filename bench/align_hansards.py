"""How well the statistical aligner that guides attention aligns by itself: AER against hand-made links.

    python bench/align_hansards.py RUN ../shared/data/word_alignment/en-fr.half_a.tsv

RUN is the folder of a guided training run whose prepared corpus is still in it. The gold text is not learnt from.
"""

import argparse
import tempfile
import time
from pathlib import Path

from regard.data.formats.pairs import GoldPair, Pair
from regard.data.text.pair_store import PairStore, encode_corpus
from regard.data.tokenizers.pair import PairTokenizer
from regard.families.translation.evaluate import gold_pairs
from regard.families.translation.word_aligner import Aligner
from regard.look.word_alignment import Link, alignment_score, flip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("gold")
    parser.add_argument(
        "--flipped", action="store_true", help="the run translates from the gold's target to its source"
    )
    options = parser.parse_args()
    corpus = options.run / "data"
    tokenizer, store = PairTokenizer.load(corpus / "tokenizer"), PairStore.open(corpus / "train")
    gold = gold_pairs(options.gold, strip_accents=True)
    begun = time.perf_counter()
    aligner = Aligner(store, max(tokenizer.source.size, tokenizer.target.size))
    print(f"learnt from {len(store):,} pairs in {time.perf_counter() - begun:.0f} s")
    found = aligned(aligner, tokenizer, gold, flipped=options.flipped)
    print(alignment_score(found, [pair.sure for pair in gold], [pair.possible for pair in gold]))


def aligned(aligner: Aligner, tokenizer: PairTokenizer, gold: list[GoldPair], *, flipped: bool) -> list[list[Link]]:
    """The word links of the gold pairs, as (source, target) in the gold numbering."""
    pairs = [Pair(pair.target, pair.source) if flipped else Pair(pair.source, pair.target) for pair in gold]
    with tempfile.TemporaryDirectory() as folder:
        store = encode_corpus(pairs, tokenizer, Path(folder) / "gold")
        found = [links.tolist() for links in aligner.links(store)]
    words = []
    for pair, links in zip(pairs, found, strict=True):
        sources, targets = tokenizer.source.words_in(pair.source), tokenizer.target.words_in(pair.target)
        between = {(sources[s], targets[t]) for s, t in links if s < len(sources)}  # the end token is not a word
        words.append(flip(between) if flipped else sorted(between))
    return words


if __name__ == "__main__":
    main()
