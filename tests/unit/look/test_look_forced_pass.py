"""Forced passes: the recorded weights equal the model's own computation, by token and by word."""

from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.attention import record
from regard.data.formats.pairs import Pair
from regard.families.translation.translator import Translator
from regard.look.forced_pass import (
    AlignmentSettings,
    Pass,
    aligning_layers,
    choose_alignment,
    default_alignment,
    kind_of,
    readings,
    within,
)


@pytest.fixture(scope="module")
def translator(translator_folder: Path) -> Translator:
    return regard.load(translator_folder)


def test_a_batch_of_passes_equals_each_alone_and_a_plain_recording(translator: Translator) -> None:
    sources, targets = ["we are eating bread", "she reads"], ["comemos pan", "ella lee un libro"]
    together = translator.passes(sources, targets, to="es", layers="*")
    tokenizer, model = translator.tokenizer, translator.models[0]
    for source, target, seen in zip(sources, targets, together, strict=True):
        (alone,) = translator.passes([source], [target], to="es", layers="*")
        ids = torch.tensor(tokenizer.source_ids([source], "es"))
        inputs = torch.tensor([[tokenizer.target.start, *tokenizer.target.encode([target])[0]]])
        with record(model, "*") as looks:
            model(ids, torch.ones_like(ids, dtype=torch.bool), inputs)
        assert seen.weights.keys() == alone.weights.keys() == set(looks)
        for name, weights in seen.weights.items():
            np.testing.assert_allclose(weights, alone.weights[name], atol=1e-6)
            np.testing.assert_allclose(weights, looks[name][0].detach().numpy(), atol=1e-6)
        assert seen.words(translator.aligning()).shape == (len(target.split()), len(source.split()))


def hand_made(heads: np.ndarray) -> Pass:
    """Two target words of one token each over a tag, two source words and the end token."""
    return Pass({"decoder.0.cross": heads}, [-1, 0, 1, -1], [0, 1], source_words=2, target_words=2)


FORWARD = np.array([[0.0, 0.9, 0.1, 0.0], [0.0, 0.1, 0.9, 0.0], [0.0, 0.0, 1.0, 0.0]])
BACKWARD = np.array([[0.0, 0.1, 0.9, 0.0], [0.0, 0.9, 0.1, 0.0], [0.0, 1.0, 0.0, 0.0]])


def test_settings_choose_the_head_and_the_shift() -> None:
    seen = hand_made(np.stack([FORWARD, BACKWARD]))
    layer = "decoder.0.cross"
    assert seen.links(AlignmentSettings(layer=layer, shift=False, head=0)) == [(0, 0), (1, 1)]
    assert seen.links(AlignmentSettings(layer=layer, shift=False, head=1)) == [(0, 1), (1, 0)]
    assert seen.heaviest_words(AlignmentSettings(layer=layer, shift=False, head=1)) == [1, 0]
    assert seen.heaviest_words(AlignmentSettings(layer=layer, shift=False, head=1), among={1}) == [1, 1]
    mean = seen.words(AlignmentSettings(layer=layer, shift=False))
    np.testing.assert_allclose(mean, np.full((2, 2), 0.5))
    assert seen.links(AlignmentSettings(layer=layer, shift=True, head=0)) == [(1, 0), (1, 1)]


def test_every_reading_is_offered_once_and_gold_or_words_choose_among_them() -> None:
    passes = [hand_made(np.stack([FORWARD, BACKWARD]))] * 8
    offered = readings(passes)
    assert len(set(offered)) == len(offered) == 6  # the mean and two heads, shifted and not
    gold = [Pair("a b", "B A", links=((0, 1), (1, 0)))] * 8
    assert choose_alignment(passes, gold) == AlignmentSettings(layer="decoder.0.cross", shift=False, head=1)
    words = [Pair("a b", "A B"), Pair("b a", "B A"), Pair("c a", "C A"), Pair("b c", "B C")] * 2
    assert choose_alignment(passes, words) == AlignmentSettings(layer="decoder.0.cross", shift=False, head=0)
    assert choose_alignment([], []) is None


def test_words_a_tokenizer_drops_have_no_weight_and_words_it_adds_belong_to_the_last() -> None:
    dropped = Pass({"cross": FORWARD[None]}, [-1, 0, 1, -1], [0, 1], source_words=3, target_words=3)
    weights = dropped.words(AlignmentSettings(layer="cross", shift=False))
    assert weights.shape == (3, 3)
    assert weights[2].sum() == weights[:, 2].sum() == 0
    assert within([0, 1, 2, 3], 2) == [0, 1, 1, 1]


def test_kinds_and_defaults(translator: Translator) -> None:
    assert [kind_of(name) for name in ("encoder.0.attention", "decoder.0.attention", "decoder.0.cross", "cross")] == [
        "self", "causal", "cross", "cross",
    ]  # fmt: skip
    assert aligning_layers(translator.models[0]) == ["decoder.0.cross", "decoder.1.cross"]
    assert default_alignment(translator.models[0]) == AlignmentSettings(layer="decoder.0.cross", shift=True)
    assert default_alignment(torch.nn.Linear(2, 2)) is None


def test_a_guided_head_links_by_weight_and_leaves_to_the_end_token_what_has_no_source() -> None:
    guided = AlignmentSettings(layer="decoder.0.cross", shift=False, head=0, threshold=0.4)
    step = np.zeros(4)
    both, none = [0.0, 0.5, 0.45, 0.05], [0.0, 0.1, 0.2, 0.7]
    seen = hand_made(np.array([[both, none, step]]))
    assert seen.links(guided) == [(0, 0), (1, 0)]
    np.testing.assert_allclose(seen.words(guided), [[0.5, 0.45], [0.1, 0.2]])
    claimed = hand_made(np.array([[[0.0, 0.9, 0.0, 0.1], [0.0, 0.5, 0.4, 0.1], step]]))
    assert claimed.links(guided) == [(0, 0), (1, 1)]  # source word 0 is shared 9 : 5, too little for target word 1
