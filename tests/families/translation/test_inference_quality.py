"""Quality estimation against formulas, brute force and scipy."""

import json
import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.errors import CheckpointError, DataError, UsageError
from regard.families.translation.quality import (
    ESTIMATORS,
    Calibration,
    Curve,
    Evidence,
    coverage,
    estimates,
    find_flags,
    fingerprint,
    fit_calibration,
    isotonic,
    pearson,
    spearman,
    word_doubts,
)
from regard.families.translation.quality_estimators import SecondOpinions
from regard.families.translation.repetition import has_loop, repeats
from regard.families.translation.transformer import Transformer
from regard.families.translation.translator import Translator
from regard.look.forced_pass import AlignmentSettings, Pass

SENTENCE = "we are eating bread"
LONGER = "she is reading a long book in the house"
numbers = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=12)


@pytest.fixture(scope="module")
def translator(translator_folder: Path) -> Translator:
    return regard.load(translator_folder)


def made(log_p: list[float], entropies: list[float] | None = None, covered: float | None = 1.0) -> Evidence:
    return Evidence(np.array(log_p), np.array(entropies or [0.0] * len(log_p)), covered)


def test_evidence_of_a_batch_is_that_of_the_whole_distributions(translator: Translator) -> None:
    answers = translator.translate([SENTENCE, LONGER], to="es", beam=2)
    found = translator.quality.evidence([SENTENCE, LONGER], [each.parts[0][1] for each in answers], to="es")
    for answer, evidence in zip(answers, found, strict=True):
        ((source, ids),) = answer.parts
        log_p = translator.log_probabilities(source, ids, to="es").double().numpy()
        said = [*ids, translator.tokenizer.target.end]
        expected = [row[token] for row, token in zip(log_p, said, strict=True)]
        np.testing.assert_allclose(evidence.log_probabilities, expected, atol=1e-4)
        entropies = -(np.exp(log_p) * log_p).sum(axis=1) / math.log(log_p.shape[1])
        np.testing.assert_allclose(evidence.entropies, entropies, atol=1e-4)
        scored = evidence.log_probabilities[: len(ids) + answer.finished]
        assert scored.mean() == pytest.approx(answer.score, abs=1e-4)


def test_a_translation_has_its_quality_and_a_doubt_for_every_word(translator: Translator) -> None:
    answer = translator.translate(LONGER, to="es", beam=2)
    ((source, ids),) = answer.parts
    chances = translator.log_probabilities(source, ids, to="es").exp()
    said = [*ids, translator.tokenizer.target.end]
    product = math.prod(float(chances[place, token]) for place, token in enumerate(said))
    assert answer.quality == pytest.approx(product ** (1 / len(said)), abs=1e-4)
    words = translator.tokenizer.target.words_of(ids)
    by_word = [
        [float(chances[place, token]) for place, token in enumerate(ids) if words[place] == word]
        for word in range(len(answer.target_words))
    ]
    assert answer.doubts == pytest.approx([1 - min(each) for each in by_word], abs=1e-4)
    assert translator.translate("", to="es").doubts == []
    assert replace(answer, remembered=0.97).quality == 0.97


def test_several_sentences_weigh_by_their_tokens(translator: Translator) -> None:
    one, other = translator.translate([SENTENCE, LONGER], to="es")
    both = replace(
        one, source=f"{SENTENCE} {LONGER}", text=f"{one.text} {other.text}", parts=[*one.parts, *other.parts]
    )
    lengths = [len(each.parts[0][1]) + 1 for each in (one, other)]
    assert both.quality == pytest.approx(np.average([one.quality, other.quality], weights=lengths), abs=1e-5)
    assert both.doubts == pytest.approx([*one.doubts, *other.doubts], abs=1e-5)


def test_an_answer_cut_by_the_limit_is_flagged(translator: Translator) -> None:
    assert "cut" in translator.translate(LONGER, to="es", max_length=2).flags


