"""The LibreTranslate API, with its real clients and with every encoding of the fields."""

import json
from pathlib import Path

import polib
import pytest
from deep_translator import LibreTranslator
from libretranslatepy import LibreTranslateAPI

import regard
from regard.data.formats.pairs import Pair, read_pairs
from regard.errors import DataError

SENTENCE = "we are eating bread"
ASKED = {"q": SENTENCE, "source": "en", "target": "es"}


@pytest.fixture(scope="module")
def spanish(translator_folder: Path) -> str:
    return regard.load(translator_folder).translate(SENTENCE, to="es").text


def test_libretranslatepy(served, spanish):
    client = LibreTranslateAPI(served.url)
    assert client.translate(SENTENCE, "en", "es") == spanish
    languages = {each["code"]: each for each in client.languages()}
    assert languages["en"]["name"] == "English" and set(languages["en"]["targets"]) == {"es", "pt"}
    found = client.detect("¿Dónde está la biblioteca?")[0]
    assert found["language"] == "es" and 90 < found["confidence"] <= 100
    assert client.translate(SENTENCE, "auto", "es") == spanish
    assert client.translate("¿Dónde está la biblioteca?", "auto", "es") == "¿Dónde está la biblioteca?"


def test_deep_translator(served, spanish):
    client = LibreTranslator(source="en", target="es", api_key="any", custom_url=f"{served.url}/")
    assert client.translate(SENTENCE) == spanish
    assert client.translate_batch([SENTENCE, SENTENCE]) == [spanish, spanish]


@pytest.mark.parametrize(
    "sent",
    [
        {"json": ASKED},
        {"data": ASKED},
        {"params": ASKED},
        {"data": ASKED, "files": {"nothing": b""}},
        {"params": {"source": "xx"} | ASKED, "json": ASKED},
        {"content": json.dumps(ASKED), "headers": {"content-type": "text/plain"}},
    ],
)
def test_fields_come_as_clients_send_them(served, spanish, sent):
    answer = served.client.post("/translate", **sent)
    assert (answer.status_code, answer.json()) == (200, {"translatedText": spanish})


def test_a_list_gives_lists(served, spanish):
    asked = {**ASKED, "q": [SENTENCE, "", SENTENCE], "source": "auto", "alternatives": 2}
    answer = served.client.post("/translate", json=asked).json()
    assert answer["translatedText"] == [spanish, "", spanish]
    assert [each["language"] for each in answer["detectedLanguage"]] == ["en"] * 3
    first = answer["alternatives"][0]
    assert 1 <= len(first) <= 2 and spanish not in first and answer["alternatives"][1] == []


def test_only_what_was_asked_for_is_answered(served):
    asked = {**ASKED, "source": "auto"}
    assert set(served.client.post("/translate", json=asked).json()) == {"translatedText", "detectedLanguage"}
    asked = {**ASKED, "alternatives": 1}
    assert set(served.client.post("/translate", json=asked).json()) == {"translatedText", "alternatives"}


def test_quality_is_told_if_it_is_asked_for(served, spanish, translator_folder):
    known = regard.load(translator_folder).translate(SENTENCE, to="es")
    for sent in ({"json": {**ASKED, "quality": True}}, {"data": {**ASKED, "quality": "true"}}):
        answer = served.client.post("/translate", **sent).json()
        assert set(answer) == {"translatedText", "quality", "doubts", "flags"}
        assert answer["quality"] == pytest.approx(known.quality, abs=1e-3)
        assert answer["doubts"] == pytest.approx(known.doubts, abs=1e-3) and len(answer["doubts"]) == len(
            spanish.split()
        )
    several = served.client.post("/translate", json={**ASKED, "q": [SENTENCE, ""], "quality": True}).json()
    assert several["quality"] == [answer["quality"], 1.0] and several["doubts"][1] == []
    assert "quality" not in served.client.post("/translate", json={**ASKED, "quality": False}).json()


