import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regard.documents.markup import Mark, Piece, Translated, parse
from regard.documents.sentences import (
    WINDOW,
    split_marked,
    split_sentences,
    split_text,
    translate_sentences,
)
from regard.errors import DataError

# difficult input for sentence splitters: initials and ends beside every kind of space, quotes, combining characters
TRICKY = "aB.!?。！… \t\n\r\u2028\u3000\x0b\x1c\xa0\"'()[]«»1-é\u0301😀\ufeff\u200b\ud800\x00"
texts = st.text() | st.text(st.sampled_from(TRICKY), max_size=40)
languages = st.sampled_from(["en", "es", "de", "zh", "ja", "hi", "am", "", "xx", "pt-BR"])


def shout(sentences: list[str]) -> list[str]:
    return [sentence.upper() for sentence in sentences]


def spell(pieces: list[Piece]) -> str:
    return "".join(piece if isinstance(piece, str) else piece.content for piece in pieces)


@given(texts, languages)
@example("aB.\u3000B", "en")
@example("\ufeff\ufeffa", "en")
def test_nothing_is_lost_and_nothing_is_sent_in_vain(text: str, language: str):
    passage = split_text(text, language)
    assert passage.join(passage.sentences) == text
    assert all(sentence == sentence.strip() for sentence in passage.sentences)
    assert all(re.search(r"[^\W_]", sentence) or any(map(str.isalnum, sentence)) for sentence in passage.sentences)
    assert not any(character.isalnum() for gap in passage.gaps for character in gap)
    assert not any(re.search(r"[\r\n]", sentence) for sentence in passage.sentences)


@given(texts, st.lists(texts, min_size=1))
def test_line_breaks_are_those_of_the_source(text: str, translations: list[str]):
    def translate(sentences: list[str]) -> list[str]:
        return [translations[number % len(translations)] for number in range(len(sentences))]

    passage = split_text(text, "en")
    out = passage.join(translate(passage.sentences))
    assert re.findall(r"[\r\n]", out) == re.findall(r"[\r\n]", text)


@given(st.text(st.sampled_from("ab. \u3000。"), max_size=200), languages)
def test_long_texts_are_cut_like_short_ones_put_together(text: str, language: str):
    whole = text * (3 * WINDOW // max(len(text), 1)) if text else ""
    sentences = split_sentences(whole, language)
    assert "".join(sentences) == whole
    assert all(0 < len(sentence) <= WINDOW for sentence in sentences)


@pytest.mark.parametrize(
    ("text", "language", "sentences"),
    [
        ("Dr. Smith came.  He left!\r\n\r\n  Why? ", "en", ["Dr. Smith came.", "He left!", "Why?"]),
        ("Hello. World", "tlh", ["Hello.", "World"]),
        ("这是。那是！好", "zh", ["这是。", "那是！", "好"]),
        ("***\n---\nyes", "en", ["yes"]),
        ("see http://a.b/c?d=1 now", "en", ["see http://a.b/c?d=1 now"]),
        ("", "en", []),
    ],
)
def test_sentences(text: str, language: str, sentences: list[str]):
    assert split_text(text, language).sentences == sentences


@pytest.mark.parametrize("text", ["One two.  Three.\n", "", " e", "...\n"])
def test_white_space_and_texts_without_words_are_kept(text: str):
    passage = split_text(text, "en")
    assert passage.join(shout(passage.sentences)) == text.upper()


def test_sentences_without_spaces_between_them_gain_some_where_the_translation_needs_it():
    passage = split_text("はい。いいえ。\n好", "ja")
    assert passage.join(["Yes.", "No.", "Good"]) == "Yes. No.\nGood"
    assert passage.join(["是。", "不。", "好"]) == "是。不。\n好"
    passage = split_text("We eat bread.She reads.", "en")
    assert passage.join(["Comemos pan.", "Ella lee."]) == "Comemos pan. Ella lee."
    assert passage.join(passage.sentences) == "We eat bread.She reads."  # unchanged without a translation


def test_the_number_of_translations_is_checked():
    with pytest.raises(DataError, match="1 translations for 2"):
        split_text("One. Two.", "en").join(["one"])


@pytest.mark.parametrize(
    "text", ["This is a sentence. " * 50_000, "这是。" * 300_000, "a" * 1_000_000, "« a. " * 200_000, "\n" * 500_000]
)
def test_a_megabyte_takes_seconds_not_minutes(text: str):
    passage = split_text(text, "en")
    assert passage.join(passage.sentences) == text


# Text with marks

words = st.sampled_from(["one", "Two.", "three!", "四。", " ", "  "])


@st.composite
def nested(draw: st.DrawFn) -> list[Piece]:
    """Words, marks and nested pairs; some tags have no partner."""
    pieces: list[Piece] = []
    opened: list[int] = []
    for number, kind in enumerate(draw(st.lists(st.sampled_from("wwwwoocs?"), max_size=24))):
        if kind == "w":
            pieces.append(draw(words))
        elif kind == "o":
            opened.append(number)
            pieces.append(Mark(f"<{number}>", "open", number, firm=True))
        elif kind == "c" and opened:
            key = opened.pop()
            pieces.append(Mark(f"</{key}>", "close", key, firm=True))
        elif kind == "?":
            pieces.append(Mark(f"<{number}?>", draw(st.sampled_from(["open", "close"])), number, firm=True))
        elif kind == "s":
            pieces.append(Mark(f"<{number}/>"))
    return pieces + [Mark(f"</{key}>", "close", key, firm=True) for key in reversed(opened)]


PAIR = [Mark("<a>", "open", "a", firm=True), Mark("</a>", "close", "a", firm=True)]
INNER = [Mark("<b>", "open", "b", firm=True), Mark("</b>", "close", "b", firm=True)]


@example([PAIR[0], "Two.", *INNER, PAIR[1], "Two."])
@given(nested())
def test_marked_sentences_are_the_pieces_in_order_and_pairs_stay_whole(pieces: list[Piece]):
    sentences = split_marked(pieces, "en")
    assert "".join(map(spell, sentences)) == spell(pieces)
    for sentence in sentences:
        roles = {"open": [], "close": []}
        for piece in sentence:
            if isinstance(piece, Mark) and piece.role != "single":
                roles[piece.role].append(piece.key)
        assert sorted(roles["open"]) == sorted(roles["close"]) or len(sentence) == 1


@given(nested(), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_pairs_stay_nested_across_sentences(pieces: list[Piece], links: list[tuple[int, int]]):
    def backwards(sentences: list[str]) -> list[Translated]:
        return [Translated(" ".join(sentence.split()[::-1]), links) for sentence in sentences]

    (out,) = translate_sentences([pieces], backwards, "en")
    stack = []
    for name in re.findall(r"<(/?\d+)>", spell(out)):
        if name.startswith("/"):
            assert stack.pop() == name[1:]
        else:
            stack.append(name)
    assert not stack
    assert sorted(re.findall("<[^>]*>", spell(out))) == sorted(re.findall("<[^>]*>", spell(pieces)))


def test_sentences_keep_placeholders_even_with_sentence_ends_in_them():
    text = "Open {n, plural, one {a. B} other {c. D}}. Then <b>go. Now</b>."
    expected = "OPEN {n, plural, one {a. B} other {c. D}}. THEN <b>GO. NOW</b>."
    assert spell(translate_sentences([parse(text)], shout, "en")[0]) == expected
