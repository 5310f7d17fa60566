"""HTML: only words and the attributes that people read change; tags keep their places among the words."""

import html
import os
import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from hypothesis import example, given
from hypothesis import strategies as st

from regard.documents.html import translate_html
from regard.documents.markup import Translated
from rewritten_documents import rewrite, shout


def same(texts: list[str]) -> list[str]:
    return texts


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


PAGE = """<!DOCTYPE html><html lang="en-GB"><head><title>a page</title>
<meta name="description" content="one &amp; two"><meta property='og:description' content='say "hi"'>
<meta http-equiv="Content-Language" content="en"><meta name="viewport" content="width=device-width">
<link rel=stylesheet href=x.css><style>a{content:"b"}</style></head><body>
<img src="a.png" alt="a cat" title=cat><input type=text placeholder='your name' value="kept">
<input type="submit" value="send it"><a href="/x" aria-label="go home" data-x="kept">home
<b title="in bold">page</b></a>
<p lang="en">a <q lang="fr">mot</q></p>
<div translate="no" title="kept">kept</div>
<code title="kept">kept</code><textarea placeholder="write here">kept</textarea><option label="first">one</option>
<script title="kept">var a = "<p alt='x'>"</script></body></html>"""


def test_attributes_that_people_read(tmp_path: Path):
    out = rewrite(tmp_path, "a.html", PAGE.encode())[0].decode()
    soup, before = BeautifulSoup(out, "html.parser"), BeautifulSoup(PAGE, "html.parser")
    assert soup.html["lang"] == soup.p["lang"] == "de"
    assert soup.q["lang"] == "fr" and soup.q.text == "mot"
    assert [meta.get("content") for meta in soup.find_all("meta")] == [
        "ONE & TWO",
        'SAY "HI"',
        "de",
        "width=device-width",
    ]
    assert (soup.img["alt"], soup.img["title"], soup.img["src"]) == ("A CAT", "CAT", "a.png")
    assert [each.get("placeholder") for each in soup.find_all(["input", "textarea"])] == [
        "YOUR NAME",
        None,
        "WRITE HERE",
    ]
    assert [each["value"] for each in soup.find_all("input")] == ["kept", "SEND IT"]
    assert (soup.a["aria-label"], soup.b["title"], soup.option["label"]) == ("GO HOME", "IN BOLD", "FIRST")
    for name in ("div", "code", "script", "style"):
        assert str(soup.find(name)) == str(before.find(name))
    assert [each.name for each in soup.find_all()] == [each.name for each in before.find_all()]
    assert rewrite(tmp_path, "a.html", PAGE.encode(), same)[0].decode() == re.sub(
        '(?<=lang=")en(-GB)?|(?<=content=")en(?=")', "de", PAGE
    )


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<html><p>a</p></html>", '<html lang="de"><p>A</p></html>'),
        ("<html xml:lang='en' LANG=en><p>a", "<html xml:lang='de' LANG=\"de\"><p>A"),
        ("<p>a", "<p>A"),
        ("<img alt=a>", '<img alt="A">'),
        ("<img alt='it&#39;s'>", "<img alt='IT&#39;S'>"),
        ("<img alt>", "<img alt>"),
        ('<img alt="">', '<img alt="">'),
        ('<img alt="%s {0} 12">', '<img alt="%s {0} 12">'),
        ('<p>a <img alt="b c"> d', '<p>A <img alt="B C"> D'),
        ('<p title="a. b.">x', '<p title="A. B.">X'),
    ],
)
def test_attributes_are_written_as_they_were(tmp_path: Path, page: str, expected: str):
    assert rewrite(tmp_path, "a.html", page.encode())[0].decode() == expected


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<p>the <b>red</b> house</p>", "<p>la <b>casa</b></p>"),
        ('<p>the <a href="/r">red</a> house</p>', '<p>la <a href="/r">casa</a></p>'),
        ("<p><b>red</b></p>", "<p><b>casa</b></p>"),
    ],
)
def test_no_pair_of_tags_is_left_empty(tmp_path: Path, page: str, expected: str):
    links = {3: [(0, 0), (2, 1)], 1: []}

    def drop(texts: list[str]) -> list[Translated]:
        return [Translated("la casa" if " " in text else "casa", links[len(text.split())]) for text in texts]

    assert rewrite(tmp_path, "a.html", page.encode(), drop)[0].decode() == expected
    nothing = rewrite(tmp_path, "a.html", page.encode(), lambda texts: [""] * len(texts))[0].decode()
    assert "<b></b>" not in nothing
    assert ("/r" in nothing) == ("/r" in page)


def test_html_words_and_entities_are_as_in_a_browser(tmp_path: Path):
    out = rewrite(tmp_path, "a.html", b"<p>caf&eacute; &copy; x &lt;b&gt;</p>")[0].decode()
    assert html.unescape(BeautifulSoup(out, "html.parser").p.text) == "CAFÉ © X <b>"
    for one, other in pairwise(["&copy;", "©", "&#169;"]):
        pages = [rewrite(tmp_path, "a.html", f"<p>a {each} b".encode())[0] for each in (one, other)]
        assert pages[0] == pages[1]