@pytest.mark.parametrize("wrong", [{"quality": "perhaps"}, {"quality": 3}, {"quality": True, "format": "html"}])
def test_a_wrong_wish_for_quality_is_refused(served, wrong):
    answer = served.client.post("/translate", json={**ASKED, **wrong})
    assert answer.status_code == 400 and "quality" in answer.json()["error"]


def test_line_breaks_and_sentences_are_kept(served, translator_folder):
    translator = regard.load(translator_folder)
    one, other = (translator.translate(each, to="es").text for each in ("We eat bread.", "She reads a book."))
    text = "We eat bread. She reads a book.\r\n\n  We eat bread.\n"
    answer = served.client.post("/translate", json={**ASKED, "q": text}).json()
    assert answer["translatedText"] == f"{one} {other}\r\n\n  {one}\n"


def test_html_keeps_its_tags(served):
    asked = {**ASKED, "format": "html", "q": "<p class='x'>we are <b>eating</b> bread</p><script>we</script>"}
    text = served.client.post("/translate", json=asked).json()["translatedText"]
    assert text.startswith("<p class='x'>") and text.endswith("</p><script>we</script>")
    assert text.count("<b>") == text.count("</b>") == 1


def test_the_target_language_itself_comes_back_as_it_is(served):
    asked = {"q": "hello", "source": "en", "target": "en-US"}
    assert served.client.post("/translate", json=asked).json() == {"translatedText": "hello"}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"source": "en", "target": "es"}, "missing q"),
        ({**ASKED, "q": ""}, "missing q"),
        ({"q": "a", "target": "es"}, "missing source"),
        ({"q": "a", "source": "en"}, "missing target"),
        ({**ASKED, "source": "zz"}, "zz is not supported"),
        ({**ASKED, "target": "zz"}, "zz is not supported"),
        ({**ASKED, "source": "es", "target": "pt"}, "es is not supported"),
        ({**ASKED, "q": "x" * 10_001}, "10001 characters"),
        ({**ASKED, "q": ["x"] * 65}, "65 texts"),
        ({**ASKED, "q": {"a": 1}}, "q must be"),
        ({**ASKED, "q": ["x", 5]}, "q must be"),
        ({**ASKED, "alternatives": 11}, "alternatives"),
        ({**ASKED, "alternatives": "many"}, "alternatives"),
        ({**ASKED, "format": "pdf"}, "format"),
        ({**ASKED, "target": ["es"]}, "target must be"),
    ],
)
def test_bad_requests_are_told_in_words(served, asked, words):
    answer = served.client.post("/translate", json=asked)
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"] and words in answer.json()["error"]


