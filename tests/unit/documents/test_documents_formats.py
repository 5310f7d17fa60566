"""Translated documents keep everything but their words: encoding, marks, line ends, quotes, markup."""

import csv
import html
import io
import re
import warnings
from itertools import pairwise
from pathlib import Path

import polib
import pytest
from bs4 import BeautifulSoup
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree

from regard.data.formats.encodings import find_encoding, read_encoded
from regard.documents.document_job import Report
from regard.documents.markup import Translated
from regard.documents.po import PoFile
from regard.documents.translate import read_document_lines, translate_document
from regard.errors import DataError, UsageError

XLIFF = 'xmlns="urn:oasis:names:tc:xliff:document:1.2"'
SRT = "1\n00:00:01,000 --> 00:00:02,000\n<i>Où est Zoë?</i>\n\n2\n00:00:03,000 --> 00:00:04,000\n♪ là là ♪\n"


def shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


def same(texts: list[str]) -> list[str]:
    return texts


def rewrite(folder: Path, name: str, raw: bytes, translate=shout, **options) -> tuple[bytes, Report]:
    path, out = folder / name, folder / f"out.{name}"
    path.write_bytes(raw)
    report = translate_document(path, out, translate, "en", "de", **options)
    return out.read_bytes(), report


# One document of each format that is either fully translated already or has nothing but words to change
PO = r"""# note
#, fuzzy
msgid ""
msgstr ""
"Language: de\n"
"Content-Type: text/plain; charset={charset}\n"
"X-Odd:   kept\n"

#: a.c:1   b.c:2
#, c-format
msgctxt "x"
msgid ""
"café %s "
"one\n"
"two\n"
msgstr "déjà"

#~ msgid "old"
#~ msgstr "alt"
"""
TMX = """<?xml version='1.0' encoding="{charset}"  ?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd" [ <!-- ' ]> --> <!ELEMENT x (y)> ]>
<tmx  version='1.4'><!-- <tu> --><header note = "a > b"/><body>
  <tu>
    <tuv xml:lang="en"><seg>caf\u00e9 &quot;<hi >x</hi>&#233;<![CDATA[<b>]]></seg></tuv>
    <tuv xml:lang='de'><seg>d\u00e9j\u00e0</seg></tuv>
  </tu></body></tmx>
"""
XLF = f"""<?xml version="1.0" encoding="{{charset}}"?>
<xliff version='1.2' {XLIFF}><file source-language="en" target-language="de" original='x' datatype="x"><body>
 <trans-unit id="1"   approved='yes'><source>caf\u00e9 <x id="1" /></source>
 <target >d\u00e9j\u00e0 <x id="1" ></x></target></trans-unit></body></file></xliff>"""
