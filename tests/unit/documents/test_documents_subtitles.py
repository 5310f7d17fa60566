import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.documents.markup import Translated
from regard.documents.subtitles import translate_subtitles, wrap_lines

FILM = """1
00:00:01,000 --> 00:00:02,500
{\\an8}<i>Hello there, my
friend. How are you?</i>

2
00:00:03,000 --> 00:00:04,000
- Fine!
- <b>Good</b> bye.

3
00:00:05,000 --> 00:00:06,000
♪ ♪


4
00:00:07,000 --> 00:00:08,000
The end
"""


def shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


def one(text: str, translate=shout) -> str:
    return translate_subtitles([text], translate, "en")[0]


def test_only_what_is_spoken_is_translated():
    sent: list[str] = []

    def note(texts: list[str]) -> list[str]:
        sent.extend(texts)
        return shout(texts)

    out = one(FILM, note)
    assert sent == ["Hello there, my friend.", "How are you?", "Fine!", "Good bye.", "The end"]
    expected = FILM.replace("Hello there, my\nfriend. How are you?", "HELLO THERE, MY\nFRIEND. HOW ARE YOU?")
    expected = expected.replace("Fine", "FINE").replace("Good</b> bye", "GOOD</b> BYE").replace("The end", "THE END")
    assert out == expected


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("begin", ["", "\ufeff", "\n\n"])
def test_odd_files_survive(begin: str, end: str):
    film = (begin + FILM.rstrip()).replace("\n", end)
    assert one(film).lower() == film.lower()


ODD = {
    "no numbers": "00:01,0 --> 00:02,0\n«one»\n\n00:03,0 --> 00:04,0\n«two»",
    "no blank line": "1\n00:01,0 --> 00:02,0\n«one»\n2\n00:03,0 --> 00:04,0\n«two»",
    "blank line within": "1\n00:01,0 --> 00:02,0\n«one»\n\n«more»\n\n2\n00:03,0 --> 00:04,0\n",
    "no subtitles": "no time code\n\nat all",
    "empty": "",
}


@pytest.mark.parametrize("film", ODD.values(), ids=ODD.keys())
def test_odd_cues(film: str):
    """The text between « and » is spoken."""
    expected = re.sub("«(.*?)»", lambda match: match[1].upper(), film)
    assert one(re.sub("[«»]", "", film)) == expected


def test_a_cue_is_never_empty_and_no_mark_comes_from_the_translator():
    film = "1\n00:01,0 --> 00:02,0\n<i>one</i>\n"
    assert one(film, lambda texts: [""]) == film
    assert one(film, lambda texts: ["\ufffcx\n\ny"]) == film.replace("one", "x y")


def test_webvtt():
    film = """WEBVTT - a title

STYLE
::cue { color: red }

NOTE not spoken
at all

intro
00:01.000 --> 00:02.000 align:start
<v Roger>Hello &amp; <c.loud>welcome</c> <00:01.500>here
"""
    expected = (
        film.replace("Hello", "HELLO").replace("welcome", "WELCOME").replace("here", "HERE").replace("tHERE", "there")
    )
    assert one(film) == expected


def test_lines_of_scripts_without_spaces_are_joined_without():
    sent: list[str] = []
    film = "1\n00:01,0 --> 00:02,0\n这是测试的\n文字\n"
    out = one(film, lambda texts: sent.extend(texts) or texts)
    assert sent == ["这是测试的文字"]
    assert out == "1\n00:01,0 --> 00:02,0\n这是测试\n的文字\n"


@given(st.lists(st.text("ab\ufffc", min_size=1, max_size=9), min_size=1, max_size=12), st.integers(1, 5))
def test_lines_are_as_many_and_as_even_as_can_be(words: list[str], count: int):
    text = " ".join(words)
    rows = wrap_lines(text, count)
    assert " ".join(rows) == text
    assert len(rows) <= count
    visible = [word for word in words if word.strip("\ufffc")]
    if len(visible) == len(words):
        assert len(rows) == min(count, len(words))
        ideal = len(text.replace("\ufffc", "")) / len(rows)
        longest = max(len(word) for word in words)
        assert max(len(row.replace("\ufffc", "")) for row in rows) <= ideal + longest * 2


@given(
    st.lists(
        st.sampled_from(["one two", "<i>three</i>", "- four", "{\\an8}five.", "六七。", "8"]), min_size=1, max_size=4
    ),
    st.lists(st.sampled_from(["x", "yy", "zzz"]), max_size=6),
)
def test_any_translation_leaves_a_sound_file(lines: list[str], words: list[str]):
    film = "".join(f"{n}\n00:0{n}:00,000 --> 00:0{n}:01,000\n" + "\n".join(lines) + "\n\n" for n in (1, 2))
    out = one(film, lambda texts: [Translated(" ".join(words)) for _ in texts])
    stamps = r"\d+\n00:\d\d:00,000 --> .*\n"
    assert re.findall(stamps, out) == re.findall(stamps, film)
    assert re.findall(r"\{[^}]*\}", out) == re.findall(r"\{[^}]*\}", film)
    assert "<i></i>" not in out
    assert out.count("<i>") == out.count("</i>") <= film.count("<i>")
    for cue in re.split(stamps, out)[1:]:
        assert len(cue.splitlines()) <= len(lines) + 1


def test_everything_goes_in_one_call():
    calls = []
    translate_subtitles([FILM, FILM], lambda texts: calls.append(texts) or texts, "en")
    assert [len(texts) for texts in calls] == [10]
