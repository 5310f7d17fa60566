import html
import os
import re
from collections import Counter
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regard.documents.html import translate_html
from regard.documents.markup import Translated


def same(texts: list[str]) -> list[str]:
    return texts


def shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


def reverse(texts: list[str]) -> list[Translated]:
    words = [text.split() for text in texts]
    return [Translated(" ".join(w[::-1]), [(i, len(w) - 1 - i) for i in range(len(w))]) for w in words]


def one(text: str, translate=shout) -> str:
    return translate_html([text], translate, "en")[0]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<p>The <b>red</b> house</p>", "<p>house <b>red</b> The</p>"),
        ("<p>One two.<br>Three four.</p>", "<p>two. One<br>four. Three</p>"),
        ("<p>One two. Three four.</p>", "<p>two. One four. Three</p>"),
        (
            "<P><Span CLASS=x>One two. Three <i>four</i>.</Span></P>",
            "<P><Span CLASS=x>two. One <i>four</i>. Three</Span></P>",
        ),
        ("<ul><li>a b<li>c d</ul>", "<ul><li>b a<li>d c</ul>"),
        ("<a href='x>y' title=\"a>b\">link here</a> text", "text <a href='x>y' title=\"a>b\">here link</a>"),
        ("<b>a <p>b c</p> d</b>", "<b>a <p>c b</p> d</b>"),
        ("use <code>x y</code> now", "now use <code>x y</code>"),
        ("<td>&nbsp;</td><td>a&nbsp;b</td>", "<td>&nbsp;</td><td>b a</td>"),
    ],
)
def test_tags_follow_the_words_and_blocks_part_them(source: str, expected: str):
    assert one(source, reverse) == expected


@pytest.mark.parametrize(
    "kept",
    [
        "<!DOCTYPE html>", "<!-- a <b> c -->", "<script>if (a<b) f('</p>')</script>", "<STYLE>p > b {x: y}</style>",
        "<pre>a <b>b</b></pre>", '<p translate="no">a <b>b</b></p>', "<div class='x notranslate'>a<div>b</div>c</div>",
        "<span translate=no>a b</span>", "<textarea>a b</textarea>", "<svg><text>a</text></svg>",
        "<?xml version='1.0'?>", "<!-- open", "<script>open", "<img src='a b'>", "<br/>", "<![CDATA[a b]]>",
        "<kbd>ctrl</kbd>",
    ],
)  # fmt: skip
def test_what_is_copied(kept: str):
    assert one(kept) == kept
    assert one(f"<p>one {kept}") == f"<p>ONE {kept}"
    if kept.endswith(">"):
        assert one(f"<div>{kept}</div> two") == f"<div>{kept}</div> TWO"


def test_what_only_looks_untranslated():
    assert one("<p translate=yes class=notranslate2>a</p>") == "<p translate=yes class=notranslate2>A</p>"
    assert one("<p data-translate='no' id='notranslate'>a</p>") == "<p data-translate='no' id='notranslate'>A</p>"


def test_an_open_end_of_what_is_kept_is_the_next_block():
    assert one("<p translate=no>a <b>b<p>c") == "<p translate=no>a <b>b<p>C"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("caf&eacute; &amp; t&#233; &lt;b&gt; x", "CAFÉ &amp; TÉ &lt;b&gt; X"),
        ("5 < 6 & 7 > a", "5 &lt; 6 &amp; 7 &gt; A"),
        ("10&nbsp;km\xa0far", "10&nbsp;KM FAR"),
        ("a <b unclosed", "A &lt;B UNCLOSED"),
        ("see https://a.b/?c=1&amp;d=2 now", "SEE https://a.b/?c=1&amp;d=2 NOW"),
    ],
)
def test_entities_are_read_and_written(source: str, expected: str):
    assert (
        one(source, lambda texts: [text.upper().replace("KM", "km") for text in texts]).replace("km", "KM") == expected
    )


def test_no_break_spaces_stay_between_neighbours():
    assert one("<p>10&nbsp;km from 5&nbsp;pm to&nbsp;me", same) == "<p>10&nbsp;km from 5&nbsp;pm to&nbsp;me"


