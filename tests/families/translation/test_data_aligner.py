"""The statistical aligner against the sum over all alignments, and on synthetic languages with a known dictionary."""

import itertools
import math

import numpy as np
import pytest

from regard.data.synthetic.phrasebook import phrases
from regard.data.text.pair_store import EncodedPair, PairStore, encode_corpus
from regard.data.tokenizers.pair import TokenizerConfig, train_pair_tokenizer
from regard.families.translation import word_aligner
from regard.families.translation.word_aligner import FLOOR, NOTHING, Aligner, Direction, posteriors

END = 2
LINKED, IDLE = True, False


def random_model(seed, B=2, S=3, T=3):
    rng = np.random.default_rng(seed)
    chances, nothing = rng.random((B, S, T)), rng.random((B, T))
    first, moves = rng.dirichlet(np.ones(S)), rng.dirichlet(np.ones(S), size=S)
    return chances, nothing, first, moves


def enumerated(chances, nothing, first, moves):
    """Likelihood and posteriors of one sentence pair by enumerating every path of (position, linked or not)."""
    S, T = chances.shape
    total, links, idle, jumps = 0.0, np.zeros((S, T)), np.zeros(T), np.zeros((S, S))
    for path in itertools.product(itertools.product(range(S), (LINKED, IDLE)), repeat=T):
        chance, position = 1.0, None
        for j, (i, kind) in enumerate(path):
            if kind is LINKED:
                chance *= (1 - NOTHING) * chances[i, j] * (first[i] if position is None else moves[position, i])
            else:
                chance *= NOTHING * nothing[j] * (1 / S if position is None else float(i == position))
            position = i
        total += chance
        for j, (i, kind) in enumerate(path):
            if kind is LINKED:
                links[i, j] += chance
                if j:
                    jumps[path[j - 1][0], i] += chance
            else:
                idle[j] += chance
    return math.log(total), links / total, idle / total, jumps / total


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 4), (3, 3)])
def test_posteriors_are_those_of_all_alignments(shape):
    chances, nothing, first, moves = random_model(0, 2, *shape)
    seen = posteriors(chances, nothing, first, moves)
    each = [enumerated(chances[b], nothing[b], first, moves) for b in range(2)]
    assert seen.log_likelihood == pytest.approx(sum(one[0] for one in each))
    np.testing.assert_allclose(seen.links, [one[1] for one in each])
    np.testing.assert_allclose(seen.nothing, [one[2] for one in each])
    np.testing.assert_allclose(seen.jumps, sum(one[3] for one in each), atol=1e-12)
    np.testing.assert_allclose(seen.links.sum(axis=1) + seen.nothing, 1.0)


def test_without_knowledge_of_jumps_it_is_model_1():
    chances, nothing, _, _ = random_model(1, 2, 3, 4)
    seen = posteriors(chances, nothing, np.full(3, 1 / 3), np.full((3, 3), 1 / 3))
    said = (1 - NOTHING) / 3 * chances.sum(axis=1) + NOTHING * nothing
    np.testing.assert_allclose(seen.links, (1 - NOTHING) / 3 * chances / said[:, None])
    assert seen.log_likelihood == pytest.approx(np.log(said).sum())


