"""A sight of a translation: panels labelled by what was read and said, the alignment by words."""

from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.errors import UsageError
from regard.inference.pipelines import Translator
from regard.look.views import translation_sight
from regard.models.seq2seq import PRESETS, Seq2Seq, Seq2SeqConfig

SENTENCE = "we are eating bread"


@pytest.fixture(scope="module")
def translator(translator_folder: Path) -> Translator:
    return regard.load(translator_folder)


def test_every_layer_is_there_and_says_whose_tokens_look_at_whose(translator: Translator) -> None:
    answer = translator.translate(SENTENCE, to="es")
    sight = translation_sight(translator, answer)
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
    sight = translation_sight(translator, translator.translate(SENTENCE, to="es"), target="comemos pan")
    assert sight.target == ["comemos", "pan"]
    assert "score" not in sight.meta


def test_an_empty_answer_has_panels_but_no_alignment(translator: Translator) -> None:
    answer = translator.translate(SENTENCE, to="es")
    silent = type(answer)(SENTENCE, "", 0.0, True, [], to="es", parts=[(SENTENCE, [])], translator=translator)
    sight = translation_sight(translator, silent)
    assert sight.alignment is None
    assert sight.panels


def test_a_model_without_attention_says_so(translator: Translator) -> None:
    size = translator.tokenizer.target.size
    preset = {**PRESETS["bottleneck"], "source_vocab": size, "target_vocab": size}
    torch.manual_seed(0)
    fixed = Translator([Seq2Seq(Seq2SeqConfig(**preset))], translator.tokenizer, name="fixed")
    with pytest.raises(UsageError, match="fixed has no attention"):
        translation_sight(fixed, fixed.translate(SENTENCE, to="es", max_length=3))