def test_all_pages_go_in_one_call():
    calls = []

    def note(texts: list[str]) -> list[str]:
        calls.append(texts)
        return texts

    assert translate_html(["<p>One. Two.</p>", "", "<b>three</b>"], note, "en") == [
        "<p>One. Two.</p>",
        "",
        "<b>three</b>",
    ]
    assert calls == [["One.", "Two.", "three"]]


class Reader(HTMLParser):
    """What an independent parser finds: tags and comments in order, and the text without white space."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, object]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append((tag, attrs))

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", None))

    def handle_comment(self, data: str) -> None:
        self.tags.append(("!", data))

    def handle_data(self, data: str) -> None:
        self.text += "".join(data.split())


content = st.sampled_from(
    ["one", "two. ", "Three", " ", "\n ", "&amp;", "é", "&nbsp;", "<!-- c -->", "<br>", "<img src=x>", "四。"]
)
names = st.sampled_from(["p", "div", "b", "i", "a", "span", "td", "code", "unknown-tag"])
documents = st.recursive(
    content,
    lambda inner: st.builds(
        lambda name, attribute, parts: f"<{name}{attribute}>{''.join(parts)}</{name}>",
        names,
        st.sampled_from(["", " class='x y'", ' data-x="a>b"', " translate=no"]),
        st.lists(inner, max_size=5),
    ),
    max_leaves=20,
)


@given(documents)
def test_an_identity_keeps_the_document(document: str):
    out = one(document, same)
    before, after = Reader(document), Reader(out)
    assert after.tags == before.tags
    assert after.text == before.text
    assert html.unescape(out) == html.unescape(document)


@given(
    documents,
    st.lists(st.sampled_from(["x", "y,", "z."]), max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=9),
)
def test_any_translation_keeps_every_tag_and_their_nesting(
    document: str, words: list[str], links: list[tuple[int, int]]
):
    out = one(document, lambda texts: [Translated(" ".join(words), links) for _ in texts])
    before, after = (Counter(re.findall(r"<[^>]*?(?:\"[^\"]*\"[^>]*)?>", text)) for text in (document, out))
    assert not after - before
    assert all(re.match(r"</?[bi]\b", tag) for tag in before - after)  # formatting tags may be dropped with their words
    stack = []
    for slash, name in re.findall(r"<(/?)([a-z-]+)", out):
        if slash:
            assert stack.pop() == name
        elif name not in ("br", "img"):
            stack.append(name)
    assert not stack


SHARDS = st.sampled_from([
    "<", ">", "</", "<b", "<b>", "</b>", "<p>", "</i>", "<!--", "-->", "<script>", "</script", '"', "'", "=", "&",
    "&lt", ";", "a", "B. ", " ", "<!", "<?", "]]>", "translate=no", "\ufffc", "/>",
])  # fmt: skip


@given(st.lists(SHARDS, max_size=25).map("".join))
@example("<b><i>x y</b> z</i>")
@example("<a b='")
def test_broken_html_neither_fails_nor_loses_anything(document: str):
    def bare(text: str) -> str:
        return "".join(html.unescape(html.unescape(text)).split())

    assert bare(one(document, same)) == bare(document)


# Half the size and a quarter of the time limit find the same quadratic algorithms as `make faults`.
TIMES = 10_000 if "REGARD_FAULT_COUNT" in os.environ else 5000
HOSTILE = {
    "open": "<b>" * 5 * TIMES,
    "closed": "</b>" * 5 * TIMES,
    "quotes": '<a ="' * 10 * TIMES,
    "mixed": "<a <a ='\"" * 5 * TIMES,
    "comments": "<!--" * 10 * TIMES,
    "kept": "<b translate=no>x " * 5 * TIMES,
    "scripts": "<script>" * 5 * TIMES,
    "deep": "<b>" * 3000 + "x" + "</b>" * 3000,
    "bound": " ".join(f"a{n}&nbsp;b" for n in range(5 * TIMES)),
    "ampersands": "&" * 20 * TIMES,
}


@pytest.mark.timeout(300 if "REGARD_FAULT_COUNT" in os.environ else 75)
@pytest.mark.parametrize("document", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_pages_come_back_whole_and_not_in_hours(document: str):
    assert html.unescape(one(document, same)) == html.unescape(document)
