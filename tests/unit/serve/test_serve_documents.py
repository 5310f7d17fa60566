"""Documents of clients: refused by a count before they are parsed, translated as jobs, and shared fairly."""

import io
import warnings
import zipfile
from pathlib import Path

import pytest

from hostile_documents import TEXTS, many_paragraphs
from regard.documents.limits import Limits
from regard.errors import DataError
from regard.serve.jobs import document_process
from regard.serve.jobs.document_process import KNOWN, answer
from regard.serve.routes import libretranslate

LIMITS = Limits(size=64_000, characters=2_000)
TASK = {"source": "en", "target": "es", "replace": False, "limits": LIMITS}


def archive(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("word/document.xml", content)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"a" * 64_001, "64,000 bytes"),
        ("a.txt", b"\n" * 4_001, "4,000 lines"),
        ("a.html", b"<p>" * 4_001, "4,000 tags"),
        ("a.docx", many_paragraphs(700), "4,000 tags"),
        ("a.docx", archive(b" " * 64_001), "64,000 bytes"),
        ("a.odt", archive(b"<a/>" * 4_001), "4,000 tags"),
    ],
)
def test_what_is_too_large_is_refused_by_its_count(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}: has more than {words}"):
        LIMITS.check_file(tmp_path / name)


@pytest.mark.parametrize("content", [b"", b"PK", archive(b"<a/>")[:60], archive(b"<a/>")])
def test_what_is_damaged_is_left_to_its_reader(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.docx").write_bytes(content)
    LIMITS.check_file(tmp_path / "a.docx")


@pytest.mark.parametrize(
    ("text", "words"),
    [("We eat bread in the house. " * 90, "2,000 characters"), ("a\n" * 101, "100 segments")],
    ids=["long", "many"],
)
def test_too_much_to_translate_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    said = answer({**TASK, "path": str(tmp_path / "a.txt"), "name": "mine.txt"})
    assert said["error"].startswith(f"mine.txt: has more than {words}")


def test_a_document_is_written_when_nothing_is_missing(tmp_path: Path) -> None:
    path, missing = tmp_path / "document.html", tmp_path / "missing.jsonl"
    path.write_text("<p>we <b>eat</b></p><p>we eat</p><p>they sleep</p>")
    task = {**TASK, "path": str(path), "name": "a.html"}
    assert answer(task)["missing"] == 3
    assert missing.read_text() == '["we eat", 2, true]\n["they sleep", 1, false]\n'
    (tmp_path / KNOWN).write_text('["we eat", "comemos", [[1, 0]]]\n["they sleep", "duermen", []]\n')
    said = answer(task)
    assert said == {"missing": 0, "kept": 0, "new": 3, "skipped": 0} and missing.read_text() == ""
    assert "<b>comemos</b>" in (tmp_path / "translated.html").read_text()


@pytest.mark.parametrize("name", TEXTS)
def test_every_text_of_a_stranger_is_answered(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"document.{name.partition('.')[2]}"
    path.write_text(TEXTS[name](1000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = answer({**TASK, "path": str(path), "name": name, "limits": Limits(1 << 20, 1 << 20)})
    assert "missing" in said or name in said["error"], said
    assert str(tmp_path) not in str(said)


@pytest.mark.parametrize(
    ("error", "words"), [(MemoryError, "needs more memory"), (RecursionError, "nested too deeply")]
)
def test_what_the_process_cannot_hold_is_refused(tmp_path: Path, monkeypatch, error: type, words: str) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    (tmp_path / "a.txt").write_text("we eat")
    monkeypatch.setattr(document_process, "translate_document", fail)
    assert words in answer({**TASK, "path": str(tmp_path / "a.txt"), "name": "a.txt"})["error"]


# Jobs


def send(served, content: bytes, name: str = "a.txt", headers=None, **fields):
    form = {"source": "en", "target": "es", **fields}
    return served.client.post("/translate_file", data=form, files={"file": (name, content)}, headers=headers)


def test_a_file_that_takes_long_has_an_address_at_once(served, monkeypatch) -> None:
    expected = served.client.get(send(served, b"we eat\n" * 3).json()["translatedFileUrl"]).content
    monkeypatch.setattr(libretranslate, "PATIENCE", 0.0)
    told = send(served, b"we eat\n" * 3).json()
    assert set(told) == {"translatedFileUrl", "job", "sentences", "of"}
    assert served.client.get(told["translatedFileUrl"]).content == expected  # waits until it is done
    state = served.client.get(told["job"]).json()
    assert state == {"kept": 0, "new": 3, "skipped": 0}
    assert served.client.delete(told["job"]).json() == {"success": True}
    assert served.client.get(told["job"]).status_code == served.client.get(told["translatedFileUrl"]).status_code == 404


def test_an_error_of_a_job_is_told_to_whoever_asks(served, monkeypatch) -> None:
    monkeypatch.setattr(libretranslate, "PATIENCE", 0.0)
    told = send(served, b"PK", "a.docx").json()
    answer = served.client.get(told["translatedFileUrl"])
    assert answer.status_code == 400 and "a.docx: not a readable .docx file" in answer.json()["error"]
    assert served.client.get(told["job"]).json() == answer.json()


def test_documents_may_be_larger_than_other_requests(locked) -> None:
    content = b"we eat\n" + b"\n" * 30_000
    key = {"authorization": "Bearer sesame"}
    assert send(locked, content, headers=key).status_code == 200
    assert send(locked, content, api_key="sesame").status_code == 413  # anybody may send a form
    assert send(locked, b"we eat", api_key="sesame").status_code == 200


def test_too_many_documents_are_refused_and_old_ones_removed(start_server, translator_folder: Path) -> None:
    served = start_server([translator_folder], uploads=40_000)
    first, second = (send(served, b"we eat\n" + b"\n" * 9_000).json()["translatedFileUrl"] for _ in range(2))
    third = send(served, b"we eat\n" + b"\n" * 9_000)
    assert [served.client.get(address).status_code for address in (first, second)] == [404, 200]
    assert third.status_code == 200
    assert send(served, b"\n" * 30_000).status_code == 507


def test_a_large_glossary_is_refused_before_it_is_read(served) -> None:
    answer = send(served, b"we eat", glossary="".join(f"a{n}\tb\n" for n in range(60_000)))
    assert answer.status_code == 400 and "60000 terms; the limit is 5000" in answer.json()["error"]
