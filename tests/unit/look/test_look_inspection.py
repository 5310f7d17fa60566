"""Inspections of every kind of text model: panels with the tokens of each side, word alignments and predictions."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.attention import record
from regard.errors import DataError, UsageError
from regard.families.translation.seq2seq import PRESETS, Seq2Seq, Seq2SeqConfig
from regard.families.translation.translator import Translator
from regard.families.translation.view import inspect_translation
from regard.look.inspection import inspect_text
from regard.look.report import from_json, to_json

SENTENCE = "we are eating bread"


@pytest.fixture(scope="module")
def translator(translator_folder: Path) -> Translator:
    return regard.load(translator_folder)


def test_every_layer_is_there_and_says_whose_tokens_look_at_whose(translator: Translator) -> None:
    answer = translator.translate(SENTENCE, to="es")
    report = inspect_translation(translator, answer).report()
    kinds = {panel.name: panel.kind for panel in report.panels}
    assert kinds == {
        "encoder.0.attention": "self",
        "decoder.0.attention": "causal", "decoder.0.cross": "cross",
        "decoder.1.attention": "causal", "decoder.1.cross": "cross",
    }  # fmt: skip
    for panel in report.panels:
        np.testing.assert_allclose(panel.weights.sum(axis=-1), 1, atol=1e-5)
        sides = {"source": ">>es<<", "target": "<s>"}
        assert panel.keys.texts[0] == sides["target" if panel.kind == "causal" else "source"]
        assert panel.queries.texts[0] == sides["source" if panel.kind == "self" else "target"]
    assert report.alignment is not None
    np.testing.assert_allclose(report.alignment.weights[0], answer.attention, atol=1e-6)
    assert (report.target, report.source) == (answer.target_words, answer.source_words)
    assert report.meta["score"] == f"{answer.score:.4f}"


def test_a_given_target_is_looked_at_instead(translator: Translator) -> None:
    report = inspect_text(translator, SENTENCE, to="es", target="comemos pan").report()
    assert report.target == ["comemos", "pan"]
    assert "score" not in report.meta


def test_an_empty_answer_has_panels_but_no_alignment(translator: Translator) -> None:
    answer = translator.translate(SENTENCE, to="es")
    silent = type(answer)(SENTENCE, "", 0.0, True, [], to="es", parts=[(SENTENCE, [])], translator=translator)
    report = inspect_translation(translator, silent).report()
    assert report.alignment is None
    assert report.panels


def test_a_model_without_attention_says_so(translator: Translator) -> None:
    size = translator.tokenizer.target.size
    preset = {**PRESETS["bottleneck"], "source_vocab": size, "target_vocab": size}
    torch.manual_seed(0)
    fixed = Translator([Seq2Seq(Seq2SeqConfig(**preset))], translator.tokenizer, name="fixed")
    with pytest.raises(UsageError, match="fixed has no attention"):
        inspect_translation(fixed, fixed.translate(SENTENCE, to="es", max_length=3))


# Encoders


def test_an_encoder_reads_a_pair_and_guesses_its_hidden_words(make_encoder: Callable[..., Path]) -> None:
    encoder = regard.load(make_encoder("masked"))
    report = inspect_text(encoder, "we are [MASK] bread .", pair="she [MASK]").report(top=3)
    tokens = ["[CLS]", "we", "are", "[MASK]", "bread", ".", "[SEP]", "she", "[MASK]", "[SEP]"]
    assert [panel.name for panel in report.panels] == ["encoder.0.attention", "encoder.1.attention"]
    for panel in report.panels:
        assert (panel.kind, panel.queries.texts, panel.keys.texts) == ("self", tokens, tokens)
        np.testing.assert_allclose(panel.weights.sum(axis=-1), 1, atol=1e-5)
    (row,) = encoder.tokenizer.encode(["we are [MASK] bread ."], ["she [MASK]"], marked=True)
    ids, segments = (torch.tensor([each]) for each in row)
    logits = encoder.model(ids, torch.ones_like(ids, dtype=torch.bool), segments).logits
    assert [each.place for each in report.predictions] == [3, 8] and report.tokens == tokens
    for told in report.predictions:
        probability, best = logits[0, told.place].softmax(-1).topk(3)
        assert [choice.token for choice in told.choices] == encoder.tokenizer.pieces(best.tolist())
        assert [choice.probability for choice in told.choices] == pytest.approx(probability.tolist(), abs=1e-5)
        assert told.actual is None and told.choices[0].drawn is None


def test_what_hides_nothing_or_cannot_be_guessed_is_only_looked_at(make_encoder: Callable[..., Path]) -> None:
    assert inspect_text(regard.load(make_encoder("masked")), "we are eating").report().predictions == []
    report = inspect_text(regard.load(make_encoder("none")), "we [MASK]").report()
    assert report.predictions == [] and report.panels[0].keys.texts == ["[CLS]", "we", "[MASK]", "[SEP]"]


# Text generators


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_a_language_model_is_seen_as_it_looked_while_it_wrote(kind: str, make_writer: Callable[[str], Path]) -> None:
    writer = regard.load(make_writer(kind))
    writing = {"max_tokens": 9, "temperature": 0.9, "seed": 5}
    with record(writer.model) as looks:  # step by step, with the growing cache
        answer = writer.generate("the fox saw", **writing)
    inspection = inspect_text(writer, "the fox saw", **writing)
    report = inspection.report()
    assert inspection.said == answer.text
    for panel in report.panels:
        steps = looks[panel.name][0].numpy()
        rows = min(steps.shape[1], len(panel.queries))  # the last token was generated but not read
        assert panel.kind == "causal" and rows >= len(panel.queries) - 1
        np.testing.assert_allclose(panel.weights[:, :rows, :rows], steps[:, :rows, :rows], atol=1e-5)
        assert not np.triu(panel.weights, k=1).any()
    assert [each.actual.token for each in report.predictions if each.generated] == writer.tokenizer.shown(answer.ids)
    assert all(each.actual.drawn > 0 for each in report.predictions if each.generated)


def test_a_language_model_may_only_read(make_writer: Callable[[str], Path]) -> None:
    writer = regard.load(make_writer("gpt"))
    report = inspect_text(writer, "the fox saw the owl").report(top=2)
    assert report.panels[0].queries.texts == writer.tokenizer.shown(writer.read("the fox saw the owl")) == report.tokens
    assert len(report.predictions) == len(report.tokens) and not any(each.generated for each in report.predictions)
    assert "answer" not in report.meta


def test_a_t5_answers_or_says_what_it_is_given(make_writer: Callable[[str], Path]) -> None:
    writer = regard.load(make_writer("t5"))
    report = inspect_text(writer, "the fox saw", max_tokens=5).report()
    answer = writer.generate("the fox saw", max_tokens=5)
    kinds = [panel.kind for panel in report.panels]
    assert kinds == ["self", "self", "causal", "cross", "causal", "cross"] and report.meta["answer"] == answer.text
    for panel in report.panels:
        np.testing.assert_allclose(panel.weights, answer.attention.weights[panel.name], atol=1e-6)
    given = inspect_text(writer, "the fox saw", target="the owl").report()
    ids = writer.tokenizer.encode(["the owl"])[0].ids
    assert given.tokens[1:] == writer.tokenizer.shown(ids) and given.predictions[-1].actual.token == "<|endoftext|>"


def test_scores_make_the_weights(make_writer: Callable[[str], Path], make_encoder: Callable[..., Path]) -> None:
    for folder in (make_writer("llama"), make_writer("t5"), make_encoder("none")):
        inspection = inspect_text(regard.load(folder), "the fox saw the owl is big")
        for name, layer in inspection.layers.items():
            scores, weights = (
                inspection.record([name], scores=True).weights[name],
                inspection.record([name]).weights[name],
            )
            if layer.kind == "causal":
                scores = np.where(np.tri(scores.shape[1], dtype=bool), scores, -np.inf)
            expected = torch.from_numpy(scores).softmax(-1).numpy()
            np.testing.assert_allclose(weights, expected, atol=1e-5)


def test_a_report_survives_its_json(make_writer: Callable[[str], Path]) -> None:
    report = inspect_text(regard.load(make_writer("gpt")), "the fox", max_tokens=4, seed=1).report(top=3)
    assert to_json(from_json(to_json(report))) == to_json(report)
    assert to_json(report)["predictions"][0]["choices"][0].keys() == {"token", "probability", "drawn"}


def test_what_a_model_has_no_use_for_is_refused(translator: Translator, make_writer, make_encoder) -> None:
    encoder, writer, t5 = (
        regard.load(each) for each in (make_encoder("masked"), make_writer("gpt"), make_writer("t5"))
    )
    for model, wrong in (
        (translator, {"pair": "x"}), (translator, {"max_tokens": 3, "to": "es"}), (encoder, {"to": "es"}),
        (encoder, {"target": "x"}), (encoder, {"temperature": 1.0}), (writer, {"pair": "x"}), (writer, {"to": "es"}),
        (writer, {"target": "x"}), (t5, {"pair": "x"}),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="takes no"):
            inspect_text(model, "the fox", **wrong)
    with pytest.raises(UsageError, match="nothing is written, so seed, topk has no use"):
        inspect_text(writer, "the fox", seed=1, topk=3, temperature=0.5)
    for model in (encoder, translator):
        with pytest.raises(UsageError, match="empty"):
            inspect_text(model, " ", **({"to": "es"} if model is translator else {}))
    with pytest.raises(DataError, match="at most"):
        inspect_text(encoder, "we " * 30)
