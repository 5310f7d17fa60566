"""Models that score paths: every candidate is scored by itself, whatever stands beside it."""

import pytest
import torch

from regard.families.catalog import MODELS
from regard.families.navigation.vlnbert import score_candidates

NAMES = ("vlnbert", "path_lstm")


def scorer(name):
    torch.manual_seed(3)
    entry = MODELS[name]
    return entry.model(entry.config.parse({**entry.presets["tiny"], "vocab": 40})).eval()


def batch(texts=2, paths=5, rows=9, length=7):
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(1, 40, (texts, length), generator=generator)
    words_mask = torch.arange(length) < torch.tensor([length, length - 3])[:texts, None]
    features = torch.randn(texts, paths, rows, 51, generator=generator)
    places = torch.randn(texts, paths, rows, 11, generator=generator)
    counts = torch.randint(3, rows + 1, (texts, paths, 1), generator=generator)
    return words, words_mask, features, places, torch.arange(rows) < counts


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_another_order_of_candidates_gives_the_same_scores_in_that_order(name):
    words, mask, *paths = batch()
    model, order = scorer(name), torch.tensor([3, 0, 4, 2, 1])
    scores = score_candidates(model, words, mask, *paths)
    moved = score_candidates(model, words, mask, *(each[:, order] for each in paths))
    assert scores.std() > 1e-4
    torch.testing.assert_close(moved, scores[:, order], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_batched_scores_are_those_of_single_pairs_and_padding_changes_nothing(name):
    words, mask, features, places, steps = batch()
    model = scorer(name)
    scores = score_candidates(model, words, mask, features, places, steps)
    for text in range(2):
        length = int(mask[text].sum())
        for path in range(5):
            rows = int(steps[text, path].sum())
            alone = model(
                words[text : text + 1, :length], mask[text : text + 1, :length], features[text : text + 1, path, :rows],
                places[text : text + 1, path, :rows], steps[text : text + 1, path, :rows],
            ).score  # fmt: skip
            torch.testing.assert_close(alone[0], scores[text, path], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_a_candidate_that_is_not_there_is_never_chosen(name):
    words, mask, features, places, steps = batch()
    steps[:, 2] = False
    scores = score_candidates(scorer(name), words, mask, features, places, steps)
    assert scores[:, 2].isinf().all() and scores[:, [0, 1, 3, 4]].isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_a_score_depends_on_the_words(name):
    words, mask, *paths = batch(texts=1, paths=1)
    model = scorer(name)
    assert (
        abs(score_candidates(model, words, mask, *paths) - score_candidates(model, words.flip(1), mask, *paths)) > 1e-5
    )
