"""CTC: searches and alignments against the enumeration of all paths."""

import itertools
import math

import numpy as np
import pytest
import torch

from regard.errors import UsageError
from regard.families.speech import ctc


def drawn(seed, frames, labels):
    logits = torch.randn(frames, labels, generator=torch.Generator().manual_seed(seed)) * 2
    return logits.log_softmax(-1).double().numpy()


def paths(frames):
    """Every path and its log-probability."""
    for path in itertools.product(range(frames.shape[1]), repeat=len(frames)):
        yield path, float(frames[range(len(frames)), path].sum())


def totals(frames, blank):
    """The log-probability of every labelling, summed over all its paths."""
    found = {}
    for path, score in paths(frames):
        found.setdefault(tuple(ctc.collapse(path, blank)), []).append(score)
    return {labels: float(np.logaddexp.reduce(scores)) for labels, scores in found.items()}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("blank", [0, 2])
def test_a_wide_beam_finds_what_enumeration_finds(seed, blank):
    frames = drawn(seed, 5, 3)
    wanted = sorted(totals(frames, blank).items(), key=lambda item: -item[1])
    found = ctc.beam_search(frames, blank, width=400, count=10)
    assert [tuple(each.labels) for each in found] == [labels for labels, _ in wanted[:10]]
    for each, (_, score) in zip(found, wanted, strict=False):
        assert each.score == pytest.approx(score, abs=1e-6)
    assert math.isclose(sum(math.exp(score) for _, score in wanted), 1.0, rel_tol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_greedy_is_the_most_probable_path(seed):
    frames = drawn(seed, 5, 4)
    path, score = max(paths(frames), key=lambda item: item[1])
    found = ctc.greedy(frames, 0)
    assert found.labels == ctc.collapse(path, 0) and found.score == pytest.approx(score)


def test_a_beam_can_find_labels_that_no_single_path_prefers():
    """Graves' example: blank is the best label of both frames, yet "a" is more probable than nothing."""
    frames = np.log(np.array([[0.6, 0.4], [0.6, 0.4]]))
    assert ctc.greedy(frames, 0).labels == []
    (best,) = ctc.beam_search(frames, 0, width=4)
    assert best.labels == [1] and best.score == pytest.approx(math.log(0.64))


@pytest.mark.parametrize("seed", range(8))
def test_the_aligned_frames_are_those_of_the_best_path(seed):
    frames = drawn(seed, 6, 3)
    labels = [[1], [1, 2], [1, 1], [2, 1, 2], [1, 1, 2], [2, 2, 1], [1, 2, 1, 2], [2, 2, 2]][seed]
    best, _ = max(((p, s) for p, s in paths(frames) if ctc.collapse(p, 0) == labels), key=lambda item: item[1])
    spans = ctc.align(frames, labels, 0)
    drawn_path = [0] * 6
    for span in spans:
        drawn_path[span.first : span.last] = [span.label] * (span.last - span.first)
    assert drawn_path == list(best) and [span.label for span in spans] == labels
    assert spans[0].score == pytest.approx(frames[spans[0].first : spans[0].last, labels[0]].mean())


def test_scores_of_labels_are_sums_over_paths():
    frames = drawn(3, 5, 3)
    wanted = totals(frames, 0)
    some = [(1,), (1, 1), (2, 1, 2), ()]
    stacked = torch.from_numpy(frames)[:, None].expand(-1, len(some), -1)
    found = ctc.scores(stacked, [5] * len(some), some, 0)
    assert found == pytest.approx([wanted[each] for each in some], abs=1e-5)


def test_labels_that_do_not_fit_are_refused():
    assert ctc.needed_frames([1, 1, 2]) == 4 and ctc.needed_frames([]) == 0
    assert ctc.align(drawn(0, 3, 3), [], 0) == []
    with pytest.raises(UsageError, match="need 4 frames"):
        ctc.align(drawn(0, 3, 3), [1, 1, 2], 0)
