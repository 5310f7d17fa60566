"""Translated documents keep everything but their words: encoding, marks, line ends, quotes, markup."""

import csv
import io
import re
import warnings
from pathlib import Path

import polib
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree

from regard.data.formats.encodings import find_encoding, read_encoded
from regard.documents.translate import read_document_lines, translate_document
from regard.errors import DataError, UsageError
from rewritten_documents import rewrite

XLIFF = 'xmlns="urn:oasis:names:tc:xliff:document:1.2"'
SRT = "1\n00:00:01,000 --> 00:00:02,000\n<i>Où est Zoë?</i>\n\n2\n00:00:03,000 --> 00:00:04,000\n♪ là là ♪\n"


def same(texts: list[str]) -> list[str]:
    return texts


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
    assert "lacks ł; written in UTF-8 instead" in str(told[-1].message)
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
        DataError, match=r"a\.txt, line 2: malformed UTF-8 or NUL at byte 20; repair the file, or give its enc"
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
