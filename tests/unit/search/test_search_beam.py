"""The search against enumeration, batches against single sentences, and every option against its definition."""

import itertools
import math
import os

import pytest
import torch
from torch import nn

from regard.errors import UsageError
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.search.candidates import MANY_SCORES, _top
from regard.search.protocols import Ensemble
from regard.search.search import Search, search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.start import from_source

VOCABULARY = Vocabulary(start=1, end=2, pad=0)
BRUTE = Vocabulary(start=0, end=1, pad=0)  # three ordinary tokens out of five
MODELS = int(os.environ.get("REGARD_FAULT_COUNT", "5"))


class RandomModel(nn.Module):
    """Logits that are a fixed random function of the sentence and the whole prefix."""

    def __init__(self, seed: int, vocab: int = 5, sharp: float = 1.0):
        super().__init__()
        self.seed, self.vocab, self.sharp = seed, vocab, sharp

    def start(self, source, source_mask):
        return PrefixState([[tuple(s[m].tolist())] for s, m in zip(source, source_mask, strict=True)])

    def step(self, tokens, state):
        state.prefixes = [
            [(*prefix, token) for prefix, token in zip(prefixes, row, strict=True)]
            for prefixes, row in zip(state.prefixes, tokens.tolist(), strict=True)
        ]
        return torch.stack([torch.stack([self.logits(prefix) for prefix in prefixes]) for prefixes in state.prefixes])

    def logits(self, prefix):
        generator = torch.Generator().manual_seed(hash((self.seed, *prefix)) % 2**31)
        return torch.randn(self.vocab, generator=generator) * self.sharp


class PrefixState:
    def __init__(self, prefixes):
        self.prefixes = prefixes

    def reorder(self, origin):
        self.prefixes = [[p[w] for w in row] for p, row in zip(self.prefixes, origin.tolist(), strict=True)]

    def keep(self, sentences):
        self.prefixes = [self.prefixes[s] for s in sentences.tolist()]

    def copy(self):
        return PrefixState(list(self.prefixes))


def decode(model, source, mask, settings, *, vocabulary=VOCABULARY, prefixes=None):
    """The answers of a search that starts from token ids."""
    start = from_source(model, source, mask, settings, vocabulary.start, prefixes=prefixes)
    return search(model, start, settings, vocabulary)


def every_answer(model, source, limit, penalty):
    """(score, finished, tokens) of every sequence up to the limit, by enumeration."""
    ordinary = [t for t in range(model.vocab) if t not in BRUTE]
    for length in range(limit + 1):
        for tokens in itertools.product(ordinary, repeat=length):
            total, prefix = 0.0, (*source, BRUTE.start)
            for token in (*tokens, BRUTE.end) if length < limit else tokens:
                total += float(model.logits(prefix).log_softmax(-1)[token])
                prefix = (*prefix, token)
            size = length + 1 if length < limit else length
            yield total / size**penalty, length < limit, list(tokens)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_a_wide_beam_finds_what_brute_force_finds(penalty):
    source = torch.tensor([[3, 4]])
    for seed in range(MODELS):
        model = RandomModel(seed)
        best = sorted(every_answer(model, (3, 4), 6, penalty), key=lambda a: (-a[1], -a[0]))[:4]
        settings = SearchSettings(beam=243, n_best=4, max_length=6, length_penalty=penalty)
        (found,) = decode(model, source, torch.ones_like(source, dtype=torch.bool), settings, vocabulary=BRUTE)
        assert [h.tokens for h in found] == [tokens for _, _, tokens in best]
        for hypothesis, (score, _, _) in zip(found, best, strict=True):
            assert hypothesis.score == pytest.approx(score, abs=1e-4)


def ragged(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 8, (count,), generator=generator)
    return torch.randint(3, 20, (count, 7), generator=generator), torch.arange(7) < lengths[:, None]


def transformer(seed=0):
    torch.manual_seed(seed)
    sizes = {"width": 32, "heads": 4, "encoder_depth": 2, "decoder_depth": 2, "ffn_width": 64}
    model = Transformer(TransformerConfig(source_vocab=20, target_vocab=20, **sizes)).eval()
    with torch.no_grad():
        model.target_embedding.weight.mul_(4)  # sharper distributions: random weights give a nearly uniform one
    return model


