import csv
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.formats.languages import find_language, same_language
from regard.data.formats.lines import decode
from regard.data.formats.pairs import GoldPair, Pair, read_gold, read_pairs
from regard.errors import DataError

PAIRS = [
    Pair("Hello, world", "Hallo, Welt"),
    Pair('She said "no"', "Sie sagte „nein“"),
    Pair("Tea & cake", "Tee & Kuchen"),
]
TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="EN-us"><seg>Hello, <hi>world</hi></seg></tuv><tuv xml:lang="de"><seg>Hallo, Welt</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>Only English</seg></tuv></tu>
<tu><tuv lang="de_DE"><seg>Sie sagte „nein“</seg></tuv><tuv xml:lang="en"><seg>She said
   "<bpt i="1">&lt;b&gt;</bpt>no<ept i="1">&lt;/b&gt;</ept>"</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>thé</seg></tuv><tuv xml:lang="en"><seg>Tea &amp; cake</seg></tuv>
<tuv xml:lang="de"><seg>Tee &amp; Kuchen<ph>\\n</ph></seg></tuv></tu>
</body></tmx>"""
XLIFF_1 = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file source-language="en-GB" target-language="de" datatype="plaintext" original="x"><body>
<trans-unit id="1"><source>Hello, <g id="1">world</g></source><target>Hallo, <g id="1">Welt</g></target>
<alt-trans><source>no</source><target>nein</target></alt-trans></trans-unit>
<trans-unit id="2"><source>Not yet</source></trans-unit>
<trans-unit id="3"><source>Not done</source><target state="needs-translation">Not done</target></trans-unit>
<group><trans-unit id="4"><source>She said "no"<x id="1"/></source><target>Sie sagte „nein“<x id="1"/></target>
</trans-unit></group>
<trans-unit id="5"><source>Tea &amp; cake</source><target>Tee &amp; Kuchen</target></trans-unit>
</body></file></xliff>"""
XLIFF_2 = """<xliff version="2.0" srcLang="en" trgLang="de-DE" xmlns="urn:oasis:names:tc:xliff:document:2.0">
<file id="f">
<unit id="1"><segment><source>Hello, <pc id="1">world</pc></source>
<target>Hallo, <pc id="1">Welt</pc></target></segment>
<segment state="initial"><source>Not yet</source><target>Not yet</target></segment>
<segment><source>She said "no"</source><target>Sie sagte „nein“</target></segment></unit>
<unit id="2"><segment><source>Tea &amp; <ph id="2"/>cake</source><target>Tee &amp; Kuchen</target></segment></unit>
</file></xliff>"""
PO = r"""msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Language: de\n"

msgid "Hello, world"
msgstr "Hallo, Welt"

#, fuzzy
msgid "Fuzzy"
msgstr "Unscharf"

msgid "Open"
msgstr ""

msgid "She said \"no\""
msgstr "Sie sagte „nein“"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"

msgid ""
"Tea &\n"
"cake"
msgstr "Tee & Kuchen"

#~ msgid "Old"
#~ msgstr "Alt"
"""


def tsv(pairs: list[Pair]) -> str:
    return "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs)


def jsonl(pairs: list[Pair], make) -> str:
    return "".join(json.dumps(make(pair.source, pair.target)) + "\n" for pair in pairs)


