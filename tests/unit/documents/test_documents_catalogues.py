"""Translation catalogues, XLIFF, TMX and PO: only targets change, states are kept, doubtful entries are marked."""

from pathlib import Path

import polib
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree

from regard.documents.markup import Translated
from regard.documents.po import PoFile
from regard.errors import UsageError
from rewritten_documents import rewrite

XLIFF = 'xmlns="urn:oasis:names:tc:xliff:document:1.2"'


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
        "3 kept (2 approved or final, 1 already translated), 2 new, "
        '2 skipped (1 marked translate="no", 1 without a source text)'
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
    assert str(report) == "1 new, 1 skipped (1 without the language 'en')"


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


def test_icons_stay_and_what_is_around_nothing_in_xliff_too(tmp_path: Path):
    page = '<p><i class="icon"></i> the <b><i>red</i></b> house</p>'
    out = rewrite(tmp_path, "a.html", page.encode(), lambda texts: [""] * len(texts))[0].decode()
    assert out.count("<i") == 1 and 'class="icon"' in out and "<b>" not in out
    source = "<source>the <g id='1'>red</g></source>"
    out = rewrite(tmp_path, "a.xlf", unit(source).encode(), lambda texts: [""] * len(texts))[0].decode()
    assert "<target state=\"translated\"><g id='1'></g></target>" in out


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
    assert str(report) == "1 kept (1 already translated), 4 new, 1 skipped (1 obsolete)"
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
