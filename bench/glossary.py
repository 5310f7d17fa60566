"""A glossary on a trained translator: are all terms said, what does it cost in BLEU and in time.

    python bench/glossary.py MODEL TEST.tsv --to es

Terms are made from the test pairs themselves, so that a reference says what is right: one to three words of a source
that are aligned one to one with a word of the reference. `agreeing`: one glossary for all sentences, in which a term
has the words of all references as its forms; sentences are translated in batches. `other`: a glossary for each
sentence, in which a term becomes a word of another reference that the model would not say; one by one.
BLEU is taken without the words of terms on both sides. Times are of one core's work, the better of two runs each.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Any

from sacrebleu.metrics import BLEU

import regard
from regard.data.formats.pairs import read_pairs
from regard.data.text.glossary import Glossary
from regard.errors import DataError
from regard.inference.pipelines.translator import Translator

MARKS = ".,;!?¿¡"
Case = tuple[str, str, dict[str, str], dict[str, str]]  # source, reference, agreeing terms, other terms


def cases(translator: Translator, path: str, to: str, most: int) -> list[Case]:
    """Sentences with one to three terms."""
    draw, found = random.Random(1), list[Case]()
    pairs = list(islice(read_pairs(path, translator.tokenizer.source_language, to), 4 * most))
    pool = sorted({word for pair in pairs for word in pair.target.split() if word.isalpha() and word.islower()})
    pool = [word for word in pool if len(word) > 3 and _writes(translator, word)]
    links = translator.align([p.source for p in pairs], [p.target for p in pairs], to=to)
    for pair, some in zip(pairs, links, strict=True):
        source, target = pair.source.split(), pair.target.split()
        good = [
            (source[s], target[t])
            for s, t in some
            if sum(s == a for a, _ in some) == sum(t == b for _, b in some) == 1
            and all(word.isalpha() and word.islower() and len(word) > 3 for word in (source[s], target[t]))
            and source.count(source[s]) == target.count(target[t]) == 1
            and _writes(translator, target[t])
        ]
        chosen = dict(draw.sample(good, min(len(good), draw.randint(1, 3))))
        others = dict(zip(chosen, draw.sample([word for word in pool if word not in target], len(chosen)), strict=True))
        found += [(pair.source, pair.target, chosen, others)] if chosen else []
    return found[:most]


def _writes(translator: Translator, word: str) -> bool:
    try:
        translator.terms.check(Glossary.of({word: word}))
    except DataError:
        return False
    return True


def without(text: str, words: set[str]) -> str:
    """The text without terms, for a score of the rest."""
    return " ".join(word for word in text.split() if word.strip(MARKS).lower() not in words)


def timed(work: Callable[[], list[str]], times: int = 2) -> tuple[list[str], float]:
    best = float("inf")
    for _ in range(times):
        began = time.process_time()
        answers = work()
        best = min(best, time.process_time() - began)
    return answers, best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("pairs")
    parser.add_argument("--to", default="")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--beams", type=int, nargs="+", default=[5, 1])
    asked = parser.parse_args()
    translator = regard.load(asked.model)
    listed = cases(translator, asked.pairs, asked.to, asked.sentences)
    print(f"{len(listed)} sentences, {sum(len(each[2]) for each in listed)} terms", flush=True)
    for beam in asked.beams:
        measure(translator, listed, {"to": asked.to, "beam": beam})


def measure(translator: Translator, listed: list[Case], options: dict[str, Any]) -> None:
    """Translate all sentences in four ways, and print what was found."""
    sources = [case[0] for case in listed]
    forms: dict[str, dict[str, None]] = {}
    for case in listed:
        for source, target in case[2].items():
            forms.setdefault(source, {})[target] = None
    glossary = Glossary.of({source: list(targets) for source, targets in forms.items()})

    def together(terms: Glossary | None = None) -> list[str]:
        return [each.text for each in translator.translate(sources, glossary=terms, **options)]

    def alone(steered: bool) -> list[str]:
        return [translator.translate(c[0], glossary=c[3] if steered else None, **options).text for c in listed]

    plain, base = timed(together)
    texts, taken = timed(lambda: together(glossary))
    _report("agreeing", options, listed, plain, texts, [[forms[term] for term in c[2]] for c in listed], taken / base)
    plain, base = timed(lambda: alone(False))
    texts, taken = timed(lambda: alone(True))
    _report("other", options, listed, plain, texts, [[[each] for each in c[3].values()] for c in listed], taken / base)


def _report(
    name: str,
    options: dict[str, Any],
    listed: list[Case],
    plain: list[str],
    texts: list[str],
    terms: list[list[Iterable[str]]],
    ratio: float,
) -> None:
    bare = [[word.strip(MARKS).lower() for word in text.split()] for text in texts]
    said = sum(any(form in words for form in forms) for words, some in zip(bare, terms, strict=True) for forms in some)
    dropped = [{*case[2].values(), *case[3].values(), *chain(*some)} for case, some in zip(listed, terms, strict=True)]
    rest, before, right = (
        [without(text, words) for text, words in zip(some, dropped, strict=True)]
        for some in (texts, plain, [case[1] for case in listed])
    )
    with_it, without_it = (BLEU().corpus_score(some, [right]).score for some in (rest, before))
    print(
        f"beam {options['beam']}, {name}: {said} of {sum(map(len, terms))} terms; BLEU of the rest {with_it:.2f}, "
        f"without a glossary {without_it:.2f}; {ratio:.2f} of the time",
        flush=True,
    )


if __name__ == "__main__":
    main()
