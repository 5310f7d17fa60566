"""Glossaries in translations: every term is said, whatever the beam, the batch and the precision."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import regard
from regard.data.formats.pairs import Pair
from regard.data.tokenizers.pair import TokenizerConfig, train_pair_tokenizer
from regard.errors import DataError, UsageError
from regard.families.translation.glossary import Glossary
from regard.families.translation.terms import Draft, TermEncoder, as_glossary
from regard.families.translation.translation import Translation
from regard.families.translation.translator import Translator
from regard.search.constraints import Constraint, Constraints, Form, TokenKinds
from regard.search.search import Hypothesis

TEXTS = [
    "we are eating bread",
    "We like the house and the book.",
    "we sleep",
    "the house and the bread",
    "bread, bread and bread",
]
TERMS = Glossary.of({"bread": "tortilla", "house": "el hogar|hogares", "book": "book"})


@pytest.fixture(scope="module")
def translator(translator_folder: Path) -> Translator:
    return regard.load(translator_folder)


def assert_said(answer: Translation) -> None:
    said = answer.text.lower()
    if not answer.finished:  # only an answer that ends has all its terms
        return
    assert said.count("tortilla") == answer.source.count("bread")
    assert ("hogar" in said) == ("house" in answer.source)
    assert ("book" in said) == ("book" in answer.source)
    for use in answer.terms:
        assert answer.source[use.start : use.end] in ("bread", "house", "book")
        assert answer.text[use.target_start : use.target_end].lower() in ("tortilla", "el hogar", "hogares", "book")


@pytest.mark.parametrize("beam", [1, 4])
def test_every_term_is_said_once_and_other_sentences_stay_as_they_are(translator: Translator, beam: int) -> None:
    plain = translator.translate(TEXTS, to="es", beam=beam)
    steered = translator.translate(TEXTS, to="es", beam=beam, glossary=TERMS)
    for before, after in zip(plain, steered, strict=True):
        assert after.finished or not before.finished
        assert_said(after)
        assert before.text != after.text or not after.terms
    assert (plain[2].text, plain[2].score) == (steered[2].text, steered[2].score)
    for text, answer in zip(TEXTS, steered, strict=True):
        alone = translator.translate(text, to="es", beam=beam, glossary=TERMS)
        assert alone.text == answer.text


def test_other_ways_to_decode_say_the_terms_too(translator: Translator, translator_folder: Path) -> None:
    text = TEXTS[1]
    expected = translator.translate(text, to="es", beam=3, glossary=TERMS)
    *_, last = translator.stream(text, to="es", beam=3, glossary=TERMS)
    assert last.text == expected.text
    several = translator.translate(text, to="es", beam=2, n_best=4, glossary=TERMS)
    for answer in (several, *several.alternatives):
        assert_said(answer)
    for changed in (
        regard.load(translator_folder, precision="int8"),
        regard.load(translator_folder, translator_folder),
    ):
        assert_said(changed.translate(text, to="es", beam=2, glossary=TERMS))
    given = translator.translate(TEXTS[0], to="es", prefix="tortilla tortilla y", glossary=TERMS)
    assert given.text.startswith("tortilla tortilla y")  # a given beginning may say a term more often
    begun = translator.translate(text, to="es", prefix="Ella", glossary=TERMS)
    assert begun.text.startswith("Ella")
    assert_said(begun)


def test_torch_alone_finds_the_same(translator: Translator, translator_folder: Path, monkeypatch) -> None:
    expected = translator.translate(TEXTS, to="es", beam=3, glossary=TERMS)
    monkeypatch.setattr("regard.runtime.compiled.library", lambda: None)
    slow = regard.load(translator_folder)
    answers = slow.translate(TEXTS, to="es", beam=3, glossary=TERMS)
    assert [answer.text for answer in answers] == [answer.text for answer in expected]


def test_a_mapping_is_a_glossary_and_capitals_follow_the_source(translator: Translator) -> None:
    answer = translator.translate("Bread is good", to="es", glossary={"bread": ["tortilla"]})
    ((_, start, end, first, last),) = answer.terms
    assert answer.source[start:end] == "Bread"
    assert answer.text[first:last] in ("Tortilla", "tortilla")
    assert translator.translate("bread", to="es").terms == []


def test_a_term_replaces_the_word_that_looks_at_its_source() -> None:
    """Of two equal terms, the one that is said is the one that the said word looks at; the other is placed."""
    term = (Form((9,)),)
    constraints = Constraints((Constraint(term, (0,)), Constraint(term, (2,))), TokenKinds(marks=frozenset({3})))
    answer = Hypothesis([3, 5, 6, 9, 7], 0.0, 0.0, True)
    draft = Draft(0, "a b c", constraints, answer, given=0)
    assert not draft.is_right and draft.said == {0: (3, 4)}
    weights = np.full((5, 4), 0.1)
    weights[:, 0] = [0.9, 0.3, 0.8, 0.0, 0.1]  # the mark looks most, but is no word
    weights[3, 2] = 0.9
    outline = draft.outline(weights, words_of=[0, 0, 1, 2, 3])
    assert outline.places == ((2, 3), (3, 4))
    assert draft.beginning(outline) == []
    right = replace(answer, tokens=[9, 5, 9])
    assert Draft(0, "a b c", constraints, right, given=0).is_right
    assert not Draft(0, "a b c", constraints, replace(answer, tokens=[9, 5, 9, 9]), given=0).is_right


def test_what_cannot_be_done_is_told_in_a_line(translator: Translator) -> None:
    with pytest.raises(DataError, match=r"g.tsv, line 1: the model cannot write '東京'"):
        translator.terms.check(Glossary.parse(["bread\t東京"], "g.tsv"))
    long = Glossary.parse(["bread\tuna cosa que tiene muchas palabras"], "g.tsv")
    with pytest.raises(UsageError, match=r"line 1: the terms of 'we are eating bread' take .* may have 3"):
        translator.translate(TEXTS[0], to="es", glossary=long, max_length=3)
    with pytest.raises(UsageError, match="leave out sampling"):
        translator.translate(TEXTS[0], to="es", glossary=TERMS, sample=True)
    with pytest.raises(UsageError, match="a Glossary or a mapping"):
        as_glossary("g.tsv")


def test_capitals_that_the_vocabulary_lacks_are_left_out() -> None:
    """A term is refused for what the glossary lists, not for the capitals that it may have in some places."""
    pairs = [Pair("we eat bread", "comemos pan"), Pair("the bread", "el pan")] * 5
    config = TokenizerConfig.parse({"kind": "character", "size": 40, "min_frequency": 1})
    encoder = TermEncoder(train_pair_tokenizer(pairs, config, "en", ["es"]))
    target, glossary = encoder.tokenizer.target, Glossary.of({"bread": "pan"})
    assert target.unknown in target.encode(["Pan"])[0]
    encoder.check(glossary)
    for text in ("bread", "Bread", "BREAD"):
        (constraint,) = encoder.constraints(glossary.find(text)).each
        assert {target.decode(form.tokens) for form in constraint.forms} == {"pan"}
    with pytest.raises(DataError, match="the model cannot write 'Pan'"):
        encoder.check(Glossary.of({"bread": "pan|Pan"}))
