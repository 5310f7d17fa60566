"""The best candidates by compiled code against those by torch, on random logits."""

import pytest
import torch

from regard.runtime import compiled
from regard.search.candidates import Candidates, CandidateSelection, Grid
from regard.search.settings import SearchSettings, Vocabulary

VOCABULARY = Vocabulary(start=1, end=2, pad=0)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch):
    """Both implementations: (settings, logits, totals, length) -> candidates by compiled code and by torch."""
    if compiled.library() is None:
        pytest.skip("no compiler here")

    def both(settings: SearchSettings, logits, totals, length: int) -> list[Candidates]:
        selection = CandidateSelection(settings, VOCABULARY, logits.device)
        history = torch.zeros(*totals.shape, length, dtype=torch.long)
        grid = Grid(totals, history, length, torch.empty(len(totals), 0, dtype=torch.long))
        found = [selection(logits.clone(), grid)]
        with monkeypatch.context() as without:
            without.setattr(compiled, "library", lambda: None)
            return [*found, selection(logits.clone(), grid)]

    return both


def same(found: Candidates, expected: Candidates) -> None:
    torch.testing.assert_close(found.total, expected.total, rtol=1e-5, atol=1e-5)
    live = expected.total.isfinite()
    assert torch.equal(found.origin[live], expected.origin[live])
    assert torch.equal(found.token[live], expected.token[live])


@pytest.mark.parametrize("vocab", [5, 63, 64, 65, 1000, 10007])
@pytest.mark.parametrize("beam", [1, 4])
def test_the_same_are_chosen(ways, vocab: int, beam: int) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        logits, totals = torch.randn(7, beam, vocab) * 10 ** (seed - 2), -10 * torch.rand(7, beam)
        for length in (0, 3):
            same(*ways(SearchSettings(beam=beam, min_length=2), logits, totals, length))


def test_what_is_forbidden_is_never_chosen_however_probable(ways) -> None:
    logits = torch.randn(3, 2, 50)
    logits[..., [0, 1]] += 100
    logits[..., 2] += 50
    for length in (0, 5):
        found, expected = ways(SearchSettings(beam=2, min_length=4), logits, torch.zeros(3, 2), length)
        same(found, expected)
        assert not bool((found.token < 2).any())
        assert bool((found.token == 2).any()) == (length == 5)


def test_hypotheses_that_are_dead_stay_so(ways) -> None:
    torch.manual_seed(0)
    totals = torch.tensor([[0.0, -torch.inf, -1.0], [-torch.inf, -2.0, -torch.inf]])
    same(*ways(SearchSettings(beam=3), torch.randn(2, 3, 40), totals, 1))
    same(*ways(SearchSettings(beam=3), torch.randn(2, 3, 5), totals, 1))  # fewer are left than are requested
