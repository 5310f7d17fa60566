"""Search under constraints: against enumeration of every answer, batches against single sentences."""

import random

import pytest
import torch
from test_inference_search import BRUTE, RandomModel, every_answer

from regard.inference.decoding.constraints import Constraint, Constraints, Form, TokenKinds
from regard.inference.decoding.search import search
from regard.inference.decoding.settings import SearchSettings
from regard.inference.decoding.start import from_source

ORDINARY = (2, 3, 4)  # the tokens of a RandomModel that are neither start nor end


def satisfies(tokens, constraints):
    """Whether an answer has every form as often as constraints ask for it, and never begins to say one once more.

    Enough for constraints without a token in common, or with the same forms.
    """
    kinds = constraints.kinds

    def ends(form):
        """(where an occurrence ends, whether it counts) of every place where the form may be."""
        for place in range(len(tokens) - len(form.tokens) + 1):
            end = place + len(form.tokens)
            first = all(token in kinds.marks for token in tokens[:place])
            joined = place > 0 and tokens[place - 1] in kinds.marks
            if tuple(tokens[place:end]) == form.tokens and first >= form.first and joined >= form.joined:
                yield end, not (form.whole and end < len(tokens) and tokens[end] in kinds.continuing)

    for forms in {each.forms for each in constraints.each}:
        asked, counted = sum(each.forms == forms for each in constraints.each), 0
        for _, counts in sorted(end for form in forms for end in ends(form)):
            if counted == asked:
                return False
            counted += counts
        if counted < asked:
            return False
    return True


def random_constraints(draw, kinds):
    """One or two constraints whose forms have no token in common, perhaps asked for twice."""
    kind = draw.choice(["one", "two", "twice", "forms"])
    flags = {"whole": draw.random() < 0.5}
    if kind == "one":
        tokens = tuple(draw.choices(ORDINARY, k=draw.randint(1, 3)))
        return Constraints((Constraint((Form(tokens, **flags),)),), kinds)
    if kind == "forms":
        first, second = draw.sample(ORDINARY, 2)
        return Constraints((Constraint((Form((first, first)), Form((second,), first=draw.random() < 0.5))),), kinds)
    if kind == "two":
        first, second, third = draw.sample(ORDINARY, 3)
        return Constraints((Constraint((Form((first, second)),)), Constraint((Form((third,), **flags),))), kinds)
    each = Constraint((Form((draw.choice(ORDINARY),), joined=draw.random() < 0.3),))
    return Constraints((each, each), kinds)


def find(model, rows, constraints, settings):
    source = torch.tensor(rows)
    start = from_source(
        model, source, torch.ones_like(source, dtype=torch.bool), settings, BRUTE.start, constraints=constraints
    )
    return search(model, start, settings, BRUTE)


@pytest.mark.parametrize("seed", range(12, 90))
def test_a_wide_beam_finds_the_best_answer_that_satisfies_the_constraints(seed):
    draw, model = random.Random(seed), RandomModel(seed)
    kinds = TokenKinds(*(frozenset(some) for some in draw.choice([((), ()), ((4,), (3,)), ((2,), ()), ((), (2, 3))])))
    constraints, limit, penalty = random_constraints(draw, kinds), 5, draw.choice([0.0, 1.0])
    settings = SearchSettings(beam=81, n_best=3, max_length=limit, length_penalty=penalty)
    (found,) = find(model, [[7]], [constraints], settings)
    known = [
        (score, tokens)
        for score, finished, tokens in every_answer(model, (7,), limit, penalty)
        if finished and satisfies(tokens, constraints)
    ]
    known.sort(key=lambda each: -each[0])
    ended = [each for each in found if each.finished]
    assert [tuple(each.tokens) for each in ended] == [tuple(tokens) for _, tokens in known[:3]]
    assert [each.score for each in ended] == pytest.approx([score for score, _ in known[:3]], abs=1e-4)
    assert ended or not known
