"""Word alignment against hand-worked examples, brute force and set relations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from regard.errors import DataError, UsageError
from regard.look.word_alignment import (
    alignment_error_rate,
    alignment_score,
    choose_layer,
    choose_layer_by_words,
    compose_links,
    flip,
    lexical_likelihood,
    links,
    merge_weights,
    symmetrise,
    to_pharaoh,
    token_alignment,
    token_links,
    word_weights,
)


def test_links_through_a_pivot() -> None:
    assert compose_links([(0, 1), (1, 0), (2, 2)], [(1, 3), (1, 4), (0, 0), (5, 5)]) == [(0, 3), (0, 4), (1, 0)]


METHODS = ["intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and"]
link_sets = st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=14)
corpora = st.lists(st.tuples(link_sets, link_sets, link_sets), min_size=1, max_size=4)


@st.composite
def attention(draw: st.DrawFn) -> tuple[np.ndarray, list[int], list[int]]:
    """Token weights whose rows sum to 1, and the word of every token (-1 for specials, words contiguous)."""

    def words_of() -> list[int]:
        pieces = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
        words = [word for word, count in enumerate(pieces) for _ in range(count)]
        return [-1] * draw(st.integers(0, 1)) + words + [-1] * draw(st.integers(0, 1))

    rows, columns = words_of(), words_of()
    raw = draw(arrays.arrays(np.float64, (len(rows), len(columns)), elements=st.floats(0.01, 1.0)))
    return raw / raw.sum(axis=1, keepdims=True), rows, columns


@given(attention())
def test_word_weights_equal_the_loop_over_pieces(case: tuple[np.ndarray, list[int], list[int]]) -> None:
    weights, rows, columns = case
    merged = word_weights(weights, rows, columns, renormalise=False)
    for target, source in np.ndindex(merged.shape):
        pieces = [row for row, word in enumerate(rows) if word == target]
        sums = [sum(weights[row, c] for c, word in enumerate(columns) if word == source) for row in pieces]
        assert merged[target, source] == pytest.approx(sum(sums) / len(sums))
    assert (merged.sum(axis=1) <= 1 + 1e-9).all()


@given(attention())
def test_renormalised_rows_sum_to_one_in_the_same_proportions(case: tuple[np.ndarray, list[int], list[int]]) -> None:
    raw, merged = word_weights(*case, renormalise=False), word_weights(*case)
    np.testing.assert_allclose(merged.sum(axis=1), 1)
    np.testing.assert_allclose(merged * raw.sum(axis=1, keepdims=True), raw)


@given(attention(), st.randoms(use_true_random=False))
def test_word_weights_do_not_depend_on_the_order_of_source_tokens(case, random) -> None:
    weights, rows, columns = case
    order = random.sample(range(len(columns)), len(columns))
    shuffled = word_weights(weights[:, order], rows, [columns[index] for index in order])
    np.testing.assert_allclose(shuffled, word_weights(weights, rows, columns))


def test_one_piece_a_word_changes_nothing() -> None:
    weights = np.array([[0.9, 0.1], [0.3, 0.7]])
    np.testing.assert_allclose(word_weights(weights, [0, 1], [0, 1]), weights)


def test_a_row_that_only_saw_special_tokens_stays_zero() -> None:
    assert word_weights(np.array([[0.0, 1.0]]), [0], [0, -1]).tolist() == [[0.0]]


def test_word_weights_refuse_indices_of_another_length() -> None:
    with pytest.raises(UsageError, match=r"\(2, 2\).*\(1, 2\)"):
        word_weights(np.ones((2, 2)), [0], [0, 1])


def test_shift_reads_each_word_where_it_is_the_input() -> None:
    # Steps are fed start, y1, y2; the first head is exact one step later, the second is uniform.
    late = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    cross = np.stack([late, np.full((3, 3), 1 / 3)])
    assert links(token_alignment(cross, shift=True)) == [(0, 0), (1, 1)]
    assert links(token_alignment(cross, shift=False)) == [(0, 1), (2, 0)]
    np.testing.assert_allclose(token_alignment(cross, shift=True), (late[1:] + 1 / 3) / 2)


def test_links_by_every_method() -> None:
    weights = np.array([[0.6, 0.4, 0.0], [0.7, 0.1, 0.2], [0.0, 0.0, 0.0]])
    assert links(weights) == [(0, 0), (0, 1)]
    assert links(weights, "argmax", threshold=0.65) == [(0, 1)]
    assert links(weights, "mutual") == [(0, 1)]
    assert links(weights, "threshold", threshold=0.4) == [(0, 0), (0, 1), (1, 0)]
    assert links(np.zeros((0, 3))) == links(np.zeros((2, 0))) == []
    with pytest.raises(UsageError, match="above 0"):
        links(weights, "threshold")


def test_token_links_join_words_whose_pieces_link() -> None:
    weights = np.array([[0.5, 0.1, 0.4], [0.1, 0.2, 0.7], [0.0, 0.1, 0.9], [0.6, 0.3, 0.1]])
    assert token_links(weights, [0, 0, 1, -1], [0, 1, -1]) == [(0, 0), (1, 0), (1, 1)]
    assert token_links(weights, [0, 0, 1, -1], [-1, -1, -1]) == []


@given(link_sets)
def test_links_are_written_in_order_and_flipping_twice_is_nothing(pairs: set[tuple[int, int]]) -> None:
    assert to_pharaoh([(1, 2), (0, 0)]) == "0-0 1-2"
    assert flip(flip(pairs)) == sorted(pairs)


def test_merged_weights_are_the_geometric_means_of_both_directions() -> None:
    forward, backward = np.array([[0.9, 0.1, 0.0]]), np.array([[0.4], [0.9], [1.0]])
    np.testing.assert_allclose(merge_weights(forward, backward), [[0.6, 0.3, 0.0]])
    with pytest.raises(UsageError, match="transpose"):
        merge_weights(forward, forward)


# Symmetrisation


def test_grow_diag_on_a_hand_worked_sentence() -> None:
    forward = {(0, 0), (1, 1), (2, 1), (4, 4)}
    backward = {(0, 0), (1, 1), (1, 2), (4, 3), (6, 6)}
    # From 0-0 and 1-1: 2-1 is next to 1-1 and source word 2 is unlinked; 1-2 is next to 1-1 and target word 2 is
    # unlinked. 4-4, 4-3 and 6-6 are next to no link.
    grown = [(0, 0), (1, 1), (1, 2), (2, 1)]
    assert symmetrise(forward, backward, "intersection") == [(0, 0), (1, 1)]
    assert symmetrise(forward, backward, "grow-diag") == grown
    # Final: forward links first, so 4-4 is added; then 4-3, whose target word is unlinked, and 6-6.
    assert symmetrise(forward, backward, "grow-diag-final") == sorted([*grown, (4, 4), (4, 3), (6, 6)])
    # Final-and: 4-3 is not added, because source word 4 is linked.
    assert symmetrise(forward, backward, "grow-diag-final-and") == sorted([*grown, (4, 4), (6, 6)])


def grow_on_a_grid(forward: set, backward: set, final: str | None) -> list[tuple[int, int]]:
    """Koehn's procedure on boolean matrices, step by step as published."""
    shape = (6, 6)
    one, two = np.zeros(shape, bool), np.zeros(shape, bool)
    for pair in forward:
        one[pair] = True
    for pair in backward:
        two[pair] = True
    grid, union = one & two, one | two
    added = True
    while added:
        added = False
        for s, t in np.ndindex(shape):
            if not grid[s, t]:
                continue
            for ds, dt in [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]:
                a, b = s + ds, t + dt
                if not (0 <= a < 6 and 0 <= b < 6) or grid[a, b] or not union[a, b]:
                    continue
                if not grid[a].any() or not grid[:, b].any():
                    grid[a, b] = added = True
    for matrix in (one, two) if final else ():
        for s, t in np.argwhere(matrix):
            free = [not grid[s].any(), not grid[:, t].any()]
            grid[s, t] |= all(free) if final == "and" else any(free)
    return [(int(s), int(t)) for s, t in np.argwhere(grid)]


