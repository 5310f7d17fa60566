"""Reliability rows 14, 15 and 17: damaged, misaligned and hostile text files."""

import gzip
import io
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.formats.lines import Damage, read_lines
from regard.data.formats.pairs import read_pairs
from regard.documents.translate import translate_document
from regard.errors import DataError


def lines_of(raw: bytes) -> tuple[list[str], list[Damage]]:
    damages: list[Damage] = []
    return list(read_lines(io.BytesIO(raw), damages.append)), damages


@given(
    st.binary(max_size=80)
    | st.lists(st.sampled_from([b"\n", b"\r", b"\xff", b"\0", b"a", b"\xe2\x80\xa8", b"\x0b"])).map(b"".join)
)
def test_lines_out_equal_lines_in(raw: bytes):
    lines, damages = lines_of(raw)
    expected = raw.split(b"\n")[: None if raw and not raw.endswith(b"\n") else -1]
    assert len(lines) == len(expected)
    assert all("\n" not in line and line.encode().decode() == line for line in lines)
    assert all(raw[offset] == 0 or raw[offset] >= 0x80 for damage in damages for offset in damage.offsets)


def test_hard_cases_of_reading_lines():
    raw = b"\xef\xbb\xbfone\r\n\r\ntw\xffo\xc3\n\xed\xa0\x80\nN\0L\nlast\x85\xe2\x80\xa8\x0c."
    lines, damages = lines_of(raw)
    assert lines == ["one", "", "tw\ufffdo\ufffd", "\ufffd", "N\ufffdL", "last\ufffd\u2028\x0c."]
    assert [(damage.line, damage.offsets) for damage in damages] == [
        (3, (raw.index(b"\xff"), raw.index(b"\xc3"))),
        (4, (raw.index(b"\xed"),)),
        (5, (raw.index(b"\0"),)),
        (6, (raw.index(b"\x85"),)),
    ]
    assert str(damages[0]) == "input, line 3: malformed UTF-8 or NUL at byte 12, 14"


def test_a_line_of_10_megabytes_survives():
    long = "é" * 5_000_000
    assert lines_of(f"a\n{long}\nb".encode()) == (["a", long, "b"], [])
    lines, damages = lines_of(b"\xffa" * 200_000)
    assert len(lines) == 1
    assert damages[0].offsets == tuple(range(0, 400_000, 2))


def test_damage_is_told_by_default(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"ok\n\xff\n")
    with pytest.warns(UserWarning, match=r"a\.txt, line 2: malformed UTF-8 or NUL at byte 3; replaced"):
        assert list(read_lines(path)) == ["ok", "\ufffd"]


def test_malformed_corpora_are_refused_with_the_byte_or_replaced_when_told(tmp_path: Path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"a\tb\nc\t\xff\n")
    with pytest.raises(DataError, match=r"a\.tsv, line 2: malformed UTF-8 or NUL at byte 6; .*iconv"):
        list(read_pairs(path, "en", "de"))
    with pytest.warns(UserWarning, match="byte 6"):
        assert [pair.target for pair in read_pairs(path, "en", "de", errors="replace")] == ["b", "\ufffd"]
    surrogate = tmp_path / "a.jsonl"
    surrogate.write_text('{"en": "\\ud800", "de": "x"}\n')
    with pytest.raises(DataError, match="line 1: lone surrogate"):
        list(read_pairs(surrogate, "en", "de"))
    assert [pair.source for pair in read_pairs(surrogate, "en", "de", errors="replace")] == ["\ufffd"]


@pytest.mark.parametrize(("source", "target"), [(5, 3), (3, 5), (0, 2), (4, 0)])
def test_misaligned_files_are_refused_with_both_counts(tmp_path: Path, source: int, target: int):
    (tmp_path / "x.en").write_text("a\n" * source)
    (tmp_path / "x.de.gz").write_bytes(gzip.compress(b"b\n" * target))
    with pytest.raises(DataError, match=rf"x\.en has {source} lines, .*x\.de\.gz has {target};"):
        list(read_pairs(tmp_path / "x", "en", "de"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "a\tb\nonly one\n", r"a\.tsv, line 2: expected 2 columns or more, 1 came: \['only one'\]"),
        ("a.csv", 'a,b\n"c,d\n', r"a\.csv, line 2: not well-formed CSV"),
        ("a.jsonl", '{"en": "a", "de": "b"}\n{"en": \n', r"a\.jsonl, line 2: not JSON"),
        ("a.jsonl", "[" * 100_000, r"a\.jsonl, line 1: not JSON"),
        ("a.jsonl", "[1]\n", r"line 1: expected an object"),
        ("a.jsonl", '{"translation": {"en": "a", "fr": "b"}}\n', r"line 1: no language 'de'; .*: en, fr"),
        ("a.jsonl", '{"en": "a", "de": 3}\n', r"line 1: the text of 'de' should be a string, 3 came"),
        ("a.tsv", "", r"a\.tsv: no sentence pairs"),
        ("a.tsv", "en\tde\n", r"a\.tsv: no sentence pairs"),
        ("a.jsonl", "\n\n", r"a\.jsonl: no sentence pairs"),
        ("a.tmx", "<tmx><body/></tmx>", r"a\.tmx: no sentence pairs"),
        ("a.tmx", "<tmx><body><tu>", r"a\.tmx: not well-formed XML"),
        ("a.tmx", "", r"a\.tmx: not well-formed XML"),
        (
            "a.tmx",
            '<tmx><tu><tuv xml:lang="en"><seg>a</seg></tuv><tuv xml:lang="fr-CA"><seg>b</seg></tuv></tu></tmx>',
            r"no unit has both 'en' and 'de'; the languages are: en, fr-CA",
        ),
        (
            "a.xlf",
            '<xliff srcLang="en" trgLang="fr"><file><unit><segment/></unit></file></xliff>',
            r"no language 'de'; the languages are: en, fr",
        ),
        ("a.po", 'msgid ""\nmsgstr "Language: fr\\n"\n', r"no language 'de'; it translates into 'fr'"),
        ("a.po", "this is no catalogue\n", r"a\.po: not a well-formed PO file"),
    ],
)
def test_bad_corpora_name_file_line_and_what_came(tmp_path: Path, name: str, content: str, message: str):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        list(read_pairs(tmp_path / name, "en", "de"))


