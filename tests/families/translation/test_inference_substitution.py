"""Terms that are put into free answers: against the search that follows the same outline token by token."""

import dataclasses
import random

import pytest
import torch
from test_search_beam import VOCABULARY, ragged, transformer

from regard.data.tokenizers.base import Tokenizer
from regard.families.translation import substitution
from regard.families.translation.substitution import Substitution
from regard.families.translation.terms import Draft
from regard.look.forced_pass import AlignmentSettings
from regard.search import constrained
from regard.search.constraints import Constraint, Constraints, Form, Outline, TokenKinds
from regard.search.search import Hypothesis, search
from regard.search.settings import SearchSettings
from regard.search.start import from_source

CPU = torch.device("cpu")


class OneTokenWords(Tokenizer):
    """Every token is a word."""

    def __init__(self):
        super().__init__([f"▁{token}" for token in range(20)], pad=0, start=1, end=2, unknown=0)

    def encode(self, texts):
        return [[int(word) for word in text.split()] for text in texts]

    def words_in(self, text):
        return list(range(len(text.split())))


def greedy(model, source, mask, settings, **options):
    start = from_source(model, source, mask, settings, VOCABULARY.start, **options)
    return [best for best, *_ in search(model, start, settings, VOCABULARY)]


def drafts_of(draw, answers):
    """Free answers, each with one or two terms that it does not say."""
    for number, answer in enumerate(answers):
        unsaid = [token for token in range(3, 20) if token not in answer.tokens]
        terms = [Constraint((Form((token,)),), (draw.randint(0, 1),)) for token in draw.sample(unsaid, 2)]
        yield Draft(number, "", Constraints(tuple(terms[: draw.randint(1, 2)])), answer, given=0)


@pytest.mark.parametrize(("price", "objects"), [(0.2, True), (1.0, None), (50.0, False)])
def test_what_is_put_in_and_what_is_searched_is_what_a_greedy_search_finds(price, objects, monkeypatch):
    """The dearer a deviation is, the fewer answers are searched for; all answers are those of the search alone."""
    monkeypatch.setattr(constrained, "DEVIATION", price)
    monkeypatch.setattr(substitution, "DEVIATION", price)
    settings, searched = SearchSettings(beam=1, max_length=14), []
    for seed in range(3):
        model, (source, mask) = transformer(seed), ragged(6, seed)
        free = greedy(model, source, mask, settings.replace(max_length=6))
        drafts = list(drafts_of(random.Random(seed), [dataclasses.replace(each, finished=True) for each in free]))
        rows = [source[draft.sentence][mask[draft.sentence]].tolist() for draft in drafts]
        put_in = Substitution(model, model, OneTokenWords(), VOCABULARY, 0, CPU)
        found = put_in(drafts, rows, AlignmentSettings(layer="decoder.0.cross", shift=True), settings)
        for draft, row, steered in zip(drafts, rows, found, strict=True):
            one = torch.tensor([row])
            terms = [dataclasses.replace(draft.constraints, outline=steered.outline)]
            options = {"constraints": terms, "mask": torch.ones_like(one, dtype=torch.bool), "settings": settings}
            (expected,) = greedy(model, one, **options)
            searched.append(steered.answer is None)
            rest = steered.answer or greedy(model, one, prefixes=[steered.beginning], **options)[0]
            assert rest.tokens == expected.tokens
            assert rest.log_probability == pytest.approx(expected.log_probability, abs=1e-4)
    assert len(searched) > 8
    assert objects is None or any(searched) == objects


def test_the_article_before_a_term_takes_the_gender_that_makes_the_term_most_probable():
    class Spanish(OneTokenWords):
        def __init__(self):
            super().__init__()
            words = ["el", "la", "lo", "casa", "coche", "del", "El", "La", "a"]
            self.vocabulary = ["<pad>", "<s>", "</s>", *(f"▁{word}" for word in words)]

    articles = Substitution(None, None, Spanish(), VOCABULARY, 0, CPU)._articles("es-MX")
    assert articles.genders == {3: [3, 4], 4: [4, 3], 9: [9, 10], 10: [10, 9]}
    assert Substitution(None, None, Spanish(), VOCABULARY, 0, CPU)._articles("de").genders == {}
    answer = Hypothesis([8, 4, 6, 5], 0.0, 0.0, True)  # del la casa lo
    draft = Draft(0, "", Constraints((Constraint((Form((7,)),)),)), answer, given=0)
    outline = Outline(tuple(answer.tokens), ((2, 3),))
    with_la, with_el = substitution._proposals(0, draft, outline, articles)
    assert (with_la.tokens, with_el.tokens) == ([8, 4, 7, 5], [8, 3, 7, 5])
    read = (with_la, (-1.0, -0.1, -6.0, -1.0, -1.0)), (with_el, (-1.0, -9.0, -2.0, -1.0, -1.0))
    best = substitution._best_of(dataclasses.replace(each, own=own, best=own) for each, own in read)
    assert best[0].tokens == with_el.tokens  # how improbable the article itself is does not count
    contracting = dataclasses.replace(draft, answer=Hypothesis([11, 4, 6, 5], 0.0, 0.0, True))  # "a el" is "al"
    assert [each.tokens for each in substitution._proposals(0, contracting, outline, articles)] == [[11, 4, 7, 5]]
    given = dataclasses.replace(draft, given=2)  # a beginning that was asked for stays
    assert [each.tokens for each in substitution._proposals(0, given, outline, articles)] == [[8, 4, 7, 5]]


def test_forms_that_do_not_fit_their_place_are_not_read():
    small, large, joined = Form((4,)), Form((5,), first=True), Form((6,), joined=True)
    constraints = Constraints((Constraint((small, large, joined)),), TokenKinds(marks=frozenset({3})))
    answer = Hypothesis([7, 8, 3, 9], 0.0, 0.0, True)
    draft = Draft(0, "", constraints, answer, given=0)

    def put_in(place):
        found = substitution._proposals(0, draft, Outline(tuple(answer.tokens), ((place, place + 1),)))
        return [each.tokens[place] for each in found]

    assert (put_in(0), put_in(1), put_in(3)) == ([5], [4], [4, 5, 6])
    cut = dataclasses.replace(draft, answer=dataclasses.replace(answer, finished=False))
    assert substitution._proposals(0, cut, Outline(tuple(answer.tokens), ((1, 2),))) == []