@pytest.mark.parametrize(
    "settings",
    [
        SearchSettings(),
        SearchSettings(beam=4, n_best=3),
        SearchSettings(sample=True, n_best=2, temperature=0.8, top_k=9, top_p=0.9),
        SearchSettings(beam=3, no_repeat_ngram=2, min_length=4),
    ],
)
def test_a_batch_gives_what_its_sentences_give_one_by_one(settings):
    model, (source, mask) = transformer(), ragged(40 if "REGARD_FAULT_COUNT" in os.environ else 12)
    together = decode(model, source, mask, settings)
    for row, length in enumerate(mask.sum(1).tolist()):
        (alone,) = decode(model, source[row : row + 1, :length], mask[row : row + 1, :length], settings)
        assert [h.tokens for h in alone] == [h.tokens for h in together[row]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[row]], abs=1e-4)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
def test_answers_come_in_order_of_score_and_their_number_never_changes_the_first(length_penalty):
    kinds = set()
    for seed in range(3):
        model, (source, mask) = transformer(seed), ragged(16, seed)
        for beam, limit in ((1, 3), (3, 5)):
            settings = SearchSettings(beam=beam, max_length=limit, length_penalty=length_penalty)
            settings = settings.replace(logit_bias={VOCABULARY.end: 2.0})  # random models seldom end an answer
            alone = [found[0] for found in decode(model, source, mask, settings)]
            for n_best in (2, 7):
                several = decode(model, source, mask, settings.replace(n_best=n_best))
                for best, found in zip(alone, several, strict=True):
                    assert found[0].tokens == best.tokens
                    scores, ended = ([getattr(each, name) for each in found] for name in ("score", "finished"))
                    assert scores == sorted(scores, reverse=True)
                    assert len({tuple(each.tokens) for each in found}) == len(found) <= n_best
                    kinds |= set(ended)
    assert kinds == {True, False}  # ended answers and cut ones


def test_every_drawn_answer_is_given_in_order_of_score():
    model, (source, mask) = transformer(), ragged(6)
    for found in decode(model, source, mask, SearchSettings(sample=True, n_best=9, max_length=3)):
        scores = [each.score for each in found]
        assert len(found) == 9 and scores == sorted(scores, reverse=True)


def test_greedy_follows_the_best_token():
    model, (source, mask) = transformer(), ragged(10)
    for row, (best,) in enumerate(decode(model, source, mask, SearchSettings(max_length=9))):
        inputs = torch.tensor([[VOCABULARY.start, *best.tokens]])
        logits = model(source[row : row + 1], mask[row : row + 1], inputs)
        logits[..., [0, 1]] = -math.inf
        told = logits.argmax(-1)[0].tolist()
        assert told[: len(best.tokens)] == best.tokens
        assert not best.finished or told[-1] == VOCABULARY.end


def test_scores_are_the_models_own_log_probabilities():
    model, (source, mask) = transformer(), ragged(5)
    settings = SearchSettings(beam=4, n_best=4, length_penalty=0.7)
    for row, hypotheses in enumerate(decode(model, source, mask, settings)):
        for h in hypotheses:
            answer = [*h.tokens, VOCABULARY.end] if h.finished else h.tokens
            inputs = torch.tensor([[VOCABULARY.start, *answer[:-1]]])
            log_p = model(source[row : row + 1], mask[row : row + 1], inputs).log_softmax(-1)[0]
            total = log_p[torch.arange(len(answer)), torch.tensor(answer)].sum().item()
            assert h.log_probability == pytest.approx(total, abs=1e-4)
            assert h.score == pytest.approx(total / len(answer) ** 0.7, abs=1e-4)
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)


def test_minimum_and_maximum_length():
    model, (source, mask) = transformer(), ragged(20)
    for (h,) in decode(model, source, mask, SearchSettings(min_length=5, max_length=7, beam=2)):
        assert 5 <= len(h.tokens) <= 7
        assert h.finished or len(h.tokens) == 7


def test_no_ngram_comes_twice():
    model, (source, mask) = transformer(3), ragged(20)
    settings = SearchSettings(no_repeat_ngram=2, max_length=30, min_length=12, beam=2)
    for (h,) in decode(model, source, mask, settings):
        pairs = list(itertools.pairwise(h.tokens))
        assert len(pairs) == len(set(pairs))