CASES = {
    "plain.tsv": tsv(PAIRS),
    "crlf.tsv": "\ufeff" + tsv(PAIRS).replace("\n", "\r\n"),
    "codes.tsv": "id\tDE\ten-US\n" + "".join(f"{n}\t{p.target}\t{p.source}\n" for n, p in enumerate(PAIRS)),
    "roles.tsv": "source\ttarget\n" + tsv(PAIRS),
    "nested.jsonl": jsonl(PAIRS, lambda en, de: {"translation": {"en": en, "de": de, "fr": "."}}) + "\n",
    "flat.jsonl": jsonl(PAIRS, lambda en, de: {"en-GB": en, "de": de}),
    "roles.jsonl": jsonl(PAIRS, lambda en, de: {"source": en, "target": de, "id": 1}),
    "memory.tmx": TMX,
    "one.xlf": XLIFF_1,
    "two.xliff": XLIFF_2,
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("name", CASES)
def test_every_format_gives_the_same_pairs(tmp_path: Path, name: str, packed: bool):
    content = CASES[name].encode()
    path = tmp_path / (name + ".gz" * packed)
    path.write_bytes(gzip.compress(content) if packed else content)
    assert list(read_pairs(path, "en", "de")) == PAIRS


def test_csv_as_the_csv_module_writes_it(tmp_path: Path):
    path = tmp_path / "table.csv"
    rows = [("en", "de"), ('a, "b"', "c\nd"), ("", "é")]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    assert [(pair.source, pair.target) for pair in read_pairs(path, "en", "de")] == rows[1:]


def test_po_skips_what_is_unfinished_and_splits_plurals(tmp_path: Path):
    path = tmp_path / "de.po"
    path.write_text(PO, encoding="utf-8")
    plurals = [Pair("%d file", "%d Datei"), Pair("%d files", "%d Dateien")]
    assert list(read_pairs(path, "en", "de")) == [*PAIRS[:2], *plurals, PAIRS[2]]
    path.write_bytes(PO.replace("UTF-8", "ISO-8859-1").replace("„nein“", "«né»").encode("latin-1"))
    assert next(p for p in read_pairs(path, "en", "de") if "said" in p.source).target == "Sie sagte «né»"


@pytest.mark.parametrize("given_as", ["x", "x.en", "x.de", "x.de.gz"])
def test_moses_pair_by_prefix_or_either_file(tmp_path: Path, given_as: str):
    (tmp_path / "x.en").write_text("one\n\nthree\u2028still three\n", encoding="utf-8")
    (tmp_path / "x.de.gz").write_bytes(gzip.compress("eins\n\ndrei\x0bnoch drei\x85".encode()))
    expected = [Pair("one", "eins"), Pair("", ""), Pair("three\u2028still three", "drei\x0bnoch drei\x85")]
    assert list(read_pairs(tmp_path / given_as, "en", "de")) == expected
    assert [pair.source for pair in read_pairs(tmp_path / given_as, "de", "en")] == [pair.target for pair in expected]


def test_links_from_a_third_column(tmp_path: Path):
    path = tmp_path / "linked.tsv"
    path.write_text("a b\tx y\t0-1 1-0\na\tx\tCC-BY 2.0 (a-b)\na\tx\t\n")
    assert [pair.links for pair in read_pairs(path, "en", "de")] == [((0, 1), (1, 0)), None, None]
    path.write_text("de\talignment\ten\nx y\t1-0\ta b\n")
    assert list(read_pairs(path, "en", "de")) == [Pair("a b", "x y", ((1, 0),))]
    path.write_text("a b\tx y\t0-2\n")
    with pytest.raises(DataError, match=r"line 1: a link joins words 0 and 2 .* only 2 and 2 words"):
        list(read_pairs(path, "en", "de"))


def test_gold_alignments(tmp_path: Path):
    path = tmp_path / "gold.tsv"
    path.write_text("a b c\tx y\t1-1 2p2 3-2\n")
    sure, possible = {(0, 0), (2, 1)}, {(0, 0), (1, 1), (2, 1)}
    assert list(read_gold(path, first=1)) == [GoldPair("a b c", "x y", frozenset(sure), frozenset(possible))]
    with pytest.raises(DataError, match=r"first=0"):
        list(read_gold(path, first=0))
    path.write_text("a\tx\t1:1\n")
    with pytest.raises(DataError, match=r"'1p2' \(possible\), '1:1' came"):
        list(read_gold(path, first=1))


def test_reading_streams(tmp_path: Path):
    path = tmp_path / "late.tsv"
    path.write_text("a\tb\n" * 3 + "no tab\n")
    pairs = read_pairs(path, "en", "de")
    assert [next(pairs) for _ in range(3)] == [Pair("a", "b")] * 3


def test_language_codes():
    assert same_language("en", "EN_us")
    assert same_language("pt-BR", "pt_br")
    assert not same_language("pt-BR", "pt-PT")
    assert find_language(["pt-PT", "pt", "pt-BR"], "pt_br") == "pt-BR"
    assert find_language(["de", "en-GB"], "en") == "en-GB"
    assert find_language(["de"], "en") is None


def first_malformed(raw: bytes) -> int | None:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


@given(st.binary(max_size=60) | st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_decoding_agrees_with_the_standard_decoder(raw: bytes):
    text, offsets = decode(raw)
    assert text.encode().decode() == text
    if b"\0" not in raw:
        assert (offsets or [None])[0] == first_malformed(raw)
    assert len(offsets) == text.count("\ufffd") - raw.decode("utf-8", "ignore").count("\ufffd")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "German\tEnglish\nHallo\tHello\n"),
        ("a.tsv", "trg\tid\tsrc\nHallo\t7\tHello\n"),
        ("a.tsv", "tgt\tsrc\n\nHallo\tHello\n\n\n"),
        ("a.csv", "de;en\nHallo;Hello\n"),
        ("a.csv", '"de";"note";"en"\n"Hallo";"a, b";"Hello"\n'),
        ("a.csv", "de|en\nHallo|Hello\n"),
        ("a.csv", "sep=;\nde;en\n\nHallo;Hello\n"),
        ("a.jsonl", '{"german": "Hallo", "English": "Hello"}\n'),
        ("a.jsonl", '{"tgt": "Hallo", "src": "Hello"}\n'),
    ],
)
def test_columns_are_found_by_any_usual_name_and_delimiter(tmp_path: Path, name: str, content: str):
    (tmp_path / name).write_text(content, "utf-8")
    assert list(read_pairs(tmp_path / name, "en", "de")) == [Pair("Hello", "Hallo")]