def test_estimators_by_hand() -> None:
    evidence = made([math.log(0.5), math.log(0.125)], [0.2, 0.4], 0.75)
    of_one_pass = {
        "probability": 0.25,
        "certainty": 0.7,
        "weakest": 0.125,
        "likelihood": 1 / (1 + math.log(16)),
        "coverage": 0.75,
    }
    values = {name: estimate(evidence) for name, estimate in ESTIMATORS.items()}
    assert {name: value for name, value in values.items() if value is not None} == pytest.approx(of_one_pass)
    more = replace(evidence, passes=np.log([0.5, 0.125]), agreement=0.6, backward=0.3, round_trip=0.4)
    spread = math.log(4) / 2  # of log 0.5 and log 0.125
    others = {"dropout": 0.25, "steadiness": 1 / (1 + spread), "agreement": 0.6, "backward": 0.3, "round_trip": 0.4}
    assert {name: values[0] for name, values in estimates([more]).items()} == pytest.approx(of_one_pass | others)
    assert set(estimates([more, evidence])) == set(of_one_pass)  # only what is known of all answers
    assert ESTIMATORS["coverage"](made([0.0], covered=None)) == 1.0


def test_coverage_is_the_attended_share_of_the_source_words() -> None:
    weights = np.array([[[0.5, 0.25, 0.0, 0.25], [0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]])  # two tokens, one end
    seen = Pass({"cross": weights}, [0, 0, 1, -1], [0, 1], 3, 2)  # the third word has lost its tokens
    settings = AlignmentSettings(layer="cross", shift=False)
    assert coverage(seen, settings) == pytest.approx(1 / 3)  # 1.75 counts as 1, the others as 0
    with_some = Pass({"cross": weights}, [0, 1, 1, -1], [0, 1], 2, 2)
    assert coverage(with_some, settings) == pytest.approx((1.0 + 0.75) / 2)


def test_doubts_by_hand() -> None:
    log_p = [math.log(0.9), math.log(0.4), math.log(0.8), math.log(0.1)]  # the last is the end token's
    assert word_doubts(log_p, [0, 0, 2], 3) == pytest.approx([0.6, 0.0, 0.2])


@pytest.mark.parametrize(
    ("target", "covered", "finished", "expected"),
    [
        (range(8), 0.9, True, []),
        (range(8), 0.9, False, ["cut"]),
        (range(3), 0.1, True, ["cut"]),
        (range(8), 0.1, True, ["hallucinated"]),
        (range(8), None, True, []),
    ],
)
def test_flags(target, covered, finished, expected) -> None:
    for repeated in ([], ["repeated"]):
        flags = find_flags(list(range(8)), list(target), 6, covered, finished=finished, repeated=bool(repeated))
        assert flags == expected + repeated


@pytest.mark.parametrize(
    ("source", "answer", "expected"),
    [
        ("the big house", "la casa casa casa", True),
        ("the big house", "La casa, la casa, la casa.", True),
        ("the big house", "la casa, la casa", False),
        ("no, no, no!", "¡No, no, no!", False),  # the source says it too
        ("it costs 1000000 dollars", "cuesta 1000000 dólares...", False),
    ],
)
def test_words_that_are_said_again(source: str, answer: str, expected: bool) -> None:
    assert repeats([], [], source, answer) == expected


def test_tokens_that_are_said_again() -> None:
    assert repeats(range(8), [1, 2, 3, 4] * 4, "", "")
    assert not repeats(range(8), [1, 2, 3, 4] * 3, "", "")
    assert not repeats([7, 7, 7, 7], [1, 2, 3, 4] * 4, "", "")


def test_a_loop_is_searched_again(built_in: Path) -> None:
    translator = regard.load("builtin:many-en")  # whose random weights say the same for ever
    plain = translator.translate("wo ist der Bahnhof?", max_length=12)
    assert plain.repeated and "repeated" in plain.flags
    again = translator.translate("wo ist der Bahnhof?", max_length=12, avoid_loops=True)
    assert not again.repeated and "repeated" not in again.flags
    *_, last = translator.stream("wo ist der Bahnhof?", max_length=12, avoid_loops=True)
    assert last.text == again.text


@given(st.lists(st.integers(0, 2), max_size=24))
def test_loops_by_brute_force(ids: list[int]) -> None:
    found = any(
        ids[start : start + period] * 4 == ids[start : start + 4 * period]
        for period in range(1, 9)
        for start in range(len(ids) - 4 * period + 1)
    )
    assert has_loop(ids, 4) == found


@given(numbers)
def test_correlations_are_those_of_scipy(pairs: list[tuple[int, int]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    one, other = ([float(pair[side]) for pair in pairs] for side in (0, 1))
    if len(set(one)) == 1 or len(set(other)) == 1:
        assert pearson(one, other) == spearman(one, other) == 0.0
        return
    assert pearson(one, other) == pytest.approx(np.corrcoef(one, other)[0, 1], abs=1e-9)
    assert spearman(one, other) == pytest.approx(stats.spearmanr(one, other).statistic, abs=1e-9)


@given(numbers)
def test_isotonic_is_optimal(pairs: list[tuple[int, int]]) -> None:
    """The minimax formula: level i is the greatest, over starts, of the least, over ends, of weighted means."""
    values = np.array([float(value) for value, _ in pairs])
    weights = np.array([1.0 + abs(weight) for _, weight in pairs])
    count = len(values)
    expected = [
        max(min(np.average(values[a:b], weights=weights[a:b]) for b in range(i + 1, count + 1)) for a in range(i + 1))
        for i in range(count)
    ]
    np.testing.assert_allclose(isotonic(values, weights), expected, atol=1e-9)


def test_calibration_takes_the_best_estimator_and_gives_true_scores(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    covered = rng.uniform(size=400)
    evidence = [
        made([float(noise)], covered=float(each)) for noise, each in zip(-rng.uniform(size=400), covered, strict=True)
    ]
    fitted = fit_calibration(evidence, (covered**2).tolist())
    assert fitted.picked(evidence[0]) == "coverage" and fitted.sentences == 400
    assert len(fitted.estimators["coverage"].points) == 20
    for value in (0.2, 0.5, 0.9):
        assert fitted.quality(made([0.0], covered=value)) == pytest.approx(value**2, abs=0.04)
    with pytest.raises(DataError, match="at least 2"):
        fit_calibration(evidence[:1], [0.5])
    with pytest.warns(UserWarning, match="no estimator ranks these sentences as their scores do"):
        fit_calibration(evidence, [0.5] * len(evidence))


def test_quality_comes_from_the_best_estimator_that_there_is_evidence_for() -> None:
    curves = {
        "probability": Curve(spearman=0.3, points=((0.0, 0.1), (1.0, 0.5))),
        "round_trip": Curve(spearman=0.6, points=((0.0, 0.2), (1.0, 1.0))),
    }
    calibration, evidence = Calibration(estimators=curves), made([math.log(0.5)])
    assert calibration.quality(evidence) == pytest.approx(0.3)
    assert calibration.quality(replace(evidence, round_trip=0.5)) == pytest.approx(0.6)


def test_a_calibration_is_of_the_weights_it_was_fitted_to(translator: Translator, tmp_path: Path) -> None:
    model, other = translator.models[0], deepcopy(translator.models[0])
    fitted = Calibration(estimators={"weakest": Curve(spearman=0.5, points=((0.5, 0.5),))}, weights=fingerprint(model))
    assert Calibration.read(tmp_path, model) == Calibration()
    fitted.save(tmp_path)
    assert Calibration.read(tmp_path, model) == Calibration.read(tmp_path, other) == fitted
    other.register_parameter("bias_of_marian", torch.nn.Parameter(torch.zeros(3)))
    assert Calibration.read(tmp_path, other) == fitted
    step = torch.optim.SGD(other.parameters(), lr=1e-3)
    sum(parameter.sum() for parameter in other.parameters()).backward()
    step.step()
    with pytest.warns(UserWarning, match="does not name these weights"):
        assert Calibration.read(tmp_path, other) == Calibration()
    earlier = {"estimator": "weakest", "points": [[0.1, 0.2], [0.5, 0.6]], "sentences": 9}  # the version before
    (tmp_path / "quality.json").write_text(json.dumps(earlier))
    with pytest.warns(UserWarning, match="calibrate anew"):
        assert Calibration.read(tmp_path, model) == Calibration()


def test_a_broken_calibration_is_told_in_one_line(translator: Translator, tmp_path: Path) -> None:
    def curve(*points: list[float]) -> dict[str, object]:
        return {"estimators": {"weakest": {"spearman": 0.5, "points": points}}}

    for values in (
        {"estimators": {"luck": {"spearman": 0.5, "points": [[0.5, 0.5]]}}},
        curve([0.5, 0.9], [0.6, 0.2]),
        curve([0.5, 2.0]),
        curve(),
    ):
        (tmp_path / "quality.json").write_text(json.dumps(values))
        with pytest.raises(CheckpointError, match=r"quality\.json"):
            Calibration.read(tmp_path, translator.models[0])


def test_passes_with_dropout_are_the_model_in_training_mode(translator_folder: Path) -> None:
    plain = regard.load(translator_folder)
    model = Transformer(plain.models[0].config.replace(dropout=0.3))
    model.load_state_dict(plain.models[0].state_dict())
    translator = Translator([model], plain.tokenizer)
    ((source, ids),) = translator.translate(LONGER, to="es").parts
    translator.quality.opinions = SecondOpinions(translator, 3, None)
    drawn = torch.random.get_rng_state()
    (found,) = translator.quality.evidence([source], [ids], to="es")
    assert torch.equal(torch.random.get_rng_state(), drawn) and not translator.models[0].training
    target, model = translator.tokenizer.target, deepcopy(translator.models[0]).train()
    read, said = torch.tensor(translator.tokenizer.source_ids([source], "es")), torch.tensor([*ids, target.end])
    means, alike = [], []
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.inference_mode():
            fed = torch.tensor([[target.start, *ids]])
            log_p = model(read, torch.ones_like(read, dtype=torch.bool), fed)[0].log_softmax(dim=-1)
        means.append(float(log_p.gather(1, said[:, None]).mean()))
        (other,) = translator.quality.greedy(model, [source], "es")
        alike.append(sacrebleu.sentence_chrf(target.decode(other), [target.decode(ids)]).score / 100)
    assert len(set(means)) == 3
    assert found.passes == pytest.approx(means, abs=1e-4) and found.agreement == pytest.approx(np.mean(alike))


def test_the_members_of_an_ensemble_are_its_voices(translator_folder: Path) -> None:
    both = Translator.load(translator_folder, translator_folder)
    ((source, ids),) = both.translate(SENTENCE, to="es", beam=1).parts
    both.quality.opinions = SecondOpinions(both, 8, None)
    (found,) = both.quality.evidence([source], [ids], to="es")
    assert found.passes == pytest.approx([found.log_probabilities.mean()] * 2, abs=1e-5)
    assert found.agreement == 1.0


def test_a_reverse_model_judges_answers(translator_folder: Path, back_folder: Path) -> None:
    translator, reverse = regard.load(translator_folder), regard.load(back_folder)
    answer = translator.translate(SENTENCE, to="es")
    plain = answer.assessment
    translator.quality.opinions = SecondOpinions(translator, 0, reverse)
    (found,) = translator.quality.evidence([SENTENCE], [answer.parts[0][1]], to="es")
    ids = reverse.tokenizer.target.encode([SENTENCE])[0]
    chances = reverse.log_probabilities(answer.text, ids).gather(
        1, torch.tensor([*ids, reverse.tokenizer.target.end])[:, None]
    )
    assert found.backward == pytest.approx(float(chances.mean().exp()), abs=1e-5)
    back = reverse.translate(answer.text).text
    assert found.round_trip == pytest.approx(sacrebleu.sentence_chrf(back, [SENTENCE]).score / 100)
    assert translator.quality.assess(answer) == plain  # not calibrated: the estimate of one pass
    with pytest.raises(UsageError, match="expected en to es, the reverse of"):
        SecondOpinions(reverse, 0, reverse)


def test_a_model_without_dropout_has_no_other_voices(translator: Translator) -> None:
    with pytest.raises(UsageError, match="trained without dropout"):
        SecondOpinions(translator, 2, None)
