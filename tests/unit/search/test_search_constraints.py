"""Search under constraints: against enumeration of every answer, against replaced words, batches against sentences."""

import dataclasses
import random

import pytest
import torch
from test_search_beam import BRUTE, VOCABULARY, RandomModel, every_answer, ragged, transformer

from regard.attention.record import record
from regard.errors import UsageError
from regard.runtime.convert import fast_model
from regard.search import constrained
from regard.search.constraints import Constraint, Constraints, Form, Outline, TokenKinds
from regard.search.search import search
from regard.search.settings import SearchSettings
from regard.search.start import from_source

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
            joined = place > 0 and tokens[place - 1] in kinds.marks
            first = joined or all(token in kinds.marks for token in tokens[:place])
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


@pytest.mark.parametrize("seed", range(8))
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


def random_outline(draw, constraints):
    """A random answer without the terms, each of which replaces one or no token of it."""
    terms = {token for each in constraints.each for token in each.forms[0].tokens}
    tokens = draw.sample([token for token in range(3, 20) if token not in terms], draw.randint(4, 6))
    starts = draw.sample(range(len(tokens)), len(constraints.each))
    places = tuple((start, start + draw.randint(0, 1)) for start in starts)
    return dataclasses.replace(constraints, outline=Outline(tuple(tokens), places))


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("outlined", [False, True])
def test_any_width_says_every_term_once_and_a_batch_gives_what_its_sentences_give_alone(width, outlined):
    draw, kinds = random.Random(5), TokenKinds()
    model = transformer()
    every = [Constraint((Form((draw.randint(3, 19),)),), (draw.randint(0, 3),)) for _ in range(9)]
    some = [Constraints(tuple(dict.fromkeys(draw.sample(every, draw.randint(1, 3)))), kinds) for _ in range(6)]
    some = [random_outline(draw, each) if outlined else each for each in some]
    source, mask = ragged(len(some))
    settings = SearchSettings(beam=width, max_length=12)

    def decode(rows):
        start = from_source(
            model, source[rows], mask[rows], settings, VOCABULARY.start,
            constraints=[some[row] for row in rows],
        )  # fmt: skip
        return search(model, start, settings, VOCABULARY)

    together = decode(list(range(len(some))))
    for row, (answer,) in enumerate(together):
        ((alone,),) = decode([row])
        assert (alone.tokens, alone.finished) == (answer.tokens, answer.finished)
        for form in {each.forms for each in some[row].each}:
            assert answer.tokens.count(form[0].tokens[0]) == sum(each.forms == form for each in some[row].each)
        if answer.finished:
            score = forced_score(model, source[row], mask[row], answer.tokens)
            assert answer.score == pytest.approx(score, abs=1e-4)


def forced_score(model, source, mask, tokens):
    """The mean log-probability of an answer."""
    inputs = torch.tensor([[VOCABULARY.start, *tokens]])
    with torch.inference_mode():
        log_p = model(source[None], mask[None], inputs)[0].log_softmax(-1)
    return sum(float(log_p[place, token]) for place, token in enumerate([*tokens, VOCABULARY.end])) / (len(tokens) + 1)


@pytest.mark.parametrize("layer", ["decoder.0.cross", "decoder.1.cross"])
def test_compiled_steps_hand_over_the_weights_that_torch_computes(layer):
    """Also after the hypotheses were reordered and sentences dropped."""
    model = transformer()
    source, mask = ragged(4)
    taken = []
    for decoder in (model, fast_model(model)):
        with torch.inference_mode():
            state, tokens, seen = decoder.start(source, mask), torch.ones(4, 1, dtype=torch.long), []
            for origin in ([[0, 0, 0]] * 4, [[2, 0, 1]] * 4, [[0, 1, 2]] * 4):
                with record(model, layer) as looks:
                    decoder.step(tokens, state)
                seen.append(looks[layer])
                state.reorder(torch.tensor(origin))
                tokens = torch.tensor([[3, 4, 5]] * 4)
            state.keep(torch.tensor([3, 1]))
            with record(model, layer) as looks:
                decoder.step(tokens[:2], state)
            taken.append([*seen, looks[layer]])
    for ours, theirs in zip(*taken, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("seed", range(6))
def test_if_nothing_else_may_differ_terms_replace_the_tokens_of_their_places(seed, monkeypatch):
    """A price above all log-probabilities: the answer is the outline with its places replaced, whatever the model."""
    monkeypatch.setattr(constrained, "DEVIATION", 1000.0)
    draw, model = random.Random(seed), transformer()
    forms = [Form(tuple(draw.sample(range(base, base + 5), draw.randint(1, 3)))) for base in (3, 8)]
    constraints = Constraints(tuple(Constraint((form,)) for form in forms))
    constraints = random_outline(draw, constraints)
    source, mask = ragged(1)
    settings = SearchSettings(beam=draw.choice([1, 3]), max_length=20)
    start = from_source(model, source, mask, settings, VOCABULARY.start, constraints=[constraints])
    ((answer,),) = search(model, start, settings, VOCABULARY)
    expected, done = [], 0
    for (first, last), form in sorted(zip(constraints.outline.places, forms, strict=True)):
        expected += [*constraints.outline.tokens[done:first], *form.tokens]
        done = last
    assert answer.tokens == [*expected, *constraints.outline.tokens[done:]]
    assert answer.score == pytest.approx(forced_score(model, source[0], mask[0], answer.tokens), abs=1e-4)


@pytest.mark.parametrize(("wish", "said"), [(1.0, 3), (10.0, 2)])
def test_words_beside_a_term_change_only_if_the_model_wants_it_much(wish, said):
    """After the term 4, the model prefers 2 to the token 3 of the outline."""

    class Agreeing(RandomModel):
        def logits(self, prefix):
            logits = torch.zeros(self.vocab)
            if prefix[-1:] == (4,):
                logits[2] = wish
            elif len(prefix) > 2:
                logits[BRUTE.end] = 5.0
            return logits

    outline = Outline((2, 3), ((0, 1),))
    constraint = Constraints((Constraint((Form((4,)),)),), outline=outline)
    ((answer,),) = find(Agreeing(0), [[7]], [constraint], SearchSettings(beam=1, max_length=8))
    assert answer.tokens == [4, said]


def test_sampling_with_constraints_is_refused():
    constraint = Constraints((Constraint((Form((4,)),)),))
    with pytest.raises(UsageError, match="leave out sampling"):
        find(RandomModel(0), [[7]], [constraint], SearchSettings(sample=True))