def test_an_empty_line_of_a_table_is_no_pair_and_does_not_end_it(tmp_path: Path):
    (tmp_path / "a.tsv").write_text("Hello\tHallo\n\nTea\tTee\n\n", "utf-8")
    (tmp_path / "a.csv").write_text("Hello,Hallo\n\nTea,Tee\n\n", "utf-8")
    for name in ("a.tsv", "a.csv"):
        assert list(read_pairs(tmp_path / name, "en", "de")) == [Pair("Hello", "Hallo"), Pair("Tea", "Tee")]


def test_errors_in_a_table_name_the_line_of_the_file(tmp_path: Path):
    (tmp_path / "a.csv").write_text("sep=;\nen;de\nHello;Hallo\n\nalone\n", "utf-8")
    with pytest.raises(DataError, match=r"a\.csv, line 5: expected 2 columns or more, 1 came"):
        list(read_pairs(tmp_path / "a.csv", "en", "de"))


@pytest.mark.parametrize("row", ["1\tHello\tHallo", "Hello\t7\tHallo", "1276\tHello\t77\tHallo"])
def test_a_table_that_begins_with_numbers_is_not_read_as_sentences(tmp_path: Path, row: str):
    (tmp_path / "a.tsv").write_text(f"{row}\n", "utf-8")
    with pytest.raises(DataError, match=r"line 1: .* is a number: .*; name the columns in a first line"):
        list(read_pairs(tmp_path / "a.tsv", "en", "de"))
    columns = {3: "id\ten\tde", 4: "id\ten\tto\tde"}[row.count("\t") + 1]
    if row[0] == "1":
        (tmp_path / "a.tsv").write_text(f"{columns}\n{row}\n", "utf-8")
        assert list(read_pairs(tmp_path / "a.tsv", "en", "de")) == [Pair("Hello", "Hallo")]


def test_sentences_that_are_numbers_are_sentences(tmp_path: Path):
    (tmp_path / "a.tsv").write_text("1984\t1984\t0-0\n7\tsieben\n", "utf-8")
    pairs = list(read_pairs(tmp_path / "a.tsv", "en", "de"))
    assert pairs == [Pair("1984", "1984", ((0, 0),)), Pair("7", "sieben")]