def test_missing_corpora_name_what_was_tried(tmp_path: Path):
    with pytest.raises(DataError, match=r"tried .*x\.en, .*x\.en\.gz, .*x\.de, .*x\.de\.gz"):
        read_pairs(tmp_path / "x", "en", "de")
    (tmp_path / "x.en").write_text("a\n")
    with pytest.raises(DataError, match=r"tried \S*x\.de, \S*x\.de\.gz$"):
        read_pairs(tmp_path / "x", "en", "de")
    with pytest.raises(DataError, match=r"none\.tsv: no such file"):
        read_pairs(tmp_path / "none.tsv", "en", "de")
    (tmp_path / "a.docx").write_text("a\n")
    with pytest.raises(DataError, match="suffix names no known format"):
        read_pairs(tmp_path / "a.docx", "en", "de")


@pytest.mark.parametrize("name", ["a.tsv.gz", "a.tmx.gz", "a.po.gz", "a.jsonl.gz"])
def test_damaged_gzip_files_are_named(tmp_path: Path, name: str):
    path = tmp_path / name
    whole = gzip.compress(bytes(range(97, 122)) * 4000 + b"\t\n" * 3000)
    for damaged in (whole[: len(whole) // 2], whole[:-8], b"plain text", whole[:12] + b"\xff" * 9 + whole[21:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.\w+\.gz"):
            list(read_pairs(path, "en", "de"))


LAUGHS = (
    '<!DOCTYPE {root} [<!ENTITY l0 "lol">'
    + "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    + "]>"
)
QUADRATIC = '<!DOCTYPE {root} [<!ENTITY a "' + "a" * 100_000 + '">]>'
OUTSIDE = '<!DOCTYPE {root} [<!ENTITY l11 SYSTEM "file://{secret}">]>'
PARAMETER = '<!DOCTYPE {root} [<!ENTITY % l11 SYSTEM "file://{secret}"> %l11;]>'
BODIES = {
    "tmx": '<tmx note="{e}"><body><tu><tuv xml:lang="en"><seg>{e}</seg></tuv>'
    '<tuv xml:lang="de"><seg>x</seg></tuv></tu></body></tmx>',
    "xlf": '<xliff srcLang="en" trgLang="de"><file><unit><segment><source>{e}</source>'
    "<target>x</target></segment></unit></file></xliff>",
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("suffix", BODIES)
@pytest.mark.parametrize(
    ("doctype", "entity"),
    [(LAUGHS, "&l11;"), (QUADRATIC, "&a;" * 20_000), (OUTSIDE, "&l11;"), (PARAMETER, "x")],
    ids=["billion-laughs", "quadratic", "external", "parameter"],
)
def test_entity_bombs_and_external_entities_are_refused(tmp_path: Path, suffix: str, doctype: str, entity: str):
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    path = tmp_path / f"bomb.{suffix}"
    path.write_text(doctype.format(root="tmx", secret=secret) + BODIES[suffix].format(e=entity))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=r"declares XML entities|not well-formed") as reading:
        list(read_pairs(path, "en", "de"))
    with pytest.raises(DataError, match=r"declares XML entities|not well-formed") as translating:
        translate_document(path, tmp_path / f"out.{suffix}", lambda texts: texts, "en", "de")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
    assert "SECRET" not in f"{reading.value} {translating.value}"
    assert not (tmp_path / f"out.{suffix}").exists()


def test_a_po_file_is_never_taken_for_the_name_of_another(tmp_path: Path):
    other = tmp_path / "other.po"
    other.write_text('msgid "secret"\nmsgstr "geheim"\n')
    path = tmp_path / "a.po"
    path.write_text(str(other))
    with pytest.raises(DataError):
        list(read_pairs(path, "en", "de"))


def test_large_memories_stream(tmp_path: Path):
    unit = '<tu><tuv xml:lang="en"><seg>{0} a</seg></tuv><tuv xml:lang="de"><seg>{0} b</seg></tuv></tu>\n'
    path = tmp_path / "large.tmx.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write("<tmx><body>")
        file.writelines(unit.format("word " * 100) for _ in range(20_000))  # 22 MB unpacked
        file.write("</body></tmx>")
    code = (
        "import resource, sys; from regard.data.formats.pairs import read_pairs\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "count = sum(1 for _ in read_pairs(sys.argv[1], 'en', 'de'))\n"
        "print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    count, kilobytes = map(int, result.stdout.split())
    assert count == 20_000
    assert kilobytes < 12_000