DOCUMENTS = {
    "a.txt": "One.  Two caf\u00e9s.\n\n  three\n",
    "a.srt": "1\n00:01,0 --> 00:02,0\n<i>caf\u00e9</i>\n\n",
    "a.vtt": "WEBVTT\n\n00:01.0 --> 00:02.0\ncaf\u00e9 &amp; x\n",
    "a.csv": 'id;en;de\n1;"caf\u00e9 ""x""";"d\u00e9j\u00e0"\n2;two;zwei;"more"\n\n',
    "a.tsv": 'en\tde\ncaf\u00e9 "x"\td\u00e9j\u00e0\tmore\n\n',
    "a.jsonl": '{"en":"caf\u00e9" ,"de": "d\u00e9j\u00e0"}\n\n{"en": "x", "de": "y", "n": 1.50}\n',
    "a.html": "<meta charset='{charset}'><!-- x --><P CLASS=x>caf\u00e9 &eacute;&nbsp;<B >x</B >\n<img alt = 'x'></p>",
    "a.po": PO,
    "a.tmx": TMX,
    "a.xlf": XLF,
}
ENCODINGS = {
    "utf-8": ("utf-8", ""), "utf-8 with mark": ("utf-8", "\ufeff"), "utf-16-le": ("utf-16-le", "\ufeff"),
    "utf-16-be": ("utf-16-be", "\ufeff"), "utf-16-le without mark": ("utf-16-le", ""),
    "utf-16-be without mark": ("utf-16-be", ""), "utf-32-le": ("utf-32-le", "\ufeff"),
    "utf-32-be": ("utf-32-be", "\ufeff"), "cp1252": ("cp1252", ""),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*not UTF-8; taken for cp1252")
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_a_translation_that_changes_no_word_changes_no_byte(tmp_path: Path, encoding: str, end: str):
    codec, mark = ENCODINGS[encoding]
    for name, content in DOCUMENTS.items():
        text = content.replace("{charset}", codec.removesuffix("-le").removesuffix("-be")).replace("\n", end)
        for whole in (text, text.rstrip()):
            raw = (mark + whole).encode(codec)
            assert rewrite(tmp_path, name, raw, same)[0] == raw, name


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_subtitles_in_wide_encodings(tmp_path: Path, encoding: str, mark: str):
    out, report = rewrite(tmp_path, "a.srt", (mark + SRT).encode(encoding))
    assert out.decode(encoding) == mark + SRT.replace("Où est Zoë", "OÙ EST ZOË").replace("là là", "LÀ LÀ")
    assert report.translated == 2


@pytest.mark.parametrize(
    ("language", "codec", "text"),
    [
        ("es", "cp1252", "La niña está aquí\n"), ("fr", "cp1252", "L’été – déjà\n"), ("ru", "cp1251", "Добрый день\n"),
        ("pl", "cp1250", "Zażółć gęślą jaźń\n"), ("el", "cp1253", "Καλημέρα κόσμε\n"), ("ja", "cp932", "こんにちは\n"),
        ("ja", "euc_jp", "これは日本語の文です\n"), ("zh-CN", "gb18030", "你好，世界\n"),
        ("tr", "cp1254", "ığdır şişe\n"),
    ],
)  # fmt: skip
def test_older_encodings_are_found_by_the_language_told_and_kept(tmp_path: Path, language: str, codec: str, text: str):
    path, out = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_bytes(text.encode(codec))
    sent: list[str] = []
    with pytest.warns(UserWarning, match=f"not UTF-8; taken for {codec} and written in it.*--encoding"):
        translate_document(path, out, lambda texts: sent.extend(texts) or texts, language, "en")
    assert sent == [text.strip()]
    assert out.read_bytes() == path.read_bytes()
    with pytest.warns(UserWarning, match=codec):
        assert list(read_document_lines(path, language)) == [text.strip()]


def test_an_encoding_that_is_given_is_believed(tmp_path: Path):
    text = "Добрый день\r\n"
    out, _ = rewrite(tmp_path, "a.txt", text.encode("koi8-r"), encoding="KOI8-R")
    assert out.decode("koi8-r") == text.upper()
    for name, codec in (("utf-16", "utf-16-be"), ("UTF-16LE", "utf-16-le"), ("utf-8-sig", "utf-8")):
        raw = ("\ufeff" + text).encode(codec)
        assert rewrite(tmp_path, "a.txt", raw, encoding=name)[0] == ("\ufeff" + text.upper()).encode(codec)
    assert (
        rewrite(tmp_path, "a.txt", text.encode("utf-16-le"), encoding="utf-16")[0].decode("utf-16-le") == text.upper()
    )
    with pytest.raises(UsageError, match="'klingon', which is not a known encoding"):
        rewrite(tmp_path, "a.txt", b"x", encoding="klingon")
    with pytest.raises(UsageError, match="not a known encoding"):
        rewrite(tmp_path, "a.txt", b"x", encoding="base64")
    with pytest.warns(UserWarning, match=r"line 1: malformed UTF-8 or NUL at byte 1; replaced"):
        assert rewrite(tmp_path, "a.txt", b"a\xff\n", encoding="utf-8")[0].decode() == "A\ufffd\n"


@pytest.mark.parametrize("name", ["a.txt", "a.srt", "a.tsv", "a.csv", "a.jsonl", "a.vtt", "a.po"])
def test_a_translation_the_encoding_cannot_spell_is_in_utf_8_and_told(tmp_path: Path, name: str):
    content = DOCUMENTS[name].replace("{charset}", "ISO-8859-1")
    content = re.sub("d\u00e9j\u00e0", "", content)

    def to_polish(texts: list[str]) -> list[str]:
        return ["ł" * len(text) for text in texts]

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        out, report = rewrite(tmp_path, name, content.encode("latin-1"), to_polish)
    assert "has no ł; written in UTF-8 instead" in str(told[-1].message)
    assert report.translated >= 1
    assert "łłł" in out.decode("utf-8")
    if name == "a.po":
        assert polib.pofile(out.decode()).metadata["Content-Type"].endswith("charset=UTF-8")


@pytest.mark.parametrize("name", ["a.html", "a.tmx", "a.xlf"])
def test_markup_spells_any_character_in_its_own_encoding(tmp_path: Path, name: str):
    content = DOCUMENTS[name].replace("{charset}", "ISO-8859-1").replace("approved", "note")
    raw = content.encode("latin-1")
    out, _ = rewrite(tmp_path, name, raw, lambda texts: ["ł é" for _ in texts], overwrite=True)
    assert b"&#322;" in out and b"\xe9" in out and b"ISO-8859-1" in out
    if name != "a.html":
        assert "ł é" in "".join(etree.fromstring(out).itertext())


NOT_TEXT = {
    "png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "gzip": b"\x1f\x8b\x08\0\0\0\0\0\xff\x03",
    "zip": b"PK\x03\x04\x14\0\x06\0",
    "noise": bytes(range(256)) * 4, "zero": b"one\0two\n", "damaged": "één ëën twee ðå\n".encode() + b"\xff\n",
    "half of UTF-16": "\ufeffabc".encode("utf-16-le")[:-1], "marked": b"\xef\xbb\xbfa\xe9\n",
}  # fmt: skip


@pytest.mark.parametrize("name", ["a.txt", "a.srt", "a.csv", "a.jsonl", "a.html", "a.po", "a.tmx", "a.xlf"])
@pytest.mark.parametrize("kind", NOT_TEXT)
def test_what_is_no_text_or_damaged_is_refused(tmp_path: Path, name: str, kind: str):
    with pytest.raises(DataError, match=re.escape(name)):
        rewrite(tmp_path, name, NOT_TEXT[kind])
    assert not (tmp_path / f"out.{name}").exists()


def test_a_refusal_tells_where_and_what_to_do(tmp_path: Path):
    with pytest.raises(
        DataError, match=r"a\.txt, line 2: malformed UTF-8 or NUL at byte 20; mend the file, or give its enc"
    ):
        rewrite(tmp_path, "a.txt", "één ëën twee ð\n".encode() + b"\xff\n")
    with pytest.raises(DataError, match=r"a\.html says that it is in 'x-none', which is not a known encoding"):
        rewrite(tmp_path, "a.html", b"<meta charset=x-none>\xe9")
    with pytest.raises(DataError, match=r"a\.xlf, line 1: malformed UTF-8"):
        rewrite(tmp_path, "a.xlf", b"<a>\xe9</a>")


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn", "Co"]), max_size=10))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_utf_8_is_ever_taken_for_something_else(tmp_path: Path, text: str):
    """With a line of Latin letters, as in every real file, UTF-16 and UTF-32 are detected without a byte order mark
    too."""
    for codec in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
        (tmp_path / "a.txt").write_bytes(f"plain letters, as in any file\n{text}\n".encode(codec))
        assert find_encoding(tmp_path / "a.txt", "en") == codec
        assert "".join(read_encoded(tmp_path / "a.txt", codec)) == f"plain letters, as in any file\n{text}\n"


# Tables


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("en,de\r\none,\r\n", "en,de\r\none,ONE\r\n"),
        ('"en";"de"\r\n"one, two";\r\n', '"en";"de"\r\n"one, two";"ONE, TWO"\r\n'),
        ("id;en\n1;one\n2;\n", "id;en;de\n1;one;ONE\n2;\n"),
        ("en\tde\none, two\t\n", 'en\tde\none, two\t"ONE, TWO"\n'),
        ("one|x\ntwo|", "one|x\ntwo|TWO"),
        ("sep=;\r\nen;de\r\none;\r\n", "sep=;\r\nen;de\r\none;ONE\r\n"),
        ('en,de\r\n"one\r\ntwo",\r\n', 'en,de\r\n"one\r\ntwo","ONE\r\nTWO"\r\n'),
        ("en\rone\r", "en,de\rone,ONE\r"),
        ('en,de,note\n5" pipe,,"a ""b"""\n', 'en,de,note\n5" pipe,"5"" PIPE","a ""b"""\n'),
        ("one\n\ntwo", "one,ONE\n\ntwo,TWO"),
    ],
)
def test_csv_is_written_as_it_was(tmp_path: Path, content: str, expected: str):
    assert rewrite(tmp_path, "a.csv", content.encode())[0].decode() == expected


