"""BLEU, CIDEr-D and ROUGE-L of captions: by hand, and against pycocoevalcap where it is installed."""

import math
import random

import pytest

from regard.families.captions.task import bleu, caption_scores, cider_d, rouge_l

WORDS = ["a", "the", "man", "dog", "red", "ball", "runs", "on", "grass", "in", "water", "two", "play", "with", "small"]


def split(*texts):
    return [text.split() for text in texts]


def test_bleu_by_hand():
    captions, references = split("a man in red"), [split("a man in a red shirt", "man in red")]
    # 4 of 4 words, 3 of 3 bigrams, 2 of 2 trigrams, 0 of 1; lengths 6 and 3: 3 is closer to 4, so there is no penalty
    assert bleu(captions, references) == pytest.approx([1, 1, 1, 0])
    short = bleu(split("a man"), [split("a man in red")])
    assert short[:2] == pytest.approx([math.exp(-1), math.exp(-1)])
    clipped = bleu(split("the the the"), [split("the cat", "the the cat sat")])
    assert clipped[0] == pytest.approx(2 / 3)


def test_bleu_is_that_of_the_corpus_not_a_mean():
    captions, references = split("a dog", "a b c d"), [split("a dog"), split("x y z w")]
    assert bleu(captions, references)[0] == pytest.approx(2 / 6)


def test_rouge_by_hand():
    captions, references = split("a dog runs fast"), [split("a fast dog", "runs")]
    precision, recall = 2 / 4, 1.0  # "a dog" of four words; the whole second reference
    assert rouge_l(captions, references) == pytest.approx(2.44 * precision * recall / (recall + 1.44 * precision))
    assert rouge_l(split("x"), [split("a")]) == 0


def test_cider_of_equal_and_of_foreign_texts():
    references = [split("a red dog runs home"), split("two men play in water")]
    assert cider_d([known[0] for known in references], references) == pytest.approx(10)
    assert cider_d([known[0] for known in reversed(references)], references) == 0


def test_cider_weighs_rare_words_and_lengths_by_hand():
    references = [split("a dog"), split("a cat")]
    captions = split("dog", "a cat")
    # one word of weight log 2 in both: cosine 1 of single words, no bigram; bigrams 0 and 1 differ by one
    first = 10 * math.exp(-1 / 72) / 4
    second = 10 * (1 + 1) / 4  # words and the one bigram; a text of two words has no longer n-grams
    assert cider_d(captions, references) == pytest.approx((first + second) / 2)


@pytest.mark.parametrize("seed", range(4))
def test_scores_are_those_of_pycocoevalcap(seed):
    oracle = pytest.importorskip("pycocoevalcap.bleu.bleu", reason="pycocoevalcap is not installed")
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    rng = random.Random(seed)

    def text():
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 12)))

    references = [[text() for _ in range(rng.randint(1, 5))] for _ in range(30)]
    captions = [rng.choice(known) if rng.random() < 0.4 else text() for known in references]
    known, said = dict(enumerate(references)), {number: [each] for number, each in enumerate(captions)}
    ours = caption_scores(captions, references)
    theirs, _ = oracle.Bleu(4).compute_score(known, said, verbose=0)
    assert [ours[f"bleu{order}"] for order in range(1, 5)] == pytest.approx([100 * each for each in theirs], rel=1e-5)
    assert ours["cider"] == pytest.approx(Cider().compute_score(known, said)[0], rel=1e-6)
    assert ours["rouge"] == pytest.approx(Rouge().compute_score(known, said)[0], rel=1e-6)
