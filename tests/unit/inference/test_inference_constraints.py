"""Search under constraints: against enumeration of every answer, batches against single sentences."""

import random

import pytest
import torch
from test_inference_search import BRUTE, VOCABULARY, RandomModel, every_answer, ragged, transformer

from regard.attention.record import record
from regard.errors import UsageError
from regard.inference.decoding.constrained import StepAttention
from regard.inference.decoding.constraints import Constraint, Constraints, Form, TokenKinds
from regard.inference.decoding.search import search
from regard.inference.decoding.settings import SearchSettings
from regard.inference.decoding.start import from_source
from regard.inference.fast.convert import fast_model

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


@pytest.mark.parametrize("width", [1, 3])
def test_any_width_says_every_term_once_and_a_batch_gives_what_its_sentences_give_alone(width):
    draw, kinds = random.Random(5), TokenKinds()
    model = transformer()
    every = [Constraint((Form((draw.randint(3, 19),)),), (draw.randint(0, 3),)) for _ in range(9)]
    some = [Constraints(tuple(dict.fromkeys(draw.sample(every, draw.randint(1, 3)))), kinds) for _ in range(6)]
    source, mask = ragged(len(some))
    settings = SearchSettings(beam=width, max_length=12)
    watched = StepAttention(model, "decoder.1.cross", shift=True)

    def decode(rows):
        start = from_source(
            model, source[rows], mask[rows], settings, VOCABULARY.start,
            constraints=[some[row] for row in rows], attention=watched,
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


def test_looks_at_the_source_of_a_term_decide_its_place():
    """A model that finds every token equally likely: attention alone says where the term goes."""

    class Even(RandomModel):
        def logits(self, prefix):
            return torch.zeros(self.vocab)

    class Looking(StepAttention):
        """The third token of every answer looks at the source of the term."""

        shift = True

        def __init__(self):
            self.steps = 0

        def watch(self, step):
            logits, weights = step(), torch.zeros(1, 1, 2)
            weights[..., int(self.steps == 3)] = 1.0
            self.steps += 1
            return logits, weights.expand(1, logits.shape[1], 2)

    settings = SearchSettings(beam=1, min_length=5, max_length=8)
    constraint = Constraints((Constraint((Form((4,)),), (1,)),))
    start = from_source(
        Even(0), torch.tensor([[7]]), torch.tensor([[True]]), settings, BRUTE.start,
        constraints=[constraint], attention=Looking(),
    )  # fmt: skip
    ((answer,),) = search(Even(0), start, settings, BRUTE)
    assert answer.tokens.index(4) == 2 and answer.tokens.count(4) == 1


def test_sampling_with_constraints_is_refused():
    constraint = Constraints((Constraint((Form((4,)),)),))
    with pytest.raises(UsageError, match="leave out sampling"):
        find(RandomModel(0), [[7]], [constraint], SearchSettings(sample=True))
