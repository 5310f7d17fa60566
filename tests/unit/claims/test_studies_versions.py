"""The test of significance against all exchanges of two models' answers."""

from itertools import product

import pytest
import sacrebleu

from regard.families.translation.evaluate import p_values, verdict

REFERENCES = ["the cat sat on the mat", "a dog ran home", "we eat bread today", "she reads a long book", "he is here"]
OLD = ["the cat sits on a mat", "a dog runs home", "we eat bread", "she reads long books", "he is there"]
NEW = ["the cat sat on the mat", "a dog ran", "we ate bread today", "she reads a long book", "he was here"]


def exact(metric: sacrebleu.BLEU | sacrebleu.CHRF) -> float:
    """The share of all exchanges whose difference is greater, which is what sacrebleu counts."""

    def difference(swaps: tuple[bool, ...]) -> float:
        pairs = [(b, a) if swap else (a, b) for a, b, swap in zip(OLD, NEW, swaps, strict=True)]
        one, other = ([pair[side] for pair in pairs] for side in (0, 1))
        return abs(metric.corpus_score(one, [REFERENCES]).score - metric.corpus_score(other, [REFERENCES]).score)

    found = [difference(swaps) for swaps in product([False, True], repeat=len(OLD))]
    return sum(each > found[0] + 1e-9 for each in found) / len(found)


def test_p_values_are_those_of_all_exchanges() -> None:
    found = p_values(OLD, NEW, REFERENCES, ["es"])
    assert found["chrf"] == pytest.approx(exact(sacrebleu.CHRF()), abs=0.06)
    assert found["bleu"] == pytest.approx(exact(sacrebleu.BLEU()), abs=0.06)


def test_equal_answers_are_no_difference() -> None:
    assert p_values(OLD, OLD, REFERENCES, ["es"]) == {"bleu": 1.0, "chrf": 1.0}


def test_a_clear_difference_is_significant() -> None:
    bad = ["no"] * 20
    found = p_values(bad, REFERENCES * 4, REFERENCES * 4, ["es"])
    assert found["chrf"] < 0.01 and verdict(found["chrf"]).startswith("significant")
    assert verdict(0.2) == "not significant (p = 0.200)"
