"""Sights of every kind of model: panels labelled by what was read and said, words aligned, tokens foretold."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.attention import record
from regard.errors import DataError, UsageError
from regard.inference.pipelines.translator import Translator
from regard.look.scenes import set_scene, translated_scene
from regard.look.sight import from_json, to_json
from regard.models.seq2seq import PRESETS, Seq2Seq, Seq2SeqConfig

SENTENCE = "we are eating bread"


@pytest.fixture(scope="module")
def translator(translator_folder: Path) -> Translator:
    return regard.load(translator_folder)


def test_every_layer_is_there_and_says_whose_tokens_look_at_whose(translator: Translator) -> None:
    answer = translator.translate(SENTENCE, to="es")
    sight = translated_scene(translator, answer).sight()
    kinds = {panel.name: panel.kind for panel in sight.panels}
    assert kinds == {
        "encoder.0.attention": "self",
        "decoder.0.attention": "causal", "decoder.0.cross": "cross",
        "decoder.1.attention": "causal", "decoder.1.cross": "cross",
    }  # fmt: skip
    for panel in sight.panels:
        np.testing.assert_allclose(panel.weights.sum(axis=-1), 1, atol=1e-5)
        sides = {"source": ">>es<<", "target": "<s>"}
        assert panel.keys[0] == sides["target" if panel.kind == "causal" else "source"]
        assert panel.queries[0] == sides["source" if panel.kind == "self" else "target"]
    assert sight.alignment is not None
    np.testing.assert_allclose(sight.alignment.weights[0], answer.attention, atol=1e-6)
    assert (sight.target, sight.source) == (answer.target_words, answer.source_words)
    assert sight.meta["score"] == f"{answer.score:.4f}"


def test_a_given_target_is_looked_at_instead(translator: Translator) -> None:
    sight = set_scene(translator, SENTENCE, to="es", target="comemos pan").sight()
    assert sight.target == ["comemos", "pan"]
    assert "score" not in sight.meta


def test_an_empty_answer_has_panels_but_no_alignment(translator: Translator) -> None:
    answer = translator.translate(SENTENCE, to="es")
    silent = type(answer)(SENTENCE, "", 0.0, True, [], to="es", parts=[(SENTENCE, [])], translator=translator)
    sight = translated_scene(translator, silent).sight()
    assert sight.alignment is None
    assert sight.panels


def test_a_model_without_attention_says_so(translator: Translator) -> None:
    size = translator.tokenizer.target.size
    preset = {**PRESETS["bottleneck"], "source_vocab": size, "target_vocab": size}
    torch.manual_seed(0)
    fixed = Translator([Seq2Seq(Seq2SeqConfig(**preset))], translator.tokenizer, name="fixed")
    with pytest.raises(UsageError, match="fixed has no attention"):
        translated_scene(fixed, fixed.translate(SENTENCE, to="es", max_length=3))


# Encoders


def test_an_encoder_reads_a_pair_and_guesses_its_hidden_words(make_encoder: Callable[..., Path]) -> None:
    encoder = regard.load(make_encoder("masked"))
    sight = set_scene(encoder, "we are [MASK] bread .", pair="she [MASK]").sight(top=3)
    tokens = ["[CLS]", "we", "are", "[MASK]", "bread", ".", "[SEP]", "she", "[MASK]", "[SEP]"]
    assert [panel.name for panel in sight.panels] == ["encoder.0.attention", "encoder.1.attention"]
    for panel in sight.panels:
        assert (panel.kind, panel.queries, panel.keys) == ("self", tokens, tokens)
        np.testing.assert_allclose(panel.weights.sum(axis=-1), 1, atol=1e-5)
    (row,) = encoder.tokenizer.encode(["we are [MASK] bread ."], ["she [MASK]"], marked=True)
    ids, segments = (torch.tensor([each]) for each in row)
    logits = encoder.model(ids, torch.ones_like(ids, dtype=torch.bool), segments).logits
    assert [each.place for each in sight.foretold] == [3, 8] and sight.tokens == tokens
    for told in sight.foretold:
        probability, best = logits[0, told.place].softmax(-1).topk(3)
        assert [choice.token for choice in told.choices] == encoder.tokenizer.pieces(best.tolist())
        assert [choice.probability for choice in told.choices] == pytest.approx(probability.tolist(), abs=1e-5)
        assert told.came is None and told.choices[0].drawn is None


def test_what_hides_nothing_or_cannot_be_guessed_is_only_looked_at(make_encoder: Callable[..., Path]) -> None:
    assert set_scene(regard.load(make_encoder("masked")), "we are eating").sight().foretold == []
    sight = set_scene(regard.load(make_encoder("none")), "we [MASK]").sight()
    assert sight.foretold == [] and sight.panels[0].keys == ["[CLS]", "we", "[MASK]", "[SEP]"]


# Writers


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_a_language_model_is_seen_as_it_looked_while_it_wrote(kind: str, make_writer: Callable[[str], Path]) -> None:
    writer = regard.load(make_writer(kind))
    writing = {"max_tokens": 9, "temperature": 0.9, "seed": 5}
    with record(writer.model) as looks:  # step by step, from the growing cache
        answer = writer.generate("the fox saw", **writing)
    scene = set_scene(writer, "the fox saw", **writing)
    sight = scene.sight()
    assert scene.said == answer.text
    for panel in sight.panels:
        steps = looks[panel.name][0].numpy()
        rows = min(steps.shape[1], len(panel.queries))  # the last token was written but not read
        assert panel.kind == "causal" and rows >= len(panel.queries) - 1
        np.testing.assert_allclose(panel.weights[:, :rows, :rows], steps[:, :rows, :rows], atol=1e-5)
        assert not np.triu(panel.weights, k=1).any()
    assert [each.came.token for each in sight.foretold if each.written] == writer.tokenizer.shown(answer.ids)
    assert all(each.came.drawn > 0 for each in sight.foretold if each.written)


def test_a_language_model_may_only_read(make_writer: Callable[[str], Path]) -> None:
    writer = regard.load(make_writer("gpt"))
    sight = set_scene(writer, "the fox saw the owl").sight(top=2)
    assert sight.panels[0].queries == writer.tokenizer.shown(writer.read("the fox saw the owl")) == sight.tokens
    assert len(sight.foretold) == len(sight.tokens) and not any(each.written for each in sight.foretold)
    assert "answer" not in sight.meta


def test_a_t5_answers_or_says_what_it_is_given(make_writer: Callable[[str], Path]) -> None:
    writer = regard.load(make_writer("t5"))
    sight = set_scene(writer, "the fox saw", max_tokens=5).sight()
    answer = writer.generate("the fox saw", max_tokens=5)
    kinds = [panel.kind for panel in sight.panels]
    assert kinds == ["self", "self", "causal", "cross", "causal", "cross"] and sight.meta["answer"] == answer.text
    for panel in sight.panels:
        np.testing.assert_allclose(panel.weights, answer.attention.weights[panel.name], atol=1e-6)
    given = set_scene(writer, "the fox saw", target="the owl").sight()
    ids = writer.tokenizer.encode(["the owl"])[0].ids
    assert given.tokens[1:] == writer.tokenizer.shown(ids) and given.foretold[-1].came.token == "<|endoftext|>"


def test_scores_make_the_weights(make_writer: Callable[[str], Path], make_encoder: Callable[..., Path]) -> None:
    for folder in (make_writer("llama"), make_writer("t5"), make_encoder("none")):
        scene = set_scene(regard.load(folder), "the fox saw the owl is big")
        for name, layer in scene.layers.items():
            scores, weights = scene.record([name], scores=True).weights[name], scene.record([name]).weights[name]
            if layer.kind == "causal":
                scores = np.where(np.tri(scores.shape[1], dtype=bool), scores, -np.inf)
            expected = torch.from_numpy(scores).softmax(-1).numpy()
            np.testing.assert_allclose(weights, expected, atol=1e-5)


def test_a_sight_survives_its_json(make_writer: Callable[[str], Path]) -> None:
    sight = set_scene(regard.load(make_writer("gpt")), "the fox", max_tokens=4, seed=1).sight(top=3)
    assert to_json(from_json(to_json(sight))) == to_json(sight)
    assert to_json(sight)["foretold"][0]["choices"][0].keys() == {"token", "probability", "drawn"}


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
            set_scene(model, "the fox", **wrong)
    with pytest.raises(UsageError, match="nothing is written, so seed, topk has no use"):
        set_scene(writer, "the fox", seed=1, topk=3, temperature=0.5)
    for model in (encoder, translator):
        with pytest.raises(UsageError, match="empty"):
            set_scene(model, " ", **({"to": "es"} if model is translator else {}))
    with pytest.raises(DataError, match="at most"):
        set_scene(encoder, "we " * 30)
