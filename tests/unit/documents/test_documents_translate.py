import csv
import gzip
import json
from pathlib import Path

import polib
import pytest
from lxml import etree

from regard.documents.markup import Translated
from regard.documents.translate import translate_document
from regard.errors import DataError, UsageError

XLIFF = "urn:oasis:names:tc:xliff:document:"


def shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


def reverse(texts: list[str]) -> list[Translated]:
    """The words in reverse order, with the corresponding links."""
    words = [text.split() for text in texts]
    return [Translated(" ".join(w[::-1]), [(i, len(w) - 1 - i) for i in range(len(w))]) for w in words]


def translated(path: Path, content: str, translate=shout, **options) -> str:
    path.write_text(content, encoding="utf-8", newline="")
    out = path.with_name("out" + path.suffix)
    translate_document(path, out, translate, "en", "de", **options)
    return out.read_text(encoding="utf-8")


def test_plain_text_line_by_line(tmp_path: Path):
    lines = ["one %s", "", "  <b>two</b>  ", "%s", "a\u2028b"]
    out = translated(tmp_path / "a.txt", "\n".join(lines))
    assert out.split("\n") == ["ONE %S", "", "  <B>TWO</B>  ", "%S", "A\u2028B"]


def test_plain_text_sentence_by_sentence_with_its_ends(tmp_path: Path):
    sent: list[str] = []

    def note(texts: list[str]) -> list[str]:
        sent.extend(texts)
        return shout(texts)

    (tmp_path / "a.txt").write_bytes("\ufeffOne two.  Three!\r\n\r\nfour\n five\r".encode())
    assert translate_document(tmp_path / "a.txt", tmp_path / "b.txt", note, "en", "de").translated == 4
    assert (tmp_path / "b.txt").read_bytes() == "\ufeffONE TWO.  THREE!\r\n\r\nFOUR\n FIVE\r".encode()
    assert sent == ["One two.", "Three!", "four", "five"]


def test_subtitles(tmp_path: Path):
    film = "\ufeff1\r\n00:00:01,000 --> 00:00:02,000\r\n<i>Hello\r\nthere</i>\r\n\r\n"
    (tmp_path / "a.srt").write_bytes(film.encode())
    assert translate_document(tmp_path / "a.srt", tmp_path / "b.srt", shout, "en", "de").translated == 1
    assert (tmp_path / "b.srt").read_bytes().decode() == film.replace("Hello", "HELLO").replace("there", "THERE")
    with pytest.raises(UsageError, match="keeps its format"):
        translate_document(tmp_path / "a.srt", tmp_path / "b.vtt", shout, "en", "de")


@pytest.mark.parametrize("head", ["", "\ufeff", "<meta charset=utf-8>"])
def test_html(tmp_path: Path, head: str):
    (tmp_path / "a.html").write_bytes(f"{head}<p>a <b>bé</b>.\r\n</p>".encode())
    assert translate_document(tmp_path / "a.html", tmp_path / "b.htm", reverse, "en", "de").translated == 1
    assert (tmp_path / "b.htm").read_bytes().decode() == f"{head}<p><b>bé</b>. a\r\n</p>"


@pytest.mark.parametrize("charset", ["iso-8859-1", "windows-1251", "Shift_JIS", "iso-8859-15"])
def test_html_in_another_encoding(tmp_path: Path, charset: str):
    head = f'<meta http-equiv="Content-Type" content="text/html;charset={charset}">'
    text = b"one \xc1\xc2".decode("cp1252" if charset == "iso-8859-1" else charset)
    (tmp_path / "a.html").write_bytes(head.encode() + b"<p>one \xc1\xc2")
    sent: list[str] = []
    translate_document(
        tmp_path / "a.html", tmp_path / "b.html", lambda texts: sent.extend(texts) or ["\u20ac\u0e01 x"], "en", "de"
    )
    out = (tmp_path / "b.html").read_bytes()
    assert sent == [text]
    assert out.startswith(head.encode())
    decoded = out.decode("cp1252" if charset == "iso-8859-1" else charset)
    assert decoded.removeprefix(head).replace("&#8364;", "\u20ac") == "<p>\u20ac&#3585; x"


def test_more_lines_than_one_batch(tmp_path: Path):
    sizes = []

    def note(texts: list[str]) -> list[str]:
        sizes.append(len(texts))
        return shout(texts)

    out = translated(tmp_path / "a.txt", "".join(f"line {n}\n" for n in range(600)), note)
    assert out == "".join(f"LINE {n}\n" for n in range(600))
    assert max(sizes) <= 256


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("one\n\ntwo\n", "one\tONE\n\ntwo\tTWO\n"),
        ("one\t\ntwo\tzwei\textra\n", "one\tONE\ntwo\tzwei\textra\n"),
        ("id\ten\n1\tone\n", "id\ten\tde\n1\tone\tONE\n"),
        ("de\ten\n\tone\nzwei\ttwo\n", "de\ten\nONE\tone\nzwei\ttwo\n"),
        ("source\none\n", "source\ttarget\none\tONE\n"),
        ("", ""),
    ],
)
def test_tsv_gains_the_translation(tmp_path: Path, content: str, expected: str):
    assert translated(tmp_path / "a.tsv", content) == expected