@given(link_sets, link_sets)
def test_symmetrisation_equals_the_grid_procedure(forward: set, backward: set) -> None:
    assert symmetrise(forward, backward, "grow-diag") == grow_on_a_grid(forward, backward, None)
    assert symmetrise(forward, backward, "grow-diag-final") == grow_on_a_grid(forward, backward, "or")
    assert symmetrise(forward, backward, "grow-diag-final-and") == grow_on_a_grid(forward, backward, "and")


@given(link_sets, link_sets)
def test_symmetrisations_contain_one_another(forward: set, backward: set) -> None:
    both, either, grown, final, final_and = (set(symmetrise(forward, backward, method)) for method in METHODS)
    assert both == forward & backward
    assert either == forward | backward
    assert both <= grown <= final_and <= either
    assert grown <= final <= either
    # Grow-diag-final leaves no word unlinked that has a link in the union.
    assert {source for source, _ in final} == {source for source, _ in either}
    assert {target for _, target in final} == {target for _, target in either}


@pytest.mark.parametrize("method", METHODS)
def test_directions_that_agree_stay_as_they_are(method) -> None:
    pairs = [(0, 1), (1, 0), (3, 3)]
    assert symmetrise(pairs, pairs, method) == pairs


# Scores


@given(corpora)
def test_scores_equal_the_published_formulas_over_the_pooled_corpus(corpus: list) -> None:
    def pooled(part: int) -> set:
        return {(number, *pair) for number, sentence in enumerate(corpus) for pair in sentence[part]}

    answers, sure = pooled(0), pooled(1)
    possible = pooled(2) | sure
    score = alignment_score(*([sentence[part] for sentence in corpus] for part in range(3)))
    if answers:
        assert score.precision == pytest.approx(len(answers & possible) / len(answers))
    if sure:
        assert score.recall == pytest.approx(len(answers & sure) / len(sure))
    if answers or sure:
        agreed = len(answers & sure) + len(answers & possible)
        assert score.error_rate == pytest.approx(1 - agreed / (len(answers) + len(sure)))
    assert 0 <= score.error_rate <= 1


