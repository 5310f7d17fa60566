"""Translation memory: the time of a fuzzy match among 100,000 segments on one core, and whether the index loses any.

    python bench/memory.py ../shared/data/tatoeba_es_en/train.tsv.gz

Segments are the English sides of Tatoeba. Queries are segments with a word changed, dropped or added.
"""

import argparse
import random
import statistics
import time

from rapidfuzz import fuzz, process

from regard.data.formats.pairs import read_pairs
from regard.documents.memory import TranslationMemory


def changed(text: str, words: list[str], draw: random.Random) -> str:
    """A segment like this one."""
    parts = text.split()
    place = draw.randrange(len(parts))
    way = draw.choice(["change", "drop", "add"]) if len(parts) > 2 else "add"
    new = {"change": [draw.choice(words)], "drop": [], "add": [parts[place], draw.choice(words)]}[way]
    return " ".join([*parts[:place], *new, *parts[place + 1 :]])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("pairs")
    parser.add_argument("--segments", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--compared", type=int, default=20, help="queries compared with a full search")
    asked = parser.parse_args()
    draw = random.Random(1)
    pairs = [(p.source, p.target) for p in read_pairs(asked.pairs, "en", "es")]
    known = {source for source, _ in pairs}
    words = sorted({word for source in known for word in source.split()})
    while len(known) < asked.segments:  # the corpus has fewer English sentences than pairs
        source = changed(draw.choice(pairs)[0], words, draw)
        pairs += [(source, "")] if source not in known else []
        known.add(source)
    memory = TranslationMemory(pairs)
    sources = sorted(known)
    began = time.process_time()
    memory.find("warm up the index")
    print(f"{len(memory):,} segments, indexed in {time.process_time() - began:.1f} s")
    queries = [changed(draw.choice(sources), words, draw) for _ in range(asked.queries)]
    times, hits = [], 0
    for query in queries:
        began = time.process_time()
        hits += bool(memory.find(query))
        times.append(1000 * (time.process_time() - began))
    print(
        f"a fuzzy match takes {statistics.mean(times):.1f} ms, at most {max(times):.1f}; {hits} of {len(queries)} found"
    )
    same = 0
    for query in queries[: asked.compared]:
        _, score, _ = process.extractOne(query, sources, scorer=fuzz.ratio)
        best = memory.find(query, count=1)
        same += (best[0].similarity * 100 == score) if best else score < 70
    print(f"the best similarity is that of a full search in {same} of {asked.compared}")


if __name__ == "__main__":
    main()