@pytest.mark.parametrize("body", [b"\xff\xfe{", b"{", b"[1]", b"[" * 100_000, b'{"q": "\xe9"}', b"null"])
def test_a_body_that_is_no_json_object(served, body):
    answer = served.client.post("/translate", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and "body" in answer.json()["error"]


def test_lone_surrogates_and_nul_are_survived(served):
    body = b'{"q": "we \\ud800 eat\\u0000 bread", "source": "en", "target": "es"}'
    assert served.client.post("/translate", content=body).status_code == 200


def test_detect(served):
    answer = served.client.post("/detect", json={"q": "The library is closed on Sundays."}).json()
    assert answer[0]["language"] == "en" and 0 <= answer[0]["confidence"] <= 100
    assert served.client.post("/detect", json={}).status_code == 400
    assert {each["language"] for each in served.client.post("/detect", json={"q": "la casa"}).json()} >= {"es", "it"}


def test_detect_takes_lists(served):
    answer = served.client.post(
        "/detect", json={"q": ["我们在河边吃面包。", "Wir essen Brot am Fluss.", "hello"]}
    ).json()
    assert [each[0]["language"] for each in answer] == ["zh", "de", "en"]
    assert served.client.post("/detect", json={"q": ["x"] * 65}).status_code == 400


FOREIGN = {
    "zh": "我们在河边的小房子里吃面包。",
    "de": "Wir essen Brot in dem kleinen Haus.",
    "ru": "Мы едим хлеб у реки.",
}


@pytest.mark.parametrize("code", FOREIGN)
def test_what_no_model_reads_is_refused_in_words(served, code):
    answer = served.client.post("/translate", json={**ASKED, "q": FOREIGN[code], "source": "auto"})
    assert answer.status_code == 400 and list(answer.json()) == ["error"]
    assert f"({code})" in answer.json()["error"] and "English (en)" in answer.json()["error"]


@pytest.mark.parametrize("text", ["Hola", "Hola, ¿cómo estás?", "Estamos comiendo pan en la casa pequeña."])
def test_what_is_in_the_target_already_comes_back_as_it_is(served, text):
    answer = served.client.post("/translate", json={**ASKED, "q": text, "source": "auto"}).json()
    assert answer["translatedText"] == text and answer["detectedLanguage"]["language"] == "es"


def test_the_tags_of_html_are_in_no_language(served):
    page = "<div class='container'><p>¿Dónde está la casa?</p><script>var name = this.value;</script></div>"
    answer = served.client.post("/translate", json={**ASKED, "q": page, "source": "auto", "format": "html"}).json()
    assert answer["translatedText"] == page and answer["detectedLanguage"]["language"] == "es"


def test_keys(locked):
    asked = {"q": "we eat", "source": "en", "target": "es"}
    for key in ("", "wrong", "sesam", "sesame "):
        answer = locked.client.post("/translate", json={**asked, "api_key": key})
        assert (answer.status_code, answer.json()) == (403, {"error": "Invalid API key"})
    for key in ("sesame", "опен"):
        assert locked.client.post("/translate", json={**asked, "api_key": key}).status_code == 200
    assert LibreTranslateAPI(locked.url, api_key="sesame").translate("we eat", "en", "es")
    assert locked.client.get("/frontend/settings").json()["keyRequired"] is True


# Files


def translated_file(served, name: str, content: bytes) -> bytes:
    answer = served.client.post(
        "/translate_file", data={"source": "en", "target": "es"}, files={"file": (name, content)}
    )
    assert answer.status_code == 200, answer.text
    return served.client.get(answer.json()["translatedFileUrl"]).content


def test_text_file(served, spanish):
    assert (
        translated_file(served, "a.txt", f"{SENTENCE}\n\n{SENTENCE}\n".encode()).decode() == f"{spanish}\n\n{spanish}\n"
    )


def test_po_file(served, spanish, tmp_path):
    content = f'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "{SENTENCE}"\nmsgstr ""\n'
    (tmp_path / "out.po").write_bytes(translated_file(served, "../../evil.po", content.encode()))
    assert [each.msgstr for each in polib.pofile(str(tmp_path / "out.po"))] == [spanish]


def test_translations_of_a_file_are_kept_unless_they_are_to_be_replaced(served, spanish):
    content = f'msgid "the dog"\nmsgstr "mi perro"\n\nmsgid "{SENTENCE}"\nmsgstr ""\n'
    for replace, kept, new in ((None, 1, 1), ("true", 0, 2)):
        fields = {"source": "en", "target": "es"} | ({"replace": replace} if replace else {})
        told = served.client.post("/translate_file", data=fields, files={"file": ("a.po", content.encode())}).json()
        assert (told["kept"], told["new"]) == (kept, new)
        back = served.client.get(told["translatedFileUrl"]).text
        assert ("mi perro" in back) == bool(kept) and spanish in back
    refused = served.client.post(
        "/translate_file",
        data={"source": "en", "target": "es", "replace": "perhaps"},
        files={"file": ("a.po", content.encode())},
    )
    assert refused.status_code == 400 and "replace" in refused.json()["error"]


def test_xliff_file(served, spanish):
    content = (
        '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en" '
        'target-language="es" datatype="plaintext" original="x"><body><trans-unit id="1">'
        f"<source>{SENTENCE}</source></trans-unit></body></file></xliff>"
    )
    assert f">{spanish}</target>" in translated_file(served, "a.xlf", content.encode()).decode()


def test_srt_file(served, spanish):
    content = f"1\n00:00:01,000 --> 00:00:02,000\n{SENTENCE}\n\n"
    assert translated_file(served, "film.srt", content.encode()).decode() == content.replace(SENTENCE, spanish)


def test_the_language_of_a_file_is_detected(served, spanish):
    def sent(name: str, text: str):
        form = {"source": "auto", "target": "es"}
        return served.client.post("/translate_file", data=form, files={"file": (name, text.encode())})

    answer = sent("a.txt", f"{SENTENCE}\n").json()
    assert answer["detectedLanguage"]["language"] == "en"
    assert served.client.get(answer["translatedFileUrl"]).text == f"{spanish}\n"
    page = "<html lang='es'><p class='the'>Estamos comiendo pan en la casa.</p></html>"
    answer = sent("a.html", page).json()
    assert answer["detectedLanguage"]["language"] == "es"
    assert served.client.get(answer["translatedFileUrl"]).text == page
    refused = sent("a.srt", "1\n00:00:01,000 --> 00:00:02,000\nWir essen das Brot.\n")
    assert refused.status_code == 400 and "German (de)" in refused.json()["error"]
    assert sent("a.txt", "12\n").status_code == 200


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><xliff version="1.2">&b;</xliff>'


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [("a.exe", b"MZ", "not supported"), ("a", b"x", "not supported"), ("a.xlf", BOMB, "")],
)
def test_bad_files_are_refused_without_a_path(served, name, content, words):
    answer = served.client.post(
        "/translate_file", data={"source": "en", "target": "es"}, files={"file": (name, content)}
    )
    assert answer.status_code == 400 and words in answer.json()["error"]
    assert "/tmp" not in answer.text and "Traceback" not in answer.text


