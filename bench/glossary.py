"""A glossary on a trained translator: are all terms said, once each; what does it cost in BLEU and in time.

    python bench/glossary.py MODEL TEST --to es

The terms come from the test pairs, so that references say what is right. A word of a source and a word of its reference
translate each other if each is the other's best partner by how often they occur together in the file (Dice's
coefficient); the model has no part in it.

- `reference`: one glossary. Its target for a source word is drawn from the partners of that word, and a sentence is
  taken if its reference has one to three terms as the glossary says.
- `other`: the same sentences, with a word for every term that neither the reference nor the model has: a random word.

BLEU is that of whole answers, and of answers and references without the words of terms. Sentences are translated in
batches. Times are CPU time, without and with the glossary in turn, and the best of both.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from sacrebleu.metrics import BLEU

import regard
from regard.data.formats.pairs import Pair, read_pairs
from regard.errors import DataError
from regard.families.translation.glossary import Glossary
from regard.families.translation.translator import Translator

MARKS = ".,;:!?¿¡\"'()"
MOST_PAIRS, MOST_TERMS, LEAST_DICE, LETTERS = 20_000, 3, 0.3, 4


class Case(NamedTuple):
    """A sentence with the terms of the glossary that it has."""

    source: str
    reference: str
    terms: dict[str, str]


def words(text: str) -> list[str]:
    return [word.strip(MARKS).lower() for word in text.split()]


def partners(pairs: Sequence[Pair]) -> list[dict[str, str]]:
    """For every pair the words that translate each other."""
    sides = [({*words(pair.source)} - {""}, {*words(pair.target)} - {""}) for pair in pairs]
    alone = Counter((side, word) for pair in sides for side, some in enumerate(pair) for word in some)
    both = Counter((s, t) for sources, targets in sides for s in sources for t in targets)

    def dice(s: str, t: str) -> float:
        return 2 * both[s, t] / (alone[0, s] + alone[1, t])

    found = []
    for sources, targets in sides:
        best = {s: max(sorted(targets), key=lambda t: dice(s, t)) for s in sources if targets}
        back = {t: max(sorted(sources), key=lambda s: dice(s, t)) for t in best.values()}
        found.append({s: t for s, t in best.items() if back[t] == s and both[s, t] > 1 and dice(s, t) >= LEAST_DICE})
    return found


def cases(translator: Translator, pairs: Sequence[Pair], most: int, draw: random.Random) -> list[Case]:
    """Sentences with one to three terms."""
    linked = partners(pairs)
    counts: dict[str, Counter[str]] = {}
    for some in linked:
        for s, t in some.items():
            if min(len(s), len(t)) >= LETTERS and (s + t).isalpha() and s != t and _writes(translator, t):
                counts.setdefault(s, Counter())[t] += 1
    drawn = {s: draw.choices(list(each), list(each.values()))[0] for s, each in sorted(counts.items())}
    found = []
    for number in draw.sample(range(len(pairs)), len(pairs)):
        source, target = words(pairs[number].source), words(pairs[number].target)
        terms = {s: t for s, t in drawn.items() if s in source}
        right = all(linked[number].get(s) == t and source.count(s) == target.count(t) == 1 for s, t in terms.items())
        if right and 1 <= len(terms) <= MOST_TERMS:
            found.append(Case(pairs[number].source, pairs[number].target, terms))
    return found[:most]


def _writes(translator: Translator, word: str) -> bool:
    try:
        translator.terms.check(Glossary.of({word: word}))
    except DataError:
        return False
    return True


def without(text: str, terms: Iterable[str]) -> str:
    """The text without the words of terms, for a score of the rest."""
    return " ".join(word for word in text.split() if word.strip(MARKS).lower() not in terms)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("pairs", help="a file of pairs, or the beginning of the names of two files of lines")
    parser.add_argument("--to", default="")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3, help="runs of which the fastest counts")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--show", type=int, default=0, help="answers to print")
    asked = parser.parse_args()
    translator, draw = regard.load(asked.model, device=asked.device), random.Random(asked.seed)
    pairs = list(islice(read_pairs(asked.pairs, translator.tokenizer.source_language, asked.to), MOST_PAIRS))
    listed = cases(translator, pairs, asked.sentences, draw)
    terms = {s: t for case in listed for s, t in case.terms.items()}
    said = {word for pair in pairs for word in words(pair.target) if word.isalpha() and len(word) >= LETTERS}
    pool = [word for word in sorted(said) if _writes(translator, word)]
    others = dict(
        zip(terms, draw.choices([word for word in pool if word not in terms.values()], k=len(terms)), strict=True)
    )
    print(f"{len(listed)} sentences, {sum(len(case.terms) for case in listed)} terms", flush=True)
    for beam in asked.beams:
        options = {"to": asked.to, "beam": beam}
        for name, glossary in (("reference", terms), ("other", others)):
            measure(translator, listed, name, glossary, options, asked.runs, asked.show)


def measure(
    translator: Translator,
    listed: Sequence[Case],
    name: str,
    glossary: dict[str, str],
    options: dict[str, Any],
    runs: int,
    show: int,
) -> None:
    """Translate all sentences without and with a glossary, and print what was found."""
    sources, references = [case.source for case in listed], [case.reference for case in listed]
    answers, times = list[list[str]]([[], []]), [float("inf")] * 2
    for _ in range(runs):
        for way, terms in enumerate((None, Glossary.of(glossary))):
            began = time.process_time() if translator.device.type == "cpu" else time.perf_counter()
            answers[way] = [each.text for each in translator.translate(sources, glossary=terms, **options)]
            ended = time.process_time() if translator.device.type == "cpu" else time.perf_counter()
            times[way] = min(times[way], ended - began)
    targets = [[glossary[s] for s in case.terms] for case in listed]
    counts = [words(text).count(t) for text, some in zip(answers[1], targets, strict=True) for t in some]
    free = [words(text).count(t) for text, some in zip(answers[0], targets, strict=True) for t in some]
    dropped = [{*case.terms.values(), *some} for case, some in zip(listed, targets, strict=True)]
    right = [without(text, some) for text, some in zip(references, dropped, strict=True)]
    rest = [[without(text, some) for text, some in zip(each, dropped, strict=True)] for each in answers]
    whole = [BLEU().corpus_score(each, [references]).score for each in answers]
    other = [BLEU().corpus_score(each, [right]).score for each in rest]
    print(
        f"beam {options['beam']}, {name}: {sum(n > 0 for n in counts)} of {len(counts)} terms said, "
        f"{sum(n == 1 for n in counts)} once (without the glossary {sum(n > 0 for n in free)}); "
        f"BLEU {whole[0]:.2f} -> {whole[1]:.2f}, without terms {other[0]:.2f} -> {other[1]:.2f}; "
        f"{times[1] / times[0]:.2f} of the time ({times[0]:.2f} s)",
        flush=True,
    )
    changed = [each for each in zip(listed, *answers, targets, strict=True) if each[1] != each[2]]
    for case, before, after, some in changed[:show]:
        print(f"  {case.source}\n    {dict(zip(case.terms, some, strict=True))}\n    {before}\n    {after}")


if __name__ == "__main__":
    main()