def test_existing_translations_are_kept_unless_told(tmp_path: Path):
    assert translated(tmp_path / "a.tsv", "two\tzwei\none\t\n") == "two\tzwei\none\tONE\n"
    assert translated(tmp_path / "a.tsv", "two\tzwei\n", overwrite=True) == "two\tTWO\n"


def test_a_table_without_named_columns_that_is_full_tells_how_to_name_them(tmp_path: Path):
    full = "id,text\n1,one\n2,two\n"
    with pytest.warns(UserWarning, match=r"nothing was translated: no column is named 'en'"):
        assert translated(tmp_path / "a.csv", full) == full


def test_csv_quotes(tmp_path: Path):
    out = translated(tmp_path / "a.csv", 'en,de\n"a, ""b""\nc",\n')
    assert list(csv.reader(out.splitlines(keepends=True))) == [["en", "de"], ['a, "b"\nc', 'A, "B"\nC']]


def test_jsonl_keeps_its_shape(tmp_path: Path):
    rows = [{"translation": {"en": "one"}, "id": 7}, {"en": "two", "de": "zwei"}, {"source": "é", "target": ""}]
    out = translated(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    rows[0]["translation"]["de"] = "ONE"
    rows[2]["target"] = "É"
    assert [json.loads(line) for line in out.splitlines()] == rows


def test_po_keeps_headers_comments_context_and_plurals(tmp_path: Path):
    content = r"""# translators' note
msgid ""
msgstr ""
"Project-Id-Version: demo\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=3; plural=(n==1 ? 0 : n<5 ? 1 : 2);\n"

#. to be seen
#: main.c:3
#, c-format
msgctxt "menu"
msgid "Open %s\nnow\n"
msgstr ""

msgid "done"
msgstr "fertig"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""
msgstr[2] ""

#~ msgid "old"
#~ msgstr ""
"""
    out = polib.pofile(translated(tmp_path / "a.po", content))
    menu, done, files, old = list(out)
    assert out.header == " translators' note".strip()
    assert (out.metadata["Project-Id-Version"], out.metadata["Language"]) == ("demo", "de")
    assert (menu.msgstr, menu.msgctxt, menu.comment, menu.flags) == (
        "OPEN %s\nNOW\n",
        "menu",
        "to be seen",
        ["c-format"],
    )
    assert menu.occurrences == [("main.c", "3")]
    assert done.msgstr == "fertig"
    assert files.msgstr_plural == {0: "%d FILE", 1: "%d FILES", 2: "%d FILES"}
    assert old.obsolete
    assert old.msgstr == ""


def test_tmx_gains_or_fills_the_target(tmp_path: Path):
    content = """<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header note="kept"/><body>
<tu tuid="1"><prop type="x">kept</prop><tuv xml:lang="en-US"><seg>red <hi>house &amp; garden</hi></seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>one</seg></tuv><tuv xml:lang="DE"><seg/></tuv></tu>
<tu><tuv xml:lang="en"><seg>two</seg></tuv><tuv xml:lang="de"><seg>zwei</seg></tuv></tu></body></tmx>"""
    out = translated(tmp_path / "a.tmx", content, reverse)
    assert "<!DOCTYPE tmx" in out
    root = etree.fromstring(out.encode())
    assert root.findtext(".//prop") == "kept"
    segments = [etree.tostring(tuv.find("seg"), encoding=str) for tuv in root.iter("tuv")]
    assert segments[1] == "<seg><hi>garden &amp; house</hi> red</seg>"
    assert segments[2:] == ["<seg>one</seg>", "<seg>one</seg>", "<seg>two</seg>", "<seg>zwei</seg>"]
    with pytest.raises(DataError, match="no language 'fr'; the languages are: DE, de, en, en-US"):
        translate_document(tmp_path / "a.tmx", tmp_path / "b.tmx", shout, "fr", "de")


def test_xliff_1_2_keeps_inline_elements(tmp_path: Path):
    content = f"""<xliff version="1.2" xmlns="{XLIFF}1.2"><file source-language="en" original="x" datatype="html"><body>
<trans-unit id="1"><source>see <g id="1" ctype="bold">the {{name}} <g id="2">house</g></g> <x id="3"/>now</source>
<note>kept</note></trans-unit>
<trans-unit id="2"><source>a <bpt id="4" rid="1">&lt;i&gt;</bpt>b c<ept id="5" rid="1">&lt;/i&gt;</ept></source>
</trans-unit>
<trans-unit id="3"><source>two</source><target>zwei</target></trans-unit>
<trans-unit id="4" translate="no"><source>keep</source></trans-unit>
<trans-unit id="5"><source><x id="9"/> {{0}}</source></trans-unit></body></file></xliff>"""
    root = etree.fromstring(translated(tmp_path / "a.xlf", content, reverse).encode())
    assert root[0].get("target-language") == "de"
    targets = {u.get("id"): u.find("{*}target") for u in root.iter("{*}trans-unit")}
    inner = {
        i: etree.tostring(t, encoding=str).replace(f' xmlns="{XLIFF}1.2"', "")
        for i, t in targets.items()
        if t is not None
    }
    state = 'state="translated"'
    assert inner["1"].strip() == (
        f'<target {state}><x id="3"/>now <g id="1" ctype="bold"><g id="2">house</g> the {{name}}</g> see</target>'
    )
    assert inner["2"].strip() == (
        f'<target {state}><bpt id="4" rid="1">&lt;i&gt;</bpt>c b<ept id="5" rid="1">&lt;/i&gt;</ept> a</target>'
    )
    assert inner["3"].strip() == "<target>zwei</target>"
    assert inner["5"] == f'<target {state}><x id="9"/> {{0}}</target>'
    assert targets["4"] is None
    assert [child.tag.split("}")[1] for child in root.find(".//{*}trans-unit")] == ["source", "target", "note"]


def test_xliff_2_fills_segments(tmp_path: Path):
    content = f"""<xliff version="2.0" srcLang="en" xmlns="{XLIFF}2.0"><file id="f"><unit id="1">
<originalData><data id="d1">&lt;br/&gt;</data></originalData>
<segment id="s1"><source>one <pc id="1">two</pc> <ph id="2" dataRef="d1"/></source></segment>
<segment id="s2"><source><sc id="3"/>a b<ec startRef="3"/> c</source><target/></segment></unit></file></xliff>"""
    out = translated(tmp_path / "a.xliff", content, reverse)
    root = etree.fromstring(out.encode())
    assert root.get("trgLang") == "de"
    targets = [
        etree.tostring(t, encoding=str, with_tail=False).replace(f' xmlns="{XLIFF}2.0"', "")
        for t in root.iter("{*}target")
    ]
    assert targets[0] == '<target><pc id="1">two</pc> <ph id="2" dataRef="d1"/> one</target>'
    assert targets[1] == '<target>c <sc id="3"/>b a<ec startRef="3"/></target>'


def test_packed_in_packed_out(tmp_path: Path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\n"))
    assert translate_document(tmp_path / "a.txt.gz", tmp_path / "b.txt.gz", shout, "en", "de").translated == 1
    assert gzip.decompress((tmp_path / "b.txt.gz").read_bytes()) == b"ONE\n"


def test_nothing_half_written(tmp_path: Path):
    def stop(texts: list[str]) -> list[str]:
        if "line 500" in texts:
            raise RuntimeError("stop")
        return texts

    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(600)))
    (tmp_path / "b.txt").write_text("what was there")
    with pytest.raises(RuntimeError):
        translate_document(tmp_path / "a.txt", tmp_path / "b.txt", stop, "en", "de")
    assert (tmp_path / "b.txt").read_text() == "what was there"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_a_document_may_replace_itself(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    translate_document(path, path, shout, "en", "de")
    assert path.read_text() == "ONE\n"


def test_a_suffix_may_be_a_language(tmp_path: Path):
    """Moses' names of file pairs: news.en and news.de."""
    (tmp_path / "news.en").write_text("one\ntwo\n")
    for out in ("news.de", "news.zh", "news.txt", "news"):
        assert translate_document(tmp_path / "news.en", tmp_path / out, shout, "en", "de").translated == 2
        assert (tmp_path / out).read_text() == "ONE\nTWO\n"
    with pytest.raises(UsageError, match="keeps its format"):
        translate_document(tmp_path / "news.en", tmp_path / "news.po", shout, "en", "de")


def test_refusals(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    with pytest.raises(UsageError, match="keeps its format"):
        translate_document(path, tmp_path / "b.po", shout, "en", "de")
    with pytest.raises(UsageError, match=r"known are \.txt"):
        translate_document(tmp_path / "a.pdf", tmp_path / "b.pdf", shout, "en", "de")
    with pytest.raises(DataError, match="0 translations for 1"):
        translate_document(path, tmp_path / "b.txt", lambda texts: [], "en", "de")
    with pytest.raises(DataError, match="not written"):
        translate_document(path, path / "b.txt", shout, "en", "de")  # a file is no folder
    with pytest.raises(DataError, match="no such file"):
        translate_document(tmp_path / "none.txt", tmp_path / "b.txt", shout, "en", "de")
