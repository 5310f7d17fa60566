"""Quality of translations and alignments, against sacrebleu, manual counts and each other."""

from pathlib import Path

import pytest
import sacrebleu

import regard
from regard.data.formats.pairs import GoldPair, Pair
from regard.data.synthetic.phrasebook import phrases
from regard.errors import DataError, UsageError
from regard.families.translation.evaluate import (
    MERGES,
    described,
    error_rates_by_reading,
    evaluate_alignment,
    evaluate_pairs,
    gold_pairs,
    held_out_pairs,
    text_scores,
)
from regard.families.translation.translator import Translator
from regard.look.word_alignment import alignment_error_rate, flip, links, merge_weights, symmetrise


@pytest.fixture(scope="module")
def translator(translator_folder: Path) -> Translator:
    return regard.load(translator_folder)


@pytest.fixture(scope="module")
def gold() -> list[GoldPair]:
    drawn = phrases("es", part="test", count=6, seed=2, max_words=6)
    return [GoldPair(p.source, p.target, frozenset(p.links or ()), frozenset(p.links or ())) for p in drawn]


def test_scores_are_sacrebleus_and_exact_is_counted() -> None:
    answers, references = ["el perro duerme mucho hoy", "la casa"], ["el perro duerme mucho", "la casa"]
    scores = text_scores(answers, references, ["es"])
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(answers, [references], force=True).score)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(answers, [references]).score)
    assert scores["exact"] == 0.5


def test_pairs_of_several_targets_are_each_translated_into_their_own(translator: Translator) -> None:
    pairs = held_out_pairs(translator, "phrasebook", count=3, max_words=5)
    assert [pair.to for pair in pairs] == ["es"] * 3 + ["pt"] * 3
    mixed = [pairs[0], pairs[3], pairs[1]]
    scores, answers = evaluate_pairs(translator, mixed, beam=1)
    assert [each.text for each in answers] == [translator.translate(p.source, to=p.to, beam=1).text for p in mixed]
    found = [translator.align([p.source], [p.target], to=p.to)[0] for p in mixed]
    sure, possible = [p.links or () for p in mixed], [p.possible or () for p in mixed]
    assert scores["alignment_error_rate"] == pytest.approx(alignment_error_rate(found, sure, possible))


def test_files_need_one_target_and_nothing_cannot_be_measured(translator: Translator, tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("we eat\tcomemos\n", "utf-8")
    with pytest.raises(UsageError, match="--to"):
        held_out_pairs(translator, str(file))
    assert held_out_pairs(translator, str(file), "es") == [Pair("we eat", "comemos", to="es")]
    with pytest.raises(DataError, match="nothing to evaluate"):
        evaluate_pairs(translator, [])


def test_gold_files_with_and_without_accents(tmp_path: Path) -> None:
    file = tmp_path / "gold.tsv"
    file.write_text("the café\tel café\t1-1 2p2\n", "utf-8")
    (pair,) = gold_pairs(str(file), strip_accents=True)
    assert (pair.source, pair.target) == ("the cafe", "el cafe")
    assert (pair.sure, pair.possible) == ({(0, 0)}, {(0, 0), (1, 1)})
    file.write_text("", "utf-8")
    with pytest.raises(DataError, match="no hand-aligned pair"):
        gold_pairs(str(file))


def test_the_rate_of_the_chosen_reading_is_among_all_readings(translator: Translator, gold: list[GoldPair]) -> None:
    results = evaluate_alignment(translator, gold, "es")
    rates = error_rates_by_reading(translator, gold, "es")
    assert rates[described(translator.aligning())] == pytest.approx(results["alignment_error_rate"])
    assert list(rates.values()) == sorted(rates.values())
    assert len(rates) == 2 * 3 * 2  # layers; the mean and two heads; shifted and not


@pytest.mark.parametrize("merge", MERGES)
def test_two_directions_merge_as_the_alignment_functions_do(
    merge: str, translator: Translator, gold: list[GoldPair]
) -> None:
    backward = opposite(translator)
    results = evaluate_alignment(translator, gold, "es", backward=backward, merge=merge)
    reading, merged = translator.aligning(), []
    for pair in gold:
        (one,) = translator.passes([pair.source], [pair.target], to="es")
        (two,) = backward.passes([pair.target], [pair.source])
        if merge == "mutual":
            merged.append(links(merge_weights(one.words(reading), two.words(reading)), "mutual"))
        else:
            merged.append(symmetrise(one.links(reading), flip(two.links(reading)), merge))
    expected = alignment_error_rate(merged, [pair.sure for pair in gold], [pair.possible for pair in gold])
    assert results[f"alignment_error_rate_{merge}"] == pytest.approx(expected)
    assert "alignment_error_rate_backward" in results


def opposite(translator: Translator) -> Translator:
    """The same model as if it translated in the opposite direction: badly, but it has attention."""
    return OneWay(translator.models, translator.tokenizer, alignment=translator.alignment)


class OneWay(Translator):
    def target_language(self, to: str = "") -> str:
        return to or "es"


def test_bleu_of_languages_without_spaces_is_that_of_sacrebleus_tokenizer_for_them() -> None:
    answers, references = ["狗喜欢猫。", "猫看见房子3。"], ["狗喜欢书。", "猫看见房子3。"]
    scores = text_scores(answers, references, ["zh-CN"])
    expected = sacrebleu.BLEU(trg_lang="zh")
    assert scores["bleu"] == pytest.approx(expected.corpus_score(answers, [references]).score)
    assert scores["bleu"] > 30 and "|tok:zh|" in str(scores["signature"])
    assert "|tok:char|" in str(text_scores(["แมวสีดำ"], ["แมวสีขาว"], ["th"])["signature"])
    assert "|tok:13a|" in str(text_scores(answers, references, ["zh", "fr"])["signature"])


def test_pairs_are_measured_in_their_target_language(translator: Translator, monkeypatch) -> None:
    answers = [translator.translate("we eat bread", to="es", beam=1)]
    monkeypatch.setattr("regard.families.translation.evaluate.translate_pairs", lambda *_, **__: answers)
    scores, _ = evaluate_pairs(translator, [Pair("we eat bread", "我们吃面包", to="zh")])
    assert "|tok:zh|" in str(scores["signature"])