def test_error_rate_of_perfect_half_and_empty_answers() -> None:
    gold = [[(0, 0), (1, 1)], [(0, 0)]]
    assert alignment_error_rate(gold, gold) == 0
    assert alignment_error_rate([[], []], gold) == 1
    assert alignment_error_rate([[]], [[]]) == 0
    assert alignment_error_rate([[(0, 0), (5, 5)], []], gold) == pytest.approx(1 - 2 / 5)
    with pytest.raises(DataError, match="1 predicted"):
        alignment_error_rate([[]], gold)


# Choosing a layer


def test_the_layer_nearest_to_gold_is_chosen() -> None:
    gold = [[(0, 0), (1, 1)]]
    candidates = {(0, False): [[(0, 1)]], (1, True): [[(0, 0), (1, 1)]], (2, True): [[(0, 0)]]}
    assert choose_layer(candidates, gold) == (1, True)


def shuffled_corpus(sentences: int = 60) -> tuple[list[list[str]], list[list[str]], list[list[tuple[int, int]]]]:
    """Sentences over ten words, translated word for word (aa -> AA) in another order; with the right links."""
    rng = np.random.default_rng(0)
    words = [letter * 2 for letter in "abcdefghij"]
    sources, targets, right = [], [], []
    for _ in range(sentences):
        source = [str(word) for word in rng.choice(words, 5, replace=False)]
        order = rng.permutation(5).tolist()
        sources.append(source)
        targets.append([source[s].upper() for s in order])
        right.append([(s, t) for t, s in enumerate(order)])
    return sources, targets, right


def test_the_words_themselves_tell_the_right_links_from_shifted_and_positional_ones() -> None:
    sources, targets, right = shuffled_corpus()
    candidates = {
        "off by one": [[((s + 1) % 5, t) for s, t in each] for each in right],
        "positional": [[(t, t) for t in range(5)]] * len(right),
        "one word": [[(0, t) for t in range(5)]] * len(right),
        "right": right,
    }
    assert choose_layer_by_words(candidates, sources, targets) == "right"
    likelihoods = {name: lexical_likelihood(each, sources, targets) for name, each in candidates.items()}
    assert likelihoods["right"] > -0.1  # nearly certain
    assert all(likelihoods[name] < -1.5 for name in ("off by one", "positional", "one word"))


def test_lexical_likelihood_by_hand() -> None:
    # Each sentence is scored with counts of the other: p = (1 + 0.5 * (1 + 1) / 2) / (1 + 0.5) = 1, for both words.
    assert lexical_likelihood([[(0, 0)], [(0, 0)]], [["a"], ["a"]], [["A"], ["A"]]) == pytest.approx(0.0)
    # Unseen: p = (0 + 0.5 * (0 + 1) / 2) / (0 + 0.5) = 1/2.
    assert lexical_likelihood([[(0, 0)], [(0, 0)]], [["a"], ["b"]], [["A"], ["B"]]) == pytest.approx(np.log(0.5))