def test_a_file_must_be_a_file(served):
    answer = served.client.post("/translate_file", data={"source": "en", "target": "es", "file": "x"})
    assert answer.status_code == 400 and "missing file" in answer.json()["error"]


@pytest.mark.parametrize("token", ["nothing", "..%2f..%2fetc%2fpasswd", "%2e%2e"])
def test_only_translated_files_are_found(served, token):
    assert served.client.get(f"/download_file/{token}").status_code == 404


def test_suggestions_are_kept_for_training(served):
    row = {"q": "hello", "s": "hola", "source": "en", "target": "es"}
    assert served.client.post("/suggest", data=row).json() == {"success": True}
    kept = served.app.state.jobs.runs / "suggestions.jsonl"
    assert json.loads(kept.read_text("utf-8").splitlines()[-1]) == row
    served.client.post("/suggest", json=row | {"s": "olá", "target": "pt"})
    assert list(read_pairs(kept, "en", "es"))[-1] == Pair("hello", "hola")
    assert list(read_pairs(kept, "en-GB", "pt"))[-1] == Pair("hello", "olá")
    with pytest.raises(DataError, match="no sentence pairs"):
        list(read_pairs(kept, "es", "en"))


def test_words_that_the_model_does_not_know_are_named(served):
    text = "we are eating Ωμέγα.\n\n  Привет, we eat"
    answer = served.client.post("/translate", json={**ASKED, "q": text}).json()
    words = [each["word"] for each in answer["unknown"]]
    assert {"Ωμέγα", "Привет"} <= set(words)
    assert all(text[each["start"] : each["end"]] == each["word"] for each in answer["unknown"])
    several = served.client.post("/translate", json={**ASKED, "q": ["we are eating", text]}).json()
    assert several["unknown"] == [[], answer["unknown"]]
    page = {**ASKED, "q": "<p>we <b>Ωμέγα</b></p>", "format": "html"}
    (word,) = served.client.post("/translate", json=page).json()["unknown"]
    assert word == {"word": "Ωμέγα", "start": 9, "end": 14}