def test_a_forced_prefix_is_kept_and_continued_as_if_chosen():
    model, (source, mask) = transformer(), ragged(4)
    prefixes = [[5], [], [6, 7, 8], [9, 9]]
    settings = SearchSettings(beam=3, max_length=12)
    for row, (h,) in enumerate(decode(model, source, mask, settings, prefixes=prefixes)):
        assert h.tokens[: len(prefixes[row])] == prefixes[row]
    free = decode(model, source, mask, settings)
    assert decode(model, source, mask, settings, prefixes=[[]] * 4) == free


def test_sampling_follows_the_distribution():
    model = RandomModel(0, vocab=6)
    source = torch.tensor([[3]]).expand(1, 1)
    mask = torch.ones_like(source, dtype=torch.bool)
    settings = SearchSettings(sample=True, n_best=4000, max_length=1, temperature=0.7, top_k=3)
    (found,) = decode(model, source, mask, settings)
    logits = model.logits((3, VOCABULARY.start)) / 0.7
    logits[[0, 1]] = -math.inf
    kept = logits.topk(3).indices
    expected = torch.full_like(logits, -math.inf).index_copy(0, kept, logits[kept]).softmax(-1)
    drawn = torch.zeros(6)
    for h in found:
        drawn[h.tokens[0] if h.tokens else VOCABULARY.end] += 1 / 4000
    torch.testing.assert_close(drawn, expected, atol=0.03, rtol=0)


def test_top_p_keeps_the_smallest_sufficient_set():
    model = RandomModel(1, vocab=8, sharp=2.0)
    source = torch.tensor([[3]])
    settings = SearchSettings(sample=True, n_best=500, max_length=1, top_p=0.6)
    (found,) = decode(model, source, source > 0, settings)
    logits = model.logits((3, VOCABULARY.start))
    logits[[0, 1]] = -math.inf
    probability, order = logits.softmax(-1).sort(descending=True)
    allowed = set(order[: int((probability.cumsum(0) < 0.6).sum()) + 1].tolist())
    assert {h.tokens[0] if h.tokens else VOCABULARY.end for h in found} <= allowed


def test_the_same_seed_samples_the_same_and_another_seed_does_not():
    model, (source, mask) = transformer(), ragged(10)
    one, same, other = (decode(model, source, mask, SearchSettings(sample=True, seed=seed)) for seed in (1, 1, 2))
    assert one == same and one != other


def test_an_ensemble_decides_by_mean_probability():
    members, (source, mask) = [transformer(1), transformer(2)], ragged(6)
    both = Ensemble(members)
    state = both.start(source, mask)
    tokens = torch.full((6, 1), VOCABULARY.start)
    mean = sum(m.step(tokens, m.start(source, mask)).softmax(-1) for m in members) / 2
    torch.testing.assert_close(both.step(tokens, state).exp(), mean)
    twice = decode(Ensemble([members[0]] * 2), source, mask, SearchSettings(beam=3))
    once = decode(members[0], source, mask, SearchSettings(beam=3))
    assert [h.tokens for (h,) in twice] == [h.tokens for (h,) in once]


def test_a_search_can_be_watched_step_by_step():
    model, (source, mask) = transformer(), ragged(1)
    settings = SearchSettings(beam=3, max_length=8)
    watched = Search(model, from_source(model, source, mask, settings, VOCABULARY.start), settings, VOCABULARY)
    lengths = []
    with torch.inference_mode():
        while not watched.done:
            watched.advance()
            lengths.append(watched.history.shape[2])
    assert lengths[:3] == [1, 2, 3]
    assert watched.results() == decode(model, source, mask, settings)


@pytest.mark.parametrize("size", [MANY_SCORES // 4, MANY_SCORES // 4 + 37, 100])
@pytest.mark.parametrize("count", [1, 10, 70])
def test_the_best_of_many_scores_are_those_of_a_full_sort(size, count):
    generator = torch.Generator().manual_seed(size + count)
    scores = torch.randn(5, size, generator=generator)
    scores[:, : size // 2] = -math.inf
    scores[0, -count:] = 9 + torch.arange(count)  # all the best in one block, which is incomplete
    value, index = _top(scores, min(count, size // 2))
    assert torch.equal(value, scores.sort(descending=True).values[:, : value.shape[1]])
    assert torch.equal(scores.gather(1, index), value)


@pytest.mark.parametrize("wrong", [{"beam": 0}, {"temperature": 0.0}, {"top_p": 0.0}, {"n_best": 0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        SearchSettings.parse(wrong)
