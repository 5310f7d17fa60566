"""Office documents, written and read by python-docx, python-pptx and odfdo: words change, the structure does not."""

import io
import re
import zipfile
from pathlib import Path

import docx
import odfdo
import pptx
import pytest
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.documents import office
from regard.documents.markup import Translated
from regard.documents.translate import translate_document
from regard.errors import DataError, UsageError
from rewritten_documents import rewrite, shout

FIELD = (
    '<w:r {0}><w:fldChar w:fldCharType="begin"/></w:r>', "<w:r {0}><w:instrText>{1}</w:instrText></w:r>",
    '<w:r {0}><w:fldChar w:fldCharType="separate"/></w:r>', "<w:r {0}><w:t>{2}</w:t></w:r>",
    '<w:r {0}><w:fldChar w:fldCharType="end"/></w:r>',
)  # fmt: skip


def saved(document) -> bytes:
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def parts(raw: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        assert archive.testzip() is None
        return {info.filename: archive.read(info) for info in archive.infolist()}


def add_field(paragraph, code: str, text: str) -> None:
    for xml in FIELD:
        paragraph._p.append(parse_xml(xml.format(nsdecls("w"), code, text)))


def word_document():
    document = docx.Document()
    document.add_heading("The title", 1)
    paragraph = document.add_paragraph("Some ")
    paragraph.add_run("bold").bold = True
    paragraph.add_run(" and ")
    paragraph.add_run("ita").italic = True
    paragraph.add_run("lic").italic = True
    paragraph.add_run(" words, %s of them.")
    linked = document.add_paragraph("See ")
    linked._p.append(
        parse_xml(f'<w:hyperlink {nsdecls("w")} w:anchor="there"><w:r><w:t>this place</w:t></w:r></w:hyperlink>')
    )
    linked.add_run(" & more: a < b.")
    paged = document.add_paragraph("Page ")
    add_field(paged, " PAGE ", "one")
    coded = document.add_paragraph("Go ")
    add_field(coded, ' HYPERLINK "x" ', "home now")
    table = document.add_table(2, 2)
    table.cell(0, 0).text, table.cell(1, 1).text = "first cell", "last cell"
    section = document.sections[0]
    section.header.paragraphs[0].text = "A header"
    section.footer.paragraphs[0].text = "A footer"
    document.add_paragraph("with\ttab\nand line", style="List Bullet")
    document.add_paragraph("12 %")
    return document


def texts(document) -> list[str]:
    cells = [cell.text for table in document.tables for row in table.rows for cell in row.cells]
    edges = [document.sections[0].header.paragraphs[0].text, document.sections[0].footer.paragraphs[0].text]
    return [paragraph.text for paragraph in document.paragraphs] + cells + edges


def test_word_documents_keep_runs_links_fields_tables_headers_and_styles(tmp_path: Path):
    before = word_document()
    out, report = rewrite(tmp_path, "a.docx", saved(before))
    after = docx.Document(io.BytesIO(out))
    expected = [text.upper().replace("%S", "%s").replace("PAGE ONE", "PAGE one") for text in texts(before)]
    assert texts(after) == expected
    assert [each.style.name for each in after.paragraphs] == [each.style.name for each in before.paragraphs]
    runs = [(run.text, bool(run.bold), bool(run.italic)) for run in after.paragraphs[1].runs]
    assert runs == [
        ("SOME ", False, False), ("BOLD", True, False), (" AND ", False, False), ("ITALIC", False, True),
        (" WORDS, %s OF THEM.", False, False),
    ]  # fmt: skip
    (link,) = after.paragraphs[2].hyperlinks
    assert (link.text, link.fragment) == ("THIS PLACE", "there")
    assert [each.get(docx.oxml.ns.qn("w:fldCharType")) for each in after.paragraphs[4]._p.iter("{*}fldChar")] == [
        "begin", "separate", "end",
    ]  # fmt: skip
    assert report.translated == 12  # a tab and the end of a line separate texts; "12 %" has no words


def test_hyphens_that_are_elements_do_not_divide_words(tmp_path: Path):
    document = docx.Document()
    run = "<w:t>an e</w:t><w:noBreakHyphen/><w:t>mail ad</w:t><w:softHyphen/><w:t>dress</w:t>"
    document.add_paragraph("Give ")._p.append(parse_xml(f"<w:r {nsdecls('w')}>{run}</w:r>"))
    out, report = rewrite(tmp_path, "a.docx", saved(document))
    assert [each.text for each in docx.Document(io.BytesIO(out)).paragraphs] == ["GIVE AN E\u2011MAIL ADDRESS"]
    assert report.translated == 1


def test_a_translation_that_changes_no_word_changes_no_part(tmp_path: Path):
    for name, raw in (("a.docx", saved(word_document())), ("a.odt", saved(text_document())), ("a.pptx", slides())):
        out, report = rewrite(tmp_path, name, raw, lambda each: each)
        assert parts(out) == parts(raw) and report.translated
        assert [*parts(out)] == [*parts(raw)]


def test_text_boxes_and_notes_of_word_are_translated_where_they_are(tmp_path: Path):
    document = docx.Document()
    paragraph = document.add_paragraph("Outer one. ")
    inner = "<w:p><w:r><w:t>inner text</w:t></w:r></w:p>"
    box = f"<w:r {nsdecls('w')}><w:pict><w:txbxContent>{inner}</w:txbxContent></w:pict></w:r>"
    paragraph._p.append(parse_xml(box))
    paragraph._p.append(
        parse_xml(f'<w:del {nsdecls("w")} w:id="1" w:author="a"><w:r><w:delText>gone</w:delText></w:r></w:del>')
    )
    paragraph._p.append(
        parse_xml(f"<w:sdt {nsdecls('w')}><w:sdtPr/><w:sdtContent><w:r><w:t>control</w:t></w:r></w:sdtContent></w:sdt>")
    )
    out, _ = rewrite(tmp_path, "a.docx", saved(document))
    after = docx.Document(io.BytesIO(out)).paragraphs[0]._p
    assert [each.text for each in after.iter("{*}t")] == ["OUTER ONE. ", "INNER TEXT", "CONTROL"]
    assert [each.text for each in after.iter("{*}delText")] == ["gone"]
    assert [len(list(after.iter(f"{{*}}{name}"))) for name in ("txbxContent", "sdtContent", "p")] == [1, 1, 2]


def test_footnotes_and_their_marks_are_kept(tmp_path: Path):
    body = (
        f"<w:document {nsdecls('w')}><w:body><w:p><w:r><w:t>Some words</w:t></w:r><w:r><w:rPr><w:vertAlign w:val="
        '"superscript"/></w:rPr><w:footnoteReference w:id="2"/></w:r><w:r><w:t xml:space="preserve"> here</w:t></w:r>'
        "</w:p></w:body></w:document>"
    )
    note = f'<w:footnotes {nsdecls("w")}><w:footnote w:id="2"><w:p><w:r><w:t>a note</w:t></w:r></w:p></w:footnote>'
    raw = archive_of(**{"word/document.xml": body.encode(), "word/footnotes.xml": f"{note}</w:footnotes>".encode()})
    out = parts(rewrite(tmp_path, "a.docx", raw)[0])
    expected = body.replace("Some words", "SOME WORDS").replace(" here", " HERE")
    assert out["word/document.xml"].decode() == expected
    assert out["word/footnotes.xml"].decode() == note.replace("a note", "A NOTE") + "</w:footnotes>"


words = st.text(st.sampled_from("ab. %s&<é\t"), max_size=12)


@given(
    st.lists(st.tuples(words, st.booleans(), st.booleans()), min_size=1, max_size=6),
    st.lists(st.sampled_from(["x", "y&", "<z."]), max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_translation_leaves_a_word_document_that_opens(tmp_path: Path, runs, answer, links):
    document = docx.Document()
    paragraph = document.add_paragraph()
    for text, bold, tab in runs:
        run = paragraph.add_run(text)
        run.bold = bold
        if tab:
            run.add_tab()
    out, _ = rewrite(
        tmp_path, "a.docx", saved(document), lambda each: [Translated(" ".join(answer), links)] * len(each)
    )
    after = docx.Document(io.BytesIO(out)).paragraphs[0]
    assert len(list(after._p.iter("{*}tab"))) == len(list(paragraph._p.iter("{*}tab")))
    assert after.text.count("%s") == paragraph.text.count("%s")


# Presentations


def slides() -> bytes:
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "A good title"
    paragraph = slide.placeholders[1].text_frame.paragraphs[0]
    for text, bold in (("plain ", False), ("strong", True), (" words", False)):
        run = paragraph.add_run()
        run.text, run.font.bold = text, bold or None
    paragraph.runs[1].hyperlink.address = "https://example.org/"
    table = slide.shapes.add_table(1, 2, 0, 0, 9999, 9999).table
    table.cell(0, 0).text, table.cell(0, 1).text = "left cell", "right\vcell"
    slide.notes_slide.notes_text_frame.text = "what is said"
    return saved(deck)


def test_presentations_keep_shapes_runs_tables_and_notes(tmp_path: Path):
    out, report = rewrite(tmp_path, "a.pptx", slides())
    slide = pptx.Presentation(io.BytesIO(out)).slides[0]
    title, body, table = slide.shapes
    assert title.text_frame.text == "A GOOD TITLE"
    runs = body.text_frame.paragraphs[0].runs
    assert [(run.text, run.font.bold, run.hyperlink.address) for run in runs] == [
        ("PLAIN ", None, None), ("STRONG", True, "https://example.org/"), (" WORDS", None, None),
    ]  # fmt: skip
    assert [table.table.cell(0, n).text for n in (0, 1)] == ["LEFT CELL", "RIGHT\vCELL"]
    assert slide.notes_slide.notes_text_frame.text == "WHAT IS SAID"
    assert report.translated == 6


# OpenDocument


def text_document() -> odfdo.Document:
    document = odfdo.Document("text")
    body = document.body
    body.clear()
    body.append(odfdo.Header(1, "The title"))
    paragraph = odfdo.Paragraph("Some strong words and a link for you.")
    paragraph.set_span("bold", regex="strong")
    paragraph.set_link("https://example.org/", regex="a link")
    paragraph.insert_note(after="Some", note_id="n1", citation="1", body="what it means")
    body.append(paragraph)
    table = odfdo.Table("T", width=2, height=1)
    table.set_value((0, 0), "first cell")
    body.append(table)
    return document


def test_open_documents_keep_spans_links_notes_and_tables(tmp_path: Path):
    (tmp_path / "s.odt").write_bytes(saved(text_document()))
    before = odfdo.Document(tmp_path / "s.odt")
    out, _ = rewrite(tmp_path, "a.odt", saved(text_document()))
    after = odfdo.Document(io.BytesIO(out)).body
    assert after.get_header().text == "THE TITLE"
    old, new = before.body.get_paragraph(content="strong"), after.get_paragraph(content="STRONG")
    assert new.get_span().text == "STRONG"
    assert (new.get_link().text, new.get_link().url) == ("A LINK", "https://example.org/")
    assert new.get_note().note_body == "WHAT IT MEANS" and new.get_note().citation == "1"
    assert new.text_recursive == old.text_recursive.upper().replace("HTTPS://EXAMPLE.ORG", "https://example.org")
    assert after.get_table().get_value((0, 0)) == "FIRST CELL"
    with zipfile.ZipFile(io.BytesIO(out)) as archive:  # which file managers look at
        first = archive.infolist()[0]
        assert (first.filename, first.compress_type) == ("mimetype", zipfile.ZIP_STORED)


def test_slides_of_open_document_keep_their_frames(tmp_path: Path):
    deck = odfdo.Document("presentation")
    page = odfdo.DrawPage("page1", name="kept name")
    page.append(odfdo.Frame.text_frame("what the slide says", size=("7cm", "5cm"), position=("1cm", "1cm")))
    deck.body.clear()
    deck.body.append(page)
    out, report = rewrite(tmp_path, "a.odp", saved(deck))
    (after,) = odfdo.Document(io.BytesIO(out)).body.get_draw_pages()
    assert (after.name, after.get_paragraph().text, report.translated) == ("kept name", "WHAT THE SLIDE SAYS", 1)


# What is refused


def archive_of(**files: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def word_with(content: bytes) -> bytes:
    return archive_of(**{"word/document.xml": content})


BROKEN = {
    "empty": (b"", "not a readable .docx file"),
    "text": (b"Dear all", "not a readable .docx file"),
    "encrypted": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "protected by a password, or of an older version"),
    "cut": (saved(docx.Document())[:-300], "not a readable .docx file"),
    "other zip": (archive_of(a=b"b"), "has no word/document.xml"),
    "no XML": (word_with(b"\x89PNG"), "not in utf-8"),
    "broken XML": (word_with(b"<a><b></a>"), "word/document.xml: not well-formed XML"),
    "entities": (word_with(b'<!DOCTYPE a [<!ENTITY x SYSTEM "/etc/passwd">]><a>&x;</a>'), "declares XML entities"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_document_is_refused_in_one_line(tmp_path: Path, kind: str):
    raw, message = BROKEN[kind]
    with pytest.raises(DataError, match=re.escape(message)) as told:
        rewrite(tmp_path, "a.docx", raw)
    assert "\n" not in str(told.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.docx"]


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(office, "MAX_PART", 1 << 16)
    with pytest.raises(DataError, match="too large when unpacked"):
        rewrite(tmp_path, "a.docx", word_with(b" " * (1 << 20)))
    monkeypatch.setattr(office, "MAX_TOTAL", 1 << 17)
    with pytest.raises(DataError, match="too large when unpacked"):
        rewrite(tmp_path, "a.docx", archive_of(**{"word/document.xml": b"<a/>", "x.png": b" " * (1 << 20)}))


def test_a_protected_document_is_refused(tmp_path: Path):
    raw = bytearray(word_with(b"<a/>"))
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(DataError, match="protected by a password"):
        rewrite(tmp_path, "a.docx", bytes(raw))


def test_formats_that_cannot_be_translated_are_named(tmp_path: Path):
    for name, advice in (("a.pdf", "save it as .docx or .odt first"), ("a.doc", "save it as .docx first")):
        with pytest.raises(UsageError, match=rf"{name}: \.\w+ files cannot be translated; {advice}; known are .txt"):
            rewrite(tmp_path, name, b"x")
    with pytest.raises(UsageError, match=r"states its encoding itself"):
        translate_document(tmp_path / "a.docx", tmp_path / "b.docx", shout, "en", "de", encoding="utf-8")