def test_how_many_alternatives_are_asked_for_never_changes_the_answer(served, spanish):
    for count in (0, 1, 3, 6):
        answer = served.client.post("/translate", json={**ASKED, "alternatives": count}).json()
        assert answer["translatedText"] == spanish
    for more in ({}, {"n_best": 1}, {"n_best": 4, "search": True}, {"n_best": 7}):
        answer = served.client.post("/api/translate", json={"text": SENTENCE, "to": "es", **more}).json()
        scores = [each["score"] for each in answer["translations"]]
        assert answer["translations"][0]["text"] == spanish and scores == sorted(scores, reverse=True)


def test_a_glossary_comes_as_lines_or_as_an_object_also_with_documents(served):
    for terms in ("bread\ttortilla\n", {"bread": "tortilla"}):
        answer = served.client.post("/translate", json={**ASKED, "q": [SENTENCE, "they sleep"], "glossary": terms})
        first, second = answer.json()["translatedText"]
        assert "tortilla" in first.lower() and "tortilla" not in second.lower()
    page = {**ASKED, "q": f"<p>{SENTENCE}</p>", "format": "html", "glossary": "bread\ttortilla"}
    assert "tortilla" in served.client.post("/translate", json=page).json()["translatedText"].lower()
    form = {"source": "en", "target": "es", "glossary": "bread\ttortilla"}
    answer = served.client.post("/translate_file", data=form, files={"file": ("bread.txt", SENTENCE.encode())})
    assert "tortilla" in served.client.get(answer.json()["translatedFileUrl"]).text.lower()
    told = served.client.post("/api/translate", json={"text": SENTENCE, "to": "es", "glossary": "bread\ttortilla"})
    (best,) = told.json()["translations"]
    assert [best["words"][place].strip(".,").lower() for place in best["terms"]] == ["tortilla"]
    for wrong, message in (
        ("bread", "glossary, line 1: no TAB"),
        ("bread\tuno\nbread\tdos", "glossary, line 2: 'bread' is to become 'dos'"),
        (7, "glossary must be lines"),
        ("bread\t東京", "the model cannot write '東京'"),
    ):
        answer = served.client.post("/translate", json={**ASKED, "glossary": wrong})
        assert answer.status_code == 400 and message in answer.json()["error"]


def test_matches_of_a_translation_memory(start_server, translator_folder: Path, tmp_path: Path):
    memory = tmp_path / "memory.tsv"
    memory.write_text(f"{SENTENCE} now\testamos comiendo pan ahora\nthey sleep\tduermen\n", "utf-8")
    server = start_server([translator_folder], memories=[str(memory)])
    told = server.client.post("/api/translate", json={"text": SENTENCE, "to": "es"}).json()
    assert [(each["target"], each["changes"][-1]) for each in told["memory"]] == [
        ("estamos comiendo pan ahora", {"kind": "gone", "text": "now"})
    ]


def test_answers_are_remembered_and_corrections_are_used_also_after_a_restart(
    start_server, translator_folder: Path, tmp_path: Path, spanish
):
    file = tmp_path / "kept.jsonl"
    for restarted in (False, True):
        server = start_server([translator_folder], remember=str(file))
        if not restarted:
            assert server.client.post("/translate", json=ASKED).json()["translatedText"] == spanish
            row = {
                "q": f"{SENTENCE}. they sleep.",
                "s": "comemos el pan. ellos duermen.",
                "source": "en",
                "target": "es",
            }
            assert server.client.post("/suggest", json=row).json() == {"success": True}
        assert server.client.post("/translate", json=ASKED).json()["translatedText"] == spanish
        for text, said in ((f"{SENTENCE}.", "comemos el pan."), ("they sleep.", "ellos duermen.")):
            assert server.client.post("/translate", json={**ASKED, "q": text}).json()["translatedText"] == said
        sent = {"file": ("a.html", "<p>they <b>sleep.</b></p>")}
        found = server.client.post("/translate_file", data={"source": "en", "target": "es"}, files=sent).json()
        assert "duermen." in server.client.get(found["translatedFileUrl"]).text
        told = server.client.post("/api/translate", json={"text": "they sleep", "to": "es"}).json()
        assert "ellos duermen." in [each["target"] for each in told["memory"]]
        asked = {**ASKED, "q": "they sleep.", "glossary": {"sleep": "tortilla"}}
        assert "tortilla" in server.client.post("/translate", json=asked).json()["translatedText"].lower()
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert {"q": SENTENCE, "s": spanish, "corrected": False}.items() <= rows[0].items()
    assert rows[0]["model"] == server.registry.translation_models()[0].id and rows[0]["time"].startswith("20")
    assert not any("tortilla" in row["s"].lower() for row in rows)