@pytest.mark.parametrize("jumps", ["even", "forward"])
def test_learning_never_makes_the_corpus_less_likely(jumps):
    rng = np.random.default_rng(2)
    source, target = rng.integers(6, size=(30, 5)), rng.integers(5, size=(30, 4))
    keys, cells = np.unique(source[:, :, None] * 5 + target[:, None, :], return_inverse=True)
    direction = Direction(keys // 5, vocabulary=6, longest=6)
    if jumps == "forward":
        direction.jumps = np.exp(-0.5 * (np.arange(-6, 7) - 1.0) ** 2)
    likelihoods = []
    for _ in range(12):
        seen = direction.read(cells.reshape(30, 5, 4), target)
        likelihoods.append(seen.log_likelihood)
        direction.count(cells.reshape(30, 5, 4), target, seen.links, seen)
        direction.learn(jumps=False)
    assert all(after >= before - 1e-3 for before, after in itertools.pairwise(likelihoods))
    assert likelihoods[-1] > likelihoods[0] + 1
    totals = np.bincount(direction.given, weights=direction.table[:-1])
    np.testing.assert_allclose(totals, 1.0, atol=1e-4)
    assert direction.table[-1] == pytest.approx(FLOOR)


def dictionary_corpus(folder, count=400, words=30):
    """Word w translates to w + 40, in reverse order; every other sentence begins with 80, which has no translation."""
    rng = np.random.default_rng(3)
    pairs = []
    for number in range(count):
        drawn = rng.choice(words, size=rng.integers(2, 7), replace=False) + 4
        pairs.append(EncodedPair([*drawn, END], [*[80] * (number % 2), *(drawn[::-1] + 40), END]))
    return PairStore.write(folder / "store", pairs, vocabulary=100), pairs


def right_links(pairs, found):
    """The number of sentences with exactly the dictionary's links, where 80 is linked to the end token."""
    right = 0
    for pair, links in zip(pairs, found, strict=True):
        length, extra = len(pair.source) - 1, len(pair.target) - len(pair.source)
        wanted = {(length - 1 - i, i + extra) for i in range(length)} | {(length, 0) for _ in range(extra)}
        right += {tuple(link) for link in links.tolist()} == wanted
    return right


def test_the_dictionary_of_a_made_up_language_is_found(tmp_path):
    store, pairs = dictionary_corpus(tmp_path)
    assert right_links(pairs, Aligner(store, 100).links(store)) >= 0.95 * len(pairs)


def test_the_same_corpus_gives_the_same_links_in_windows_of_any_size(tmp_path, monkeypatch):
    store, _ = dictionary_corpus(tmp_path, count=100)
    one = list(Aligner(store, 100).links(store))
    monkeypatch.setattr(word_aligner, "WINDOW", 7)
    for left, right in zip(one, Aligner(store, 100).links(store), strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_corpus_too_large_to_learn_from_is_learnt_from_a_sample(tmp_path, monkeypatch):
    store, pairs = dictionary_corpus(tmp_path, count=1200)
    monkeypatch.setattr(word_aligner, "MOST_CELLS", 10_000)
    assert len(word_aligner._sample(store)) < len(pairs) / 2
    assert right_links(pairs, Aligner(store, 100).links(store)) >= 0.95 * len(pairs)


def test_a_side_without_tokens_is_linked_to_the_end_alone(tmp_path):
    store = PairStore.write(
        tmp_path / "store", [EncodedPair([END], [5, 6, END]), EncodedPair([5, END], [6, END])], vocabulary=9
    )
    assert next(links.tolist() for links in Aligner(store, 9).links(store)) == [[0, 0], [0, 1]]


def test_aligning_stops_when_it_is_told_to(tmp_path):
    store, _ = dictionary_corpus(tmp_path, count=20)

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Aligner(store, 100, stop)


def test_the_phrasebook_is_aligned_nearly_as_its_grammar_says(tmp_path):
    pairs = list(phrases("es", part="train", count=2500, seed=1, max_words=12))
    tokenizer = train_pair_tokenizer(pairs, TokenizerConfig(kind="word", joint=False, min_frequency=1), "en", ["es"])
    store = encode_corpus(pairs, tokenizer, tmp_path / "store")
    size = max(tokenizer.source.size, tokenizer.target.size)
    agreed = found = wanted = 0
    for pair, links in zip(pairs, Aligner(store, size).links(store), strict=True):
        sources, targets = tokenizer.source.words_in(pair.source), tokenizer.target.words_in(pair.target)
        answer = {(sources[s], targets[t]) for s, t in links.tolist() if s < len(sources)}
        agreed += len(answer & set(pair.links))
        found, wanted = found + len(answer), wanted + len(pair.links)
    assert 1 - 2 * agreed / (found + wanted) < 0.15