cells = st.text(st.sampled_from('ab ,;"\n\té|'), max_size=8)


@given(
    st.lists(st.lists(cells, min_size=3, max_size=3), max_size=5),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_csv_that_python_writes_is_read_and_filled(tmp_path: Path, rows, delimiter: str, end: str, quoting):
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerows([["id", "en", "de"], *rows])
    out = rewrite(tmp_path, "a.csv", file.getvalue().encode(), lambda texts: ["x" for _ in texts])[0].decode()
    read = list(csv.reader(io.StringIO(out, newline=""), delimiter=delimiter, strict=True))[1:]
    assert [[a, b] for a, b, _ in read] == [[a, b] for a, b, _ in rows]
    for (_, source, before), (_, _, after) in zip(rows, read, strict=True):
        assert (
            after == before if before.strip() or not source.strip() else any(map(str.isalnum, source)) == ("x" in after)
        )


# XLIFF and TMX


def xliff(body: str) -> str:
    file = '<file source-language="en" datatype="x" original="x">'
    return f'<xliff version="1.2" {XLIFF}>{file}<body>{body}</body></file></xliff>'


def unit(inside: str, attributes: str = "") -> str:
    return xliff(f'<trans-unit id="1"{attributes}>{inside}</trans-unit>')


CUT = (
    "<source>One. <g id='1'>Two</g> three.</source><seg-source><mrk mtype='seg' mid='1'>One.</mrk> "
    '<mrk mtype="seg" mid="2"><g id=\'1\'>Two</g> three.</mrk></seg-source>'
)
DONE = "<mrk mtype='seg' mid='1'>ONE.</mrk> <mrk mtype=\"seg\" mid=\"2\"><g id='1'>TWO</g> THREE.</mrk></target>"


@pytest.mark.parametrize(
    ("target", "expected", "counts"),
    [
        ("", f'<target state="translated">{DONE}', (2, 0)),
        ("<target/>", f'<target state="translated">{DONE}', (2, 0)),
        ("<target></target>", f'<target state="translated">{DONE}', (2, 0)),
        (
            "<target><mrk mid='1' mtype='seg' x='y'/> <mrk mtype='seg' mid='2'></mrk></target>",
            (
                "<target state=\"translated\"><mrk mid='1' mtype='seg' x='y'>ONE.</mrk> "
                "<mrk mtype='seg' mid='2'><g id='1'>TWO</g> THREE.</mrk></target>"
            ),
            (2, 0),
        ),
        (
            "<target state='new'><mrk mid='1' mtype='seg'/></target>",
            f'<target state="translated">{DONE}',
            (2, 0),
        ),
        (
            "<target><mrk mid='1' mtype='seg'>Eins.</mrk></target>",
            f'<target state="translated">{DONE.replace("ONE", "Eins")}',
            (1, 1),
        ),
        ("<target>Eins. Zwei.</target>", "<target>Eins. Zwei.</target>", (0, 2)),
    ],
)
def test_segmented_units(tmp_path: Path, target: str, expected: str, counts: tuple[int, int]):
    out, report = rewrite(tmp_path, "a.xlf", unit(CUT + target).encode())
    assert out.decode() == unit(CUT + expected).replace(' original="x"', ' original="x" target-language="de"')
    assert (report.translated, report.kept.total()) == counts
    root = etree.fromstring(out)
    assert [mark.get("mid") for mark in root.find(".//{*}target").iter("{*}mrk")] in (["1", "2"], [])


def test_segments_within_an_element(tmp_path: Path):
    marks = "<mrk mtype='seg' mid='0'>a</mrk> <mrk mtype='seg' mid='1'>b</mrk>"
    cut = f"<source>a b</source><seg-source><g id='1'>{marks}</g></seg-source>"
    out, _ = rewrite(tmp_path, "a.xlf", unit(cut).encode())
    target = "<g id='1'><mrk mtype='seg' mid='0'>A</mrk> <mrk mtype='seg' mid='1'>B</mrk></g></target>"
    assert f'<target state="translated">{target}' in out.decode()


def test_what_is_not_to_be_touched_is_counted(tmp_path: Path):
    body = (
        "<group translate='no'><trans-unit id='1'><source>a</source></trans-unit>"
        "<trans-unit id='2' translate='yes'><source>b</source></trans-unit></group>"
        "<trans-unit id='3' approved='yes'><source>c</source><target>C!</target></trans-unit>"
        "<trans-unit id='4'><source>d</source><target state='final'>D!</target></trans-unit>"
        "<trans-unit id='5'><source>e</source><target state='needs-review-translation'>E!</target></trans-unit>"
        "<trans-unit id='6'><source/></trans-unit>"
        "<trans-unit id='7'><source>f <mrk mtype='protected'>g</mrk></source></trans-unit>"
    )
    out, report = rewrite(tmp_path, "a.xlf", xliff(body).encode())
    targets = {each.get("id"): each.findtext("{*}target") for each in etree.fromstring(out).iter("{*}trans-unit")}
    assert {key: text for key, text in targets.items() if text} == {
        "2": "B",
        "3": "C!",
        "4": "D!",
        "5": "E!",
        "7": "F ",
    }
    assert str(report) == (
        "segments translated: 2, kept: 3 (2 approved or final, 1 already translated), "
        'skipped: 2 (1 marked translate="no", 1 without a source text)'
    )
    again, _ = rewrite(tmp_path, "a.xlf", xliff(body).encode(), overwrite=True)
    assert [each.text for each in etree.fromstring(again).iter("{*}target")] == ["B", "C!", "D!", "E", "F "]


def test_states_in_both_versions(tmp_path: Path):
    two = (
        '<xliff version="2.0" srcLang="en" xmlns="urn:oasis:names:tc:xliff:document:2.0"><file id="f">{}</file></xliff>'
    )
    done = "<segment state='final'><source>b</source><target>B!</target></segment>"
    segments = f"<unit id='u'><segment state='initial'><source>a</source></segment>{done}</unit>"
    for review, first, second in (
        (False, "translated", None),
        (True, "needs-review-translation", "regard:needs-review"),
    ):
        out = rewrite(tmp_path, "a.xlf", unit("<source>a</source>").encode(), review=review)[0]
        assert etree.fromstring(out).find(".//{*}target").get("state") == first
        root = etree.fromstring(rewrite(tmp_path, "b.xlf", two.format(segments).encode(), review=review)[0])
        assert [each.get("state") for each in root.iter("{*}segment")] == ["translated", "final"]
        assert root.find(".//{*}segment").get("subState") == second
        assert [each.text for each in root.iter("{*}target")] == ["A", "B!"]


def test_new_elements_are_set_out_like_their_neighbours(tmp_path: Path):
    source = '<source xml:space="preserve">a\r\nb</source>'
    body = f'\r\n  <trans-unit id="1">\r\n    {source}\r\n    <note>n</note>\r\n  </trans-unit>\r\n'
    out = rewrite(tmp_path, "a.xlf", xliff(body).encode())[0].decode()
    assert '</source>\r\n    <target xml:space="preserve" state="translated">A B</target>\r\n    <note>' in out
    unit = ' <tu>\n  <tuv xml:lang="en">\n   <seg>a</seg>\n  </tuv>\n </tu>\n'
    tmx = f'<tmx><body>\n{unit} <tu><tuv xml:lang="fr"><seg>x</seg></tuv></tu>\n</body></tmx>'
    out, report = rewrite(tmp_path, "a.tmx", tmx.encode())
    assert '\n  <tuv xml:lang="de">\n   <seg>A</seg>\n  </tuv>\n </tu>\n' in out.decode()
    assert str(report) == "segments translated: 1, skipped: 1 (1 without the language 'en')"


inline = st.recursive(
    st.sampled_from(
        ["one", " ", "Two. ", "%s", "&amp;", "&lt;b&gt;", "<x id='9'/>", "<bpt id='1'>{</bpt>", "♪", "\n", "é"]
    ),
    lambda inner: st.lists(inner, max_size=4).map(lambda parts: f"<g id='7'>{''.join(parts)}</g>"),
    max_leaves=8,
)


@given(
    st.lists(inline, min_size=1, max_size=4).map("".join),
    st.lists(st.sampled_from(["x", "y&", "<z."]), max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_translation_keeps_xml_sound_with_every_element(tmp_path: Path, source: str, words, links):
    raw = unit(f"<source>{source}</source>").encode()
    out, _ = rewrite(tmp_path, "a.xlf", raw, lambda texts: [Translated(" ".join(words), links) for _ in texts])
    root = etree.fromstring(out)
    target = root.find(".//{*}target")
    if target is not None:
        assert sorted(each.tag for each in target.iterdescendants()) == sorted(
            each.tag for each in root.find(".//{*}source").iterdescendants()
        )
        assert "".join(target.itertext()).count("♪") == source.count("♪")
    assert (
        raw.decode().split("<source>")[1].split("</source>")[0]
        == out.decode().split("<source>")[1].split("</source>")[0]
    )


# PO


def test_only_what_changes_in_a_catalogue_is_written(tmp_path: Path):
    content = """# a note
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=3; plural=n;\\n"

#. seen
#, c-format,  no-wrap
#| msgid "older"
msgid "one %s"
msgstr ""

msgid   "two"
msgstr "zwei"

#| msgid "was"
msgid "a file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""
#~ msgid "old"
#~ msgstr ""
"""
    expected = (
        content.replace('plural=n;\\n"\n', 'plural=n;\\n"\n"Language: de\\n"\n')
        .replace('"one %s"\nmsgstr ""', '"one %s"\nmsgstr "ONE %s"')
        .replace('msgstr[0] ""\nmsgstr[1] ""\n', 'msgstr[0] "A FILE"\nmsgstr[1] "%d FILES"\nmsgstr[2] "%d FILES"\n')
    )
    out, report = rewrite(tmp_path, "a.po", content.encode())
    assert out.decode() == expected
    assert str(report) == "segments translated: 4, kept: 1 (1 already translated), skipped: 1 (1 obsolete)"
    out, _ = rewrite(tmp_path, "a.po", content.encode(), review=True)
    fuzzy = {entry.msgid: "fuzzy" in entry.flags for entry in polib.pofile(out.decode()) if not entry.obsolete}
    assert fuzzy == {"one %s": True, "two": False, "a file": True}
    assert out.decode() == expected.replace("#, c-format,", "#, fuzzy, c-format,").replace(
        '#| msgid "was"', '#, fuzzy\n#| msgid "was"'
    )


def judge(texts: list[str]) -> list[Translated]:
    """Upper case; a text with "bad" is doubtful, one with "loop" repeats itself."""
    return [
        Translated(text.upper(), (), 0.25 if "bad" in text else 0.9, ["repeated"] if "loop" in text else [])
        for text in texts
    ]


def test_doubtful_translations_are_to_be_reviewed_in_catalogues(tmp_path: Path):
    content = """msgid ""
msgstr "Language: de\\n"

# old note
# estimated quality 0.01
#: a.c
msgid "a bad\\n"
"line"
msgstr ""

msgid "good"
msgstr ""

#, c-format
msgid "one"
msgid_plural "%d loop"
msgstr[0] ""
msgstr[1] ""

msgid "bad and kept"
msgstr "x"
"""
    out, _ = rewrite(tmp_path, "a.po", content.encode(), judge, review_below=0.5)
    entries = {entry.msgid: entry for entry in polib.pofile(out.decode())}
    assert [entry.fuzzy for entry in entries.values()] == [True, False, True, False]
    comments = [entry.tcomment for entry in entries.values()]
    assert comments == ["estimated quality 0.25\nold note", "", "estimated quality 0.90, repeated", ""]
    assert entries["a bad\nline"].msgstr == "A BAD\nLINE" and entries["one"].flags == ["fuzzy", "c-format"]
    assert b"estimated" not in rewrite(tmp_path, "b.po", b'msgid "bad"\nmsgstr ""\n', judge)[0]


def test_doubtful_translations_are_to_be_reviewed_in_xliff(tmp_path: Path):
    units = "<source>a <x id='1'/>bad one</source>{}", "<source>good</source>"
    for target in ("", "<target/>"):
        for text, state, notes in (
            (units[0].format(target), "needs-review-translation", 1),
            (units[1], "translated", 0),
        ):
            root = etree.fromstring(rewrite(tmp_path, "a.xlf", unit(text).encode(), judge, review_below=0.5)[0])
            assert root.find(".//{*}target").get("state") == state
            assert [each.text for each in root.iter("{*}note")] == ["estimated quality 0.25"] * notes
            assert [etree.QName(each).localname for each in root.find(".//{*}trans-unit")][:2] == ["source", "target"]
    two = (
        '<xliff version="2.0" srcLang="en" xmlns="urn:oasis:names:tc:xliff:document:2.0"><file id="f"><unit id="u">'
        "<segment><source>bad loop</source></segment><segment><source>good</source></segment></unit></file></xliff>"
    )
    root = etree.fromstring(rewrite(tmp_path, "b.xlf", two.encode(), judge, review_below=0.5)[0])
    states = [each.get("subState") for each in root.iter("{*}segment")]
    assert states == ["regard:estimated-quality-0.25-repeated", None]
    with pytest.raises(UsageError, match="only PO, XLIFF and"):
        rewrite(tmp_path, "a.txt", b"bad", judge, review_below=0.5)


texts = st.text(st.sampled_from('ab \n"\\é\t%s'), max_size=200)


@given(st.lists(st.tuples(texts, st.booleans(), st.booleans()), max_size=4), texts, st.sampled_from(["\n", "\r\n"]))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_catalogues_are_read_and_written_as_polib_does(tmp_path: Path, entries, translation: str, end: str):
    made = polib.POFile()
    made.metadata = {"Content-Type": "text/plain; charset=UTF-8", "Language": "de"}
    for number, (text, plural, obsolete) in enumerate(entries):
        entry = polib.POEntry(msgid=f"{number}{text}", comment="c", obsolete=obsolete)
        if plural and not obsolete:
            entry.msgid_plural, entry.msgstr_plural = text + "s", {0: "", 1: ""}
        made.append(entry)
    raw = str(made).replace("\n", end)
    catalogue = PoFile(raw)
    open_entries = [entry for entry in made if not entry.obsolete]
    assert [entry.fields["msgid"] for entry in catalogue.entries[1:]] == [entry.msgid for entry in open_entries]
    for entry in catalogue.entries[1:]:
        for name in [name for name in entry.fields if name.startswith("msgstr")]:
            catalogue.set(entry, name, translation)
    read = [entry for entry in polib.pofile(str(catalogue).replace(end, "\n") + "\n") if not entry.obsolete]
    assert [entry.msgid for entry in read] == [entry.msgid for entry in open_entries]
    for entry in read:
        assert set(entry.msgstr_plural.values() or [entry.msgstr]) == {translation}


# HTML


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


def test_icons_stay_and_what_is_around_nothing_in_xliff_too(tmp_path: Path):
    page = '<p><i class="icon"></i> the <b><i>red</i></b> house</p>'
    out = rewrite(tmp_path, "a.html", page.encode(), lambda texts: [""] * len(texts))[0].decode()
    assert out.count("<i") == 1 and 'class="icon"' in out and "<b>" not in out
    source = "<source>the <g id='1'>red</g></source>"
    out = rewrite(tmp_path, "a.xlf", unit(source).encode(), lambda texts: [""] * len(texts))[0].decode()
    assert "<target state=\"translated\"><g id='1'></g></target>" in out


def test_html_words_and_entities_are_as_in_a_browser(tmp_path: Path):
    out = rewrite(tmp_path, "a.html", b"<p>caf&eacute; &copy; x &lt;b&gt;</p>")[0].decode()
    assert html.unescape(BeautifulSoup(out, "html.parser").p.text) == "CAFÉ © X <b>"
    for one, other in pairwise(["&copy;", "©", "&#169;"]):
        pages = [rewrite(tmp_path, "a.html", f"<p>a {each} b".encode())[0] for each in (one, other)]
        assert pages[0] == pages[1]