def test_a_changed_document_keeps_the_translations_of_its_other_segments(served):
    """Also if the segments are translated in other batches, of other lengths."""
    before = [
        f"{who} {what} {how}" for who in ("we", "they") for what in ("eat", "read", "sleep") for how in ("now", "")
    ]
    after = ["a new line that is longer than all others were", *before[3:], "the end", before[0]]
    answers = []
    for lines in (before, after):
        sent = {"file": ("a.txt", "\n".join(lines))}
        found = served.client.post("/translate_file", data={"source": "en", "target": "es"}, files=sent).json()
        said = served.client.get(found["translatedFileUrl"]).text.split("\n")
        answers.append(dict(zip(lines, said, strict=True)))
    assert all(answers[0][line] == answers[1][line] for line in set(before) & set(after))


@pytest.fixture(scope="module")
def pivoted(folders, back_folder, start_server_of_module):
    """A server with a model from English into Spanish and Portuguese, and one from Spanish into English."""
    return start_server_of_module([folders[0], back_folder])


def test_pairs_without_a_model_go_through_a_pivot_language(pivoted):
    languages = {each["code"]: set(each["targets"]) for each in LibreTranslateAPI(pivoted.url).languages()}
    assert languages == {"en": {"es", "pt"}, "es": {"en", "pt"}, "pt": set()}
    there, back = (pivoted.registry.translator(each.id) for each in pivoted.registry.translation_models())
    way = back.translate(SENTENCE, to="en")
    expected = there.translate(way.text, to="pt")
    asked = {"q": SENTENCE, "source": "es", "target": "pt"}
    answer = pivoted.client.post("/translate", json={**asked, "quality": True}).json()
    assert (answer["translatedText"], answer["pivot"]) == (expected.text, "en")
    assert answer["quality"] == pytest.approx(way.quality * expected.quality, abs=1e-3)
    assert "pivot" not in pivoted.client.post("/translate", json=ASKED).json()
    page = pivoted.client.post("/api/translate", json={"text": SENTENCE, "source": "es", "to": "pt", "quality": True})
    told = page.json()
    assert (told["from"], told["to"], told["model"]) == ("es", "pt", None)
    assert told["pivot"] == {"language": "en", "text": way.text}
    assert told["translations"][0]["text"] == expected.text
    assert told["translations"][0]["quality"] == pytest.approx(answer["quality"])
    steered = {"text": SENTENCE, "source": "es", "to": "pt", "glossary": "bread\tpão"}
    refused = pivoted.client.post("/api/translate", json=steered)
    assert refused.status_code == 400 and "glossary" in refused.json()["error"]
    several = pivoted.client.post("/translate", json={**asked, "q": [SENTENCE, "she reads"], "alternatives": 1}).json()
    assert several["translatedText"][0] == expected.text and several["pivot"] == ["en", "en"]
    page = {**asked, "q": f"<p>{SENTENCE}</p>", "format": "html"}
    assert pivoted.client.post("/translate", json=page).json()["translatedText"] == f"<p>{expected.text}</p>"
    file = {"file": ("a.txt", SENTENCE.encode())}
    told = pivoted.client.post("/translate_file", data={"source": "es", "target": "pt"}, files=file).json()
    assert pivoted.client.get(told["translatedFileUrl"]).text == expected.text
    refused = pivoted.client.post("/translate", json={**asked, "glossary": {"bread": "pan"}})
    assert refused.status_code == 400 and "goes through en" in refused.json()["error"]
    assert pivoted.client.post("/translate", json={**asked, "target": "de"}).json() == {"error": "de is not supported"}
