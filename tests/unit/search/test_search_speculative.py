"""Speculative decoding against plain decoding: the same logits, whatever the draft guesses."""

import pytest
import torch
from test_runtime_fast import TRANSLATORS, VOCABULARY, WRITERS, answers, decode, ragged, vivid

from regard.runtime import compiled
from regard.runtime.convert import fast_model
from regard.search.settings import SearchSettings
from regard.search.speculative import MAX_GUESSES, SpeculativeModel, decoding_model

DRAFTABLE = {**{kind: TRANSLATORS[kind] for kind in ("post", "pre", "rotary", "t5")}, "gpt2": WRITERS["gpt2"]}


class Around:
    """A wrapper that changes a model a little."""

    def __init__(self, model):
        self.model, self.start, self.step = model, model.start, model.step


class Guesser(Around):
    """A draft that is sometimes right: the model itself, with a wrong token every few calls."""

    def __init__(self, model, wrong_every):
        super().__init__(model)
        self.wrong_every, self.calls = wrong_every, 0

    def extend(self, tokens, state):
        self.calls += 1
        logits = self.model.extend(tokens, state).clone()
        if self.wrong_every and self.calls % self.wrong_every == 0:
            logits[..., (int(logits[0, -1].argmax()) + 1) % logits.shape[-1]] += 100
        return logits


class Counted(Around):
    """Counts the passes of a model."""

    passes = longest = 0

    def extend(self, tokens, state):
        self.passes, self.longest = self.passes + 1, max(self.longest, tokens.shape[1])
        return self.model.extend(tokens, state)


def one_sentence(seed):
    source, mask = ragged(1, seed)
    source = source[:, : int(mask.sum())]
    return source, torch.ones_like(source, dtype=torch.bool)


@pytest.mark.parametrize("wrong_every", [0, 1, 2, 5])
@pytest.mark.parametrize("kind", DRAFTABLE)
def test_answers_are_those_without_a_draft(kind: str, wrong_every: int) -> None:
    for seed in range(3):
        model = vivid(DRAFTABLE[kind], seed)
        form = fast_model(model)
        drafted = SpeculativeModel(form, lambda form=form: Guesser(form, wrong_every), VOCABULARY.end)
        source, mask = one_sentence(seed)
        for settings in (
            SearchSettings(max_length=30, min_length=20),
            SearchSettings(max_length=20, sample=True, seed=seed, n_best=1),
            SearchSettings(max_length=20, sample=True, seed=seed, n_best=3),
            SearchSettings(max_length=20, beam=3),
        ):
            found, expected = (
                decode(steps, source, mask, settings, continues=kind == "gpt2") for steps in (drafted, form)
            )
            assert [h.tokens for h in found[0]] == [h.tokens for h in expected[0]]
            assert [h.score for h in found[0]] == pytest.approx([h.score for h in expected[0]], abs=1e-5)


def test_right_guesses_save_passes_and_wrong_ones_make_it_careful() -> None:
    model = vivid(DRAFTABLE["post"])
    source, mask = one_sentence(0)
    settings, passes = SearchSettings(max_length=40, min_length=40), {}
    for wrong_every in (0, 1):
        counted, draft = Counted(model), Guesser(model, wrong_every)
        decode(SpeculativeModel(counted, lambda draft=draft: draft, VOCABULARY.end), source, mask, settings)
        passes[wrong_every] = counted.passes
        assert counted.longest <= MAX_GUESSES + 1
    assert passes[0] <= 2 + 40 / MAX_GUESSES and passes[1] == 40


def test_several_sentences_go_without_the_draft() -> None:
    model = vivid(DRAFTABLE["post"])
    source, mask = ragged(4)

    def none() -> Guesser:
        raise AssertionError("no draft is needed")

    drafted = SpeculativeModel(model, none, VOCABULARY.end)
    assert answers(drafted, source, mask, 1) == answers(model, source, mask, 1)
    assert answers(drafted, source, mask, 3) == answers(model, source, mask, 3)


def test_no_draft_is_made_for_a_few_tokens() -> None:
    model, made = vivid(DRAFTABLE["post"]), list[str]()

    def draft() -> Guesser:
        made.append("draft")
        return Guesser(model, 3)

    drafted = SpeculativeModel(model, draft, VOCABULARY.end, patience=12)
    source, mask = one_sentence(1)
    settings = SearchSettings(max_length=8, min_length=8)
    for number in range(4):
        assert (
            decode(drafted, source, mask, settings)[0][0].tokens == decode(model, source, mask, settings)[0][0].tokens
        )
        assert bool(made) == (number >= 2)


def test_the_models_own_draft_stays_within_learned_positions() -> None:
    model = vivid(WRITERS["gpt2"])  # has positions for 64 tokens
    steps = decoding_model(model, "fp32", VOCABULARY.end)
    assert isinstance(steps, SpeculativeModel) == (compiled.library() is not None)
    if isinstance(steps, SpeculativeModel):
        steps.patience = 0  # else the first answer goes without a draft
    source, mask = one_sentence(1)
    settings = SearchSettings(max_length=64, min_length=64, context=64)
    found, expected = (decode(each, source, mask, settings, continues=True) for each in (steps, model))
    assert found[0][0].tokens == expected[0][0].tokens
    assert len(found[0][0].tokens) == 64 - source.shape[1] + 1
