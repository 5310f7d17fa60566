"""The page's own routes, against the models themselves."""

import base64
import io
import json
import math

import docx
import numpy as np
import pytest
from PIL import Image

import regard
from regard.families.translation.view import inspect_translation, inspect_translator
from regard.look.page import quantise
from regard.search.search import SearchSettings
from regard.search.search_tree import ROOT, Growth, path_to
from regard.serve.routes import translate

SENTENCE = "we are eating bread"


@pytest.fixture(scope="module")
def translator(translator_folder):
    return regard.load(translator_folder)


@pytest.fixture(scope="module")
def ask(served, translator_folder):
    def ask(path: str, **fields):
        asked = {"model": translator_folder.name, "text": SENTENCE, "to": "es", **fields}
        answer = served.client.post(f"/api/{path}", json=asked)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


def decoded(piece: dict) -> np.ndarray:
    return np.frombuffer(base64.b64decode(piece["data"]), np.uint8).reshape(piece["shape"])


# Translations


def test_a_translation_with_all_that_led_to_it(ask, translator):
    told = ask("translate", beam=3, n_best=3, search=True)
    best = translator.translate(SENTENCE, to="es", beam=3, n_best=3)
    assert [each["text"] for each in told["translations"]] == [best.text, *(each.text for each in best.alternatives)]
    assert told["translations"][0]["score"] == pytest.approx(best.score, abs=1e-4)
    assert told["source_words"] == SENTENCE.split()
    for each, answer in zip(told["translations"], [best, *best.alternatives], strict=True):
        assert [tuple(link) for link in each["alignment"]] == answer.alignment
        assert np.array_equal(decoded(each["attention"]), quantise(answer.attention))


def test_several_sentences_look_at_themselves_alone(ask):
    told = ask("translate", text="We eat bread.\nShe reads a book.")
    (best,) = told["translations"]
    assert "\n" in best["text"] and told["source_words"] == ["We", "eat", "bread.", "She", "reads", "a", "book."]
    weights = decoded(best["attention"])
    first = len(best["text"].split("\n")[0].split())
    assert weights.shape == (len(best["words"]), 7)
    assert not weights[:first, 3:].any() and not weights[first:, :3].any()


def test_unknown_words_are_told_by_their_places(ask):
    told = ask("translate", text="we eat ΩΩ, bread ♪\nshe reads (ΩΩ)")
    assert told["source_words"][2] == "ΩΩ," and told["unknown_at"] == [2, 7]  # punctuation does not count
    found = [(each["word"], told["source"][each["start"] : each["end"]]) for each in told["unknown"]]
    assert [word for word, _ in found if word.isalnum()] == ["ΩΩ", "ΩΩ"] and all(word == there for word, there in found)


def test_a_blank_text_has_no_translation(ask):
    assert ask("translate", text=" \n ", search=True)["translations"] == []


def test_a_model_without_attention_translates_all_the_same(ask):
    told = ask("translate", model="fixed")
    assert told["translations"][0]["attention"] is None and told["translations"][0]["alignment"] == []


def test_a_stream_ends_with_the_translation(served, ask, translator_folder):
    asked = {"model": translator_folder.name, "text": "We eat bread. She reads a book.", "to": "es", "beam": 2}
    with served.client.stream("POST", "/api/translate/stream", json=asked) as answer:
        events = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line]
    whole = ask("translate", text=asked["text"], beam=2)
    assert events[-1]["done"] is True and events[-2]["text"] == whole["translations"][0]["text"]
    assert alike({**events[-1]["answer"], "milliseconds": 0}, {**whole, "milliseconds": 0})


def alike(one, other) -> bool:
    """Whether two answers are equal but for the last bits of their scores: a stream searches sentence by sentence, and
    some CPUs add the products of another number of rows in another order."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == (pytest.approx(other, rel=1e-5) if isinstance(one, float) else other)


@pytest.mark.parametrize("path", ["translate", "translate/stream"])
def test_each_sentence_is_searched_once(served, translator_folder, monkeypatch, path):
    translator, sentences = served.registry.translator(translator_folder.name), []
    begin, decode = translator.begin, translator.decode
    monkeypatch.setattr(translator, "begin", lambda text, **more: sentences.append(text) or begin(text, **more))
    monkeypatch.setattr(translator, "decode", lambda some, *more: sentences.extend(some) or decode(some, *more))
    text = [f"We eat {word}." for word in ("bread", "fish", "rice") * 7]
    asked = {"model": translator_folder.name, "text": " ".join(text), "to": "es", "search": True, "n_best": 3}
    assert served.client.post(f"/api/{path}", json=asked).status_code == 200
    assert sorted(sentences) == sorted(text)


def test_the_server_picks_a_model_for_the_languages(served, folders):
    def ask(**asked):
        return served.client.post("/api/translate", json={"text": "The children are reading a book.", **asked})

    named = ask(model=folders[0].name, to="pt").json()
    for source in ("en", "en-GB", "auto"):
        told = ask(source=source, to="pt").json()
        assert (told["model"], told["from"], told["to"]) == (folders[0].name, "en", "pt")
        assert told["translations"] == named["translations"]
        assert (told["detected"] is None) == (source != "auto")
    already = ask(source="auto", to="es", text="Los niños están leyendo un libro en el jardín de la casa.").json()
    assert already["model"] is None and already["translations"][0]["text"] == already["source"]
    for asked, words in (
        ({"source": "de", "to": "es"}, "de is not supported"),
        ({"source": "en", "to": "de"}, "de is not supported"),
        ({"source": "de", "to": "es", "model": folders[0].name}, "reads en, not de"),
    ):
        refused = ask(**asked)
        assert refused.status_code == 400 and words in refused.json()["error"]


def test_html_is_translated_as_html(served, folders):
    page = '<p class="x">we eat <b>bread</b></p>'
    told = served.client.post("/api/translate", json={"text": page, "to": "es", "source": "en", "format": "html"})
    libre = served.client.post("/translate", json={"q": page, "source": "en", "target": "es", "format": "html"})
    (only,) = told.json()["translations"]
    assert only["text"] == libre.json()["translatedText"] and only["attention"] is None


def test_a_document_is_translated_with_progress(served, monkeypatch):
    monkeypatch.setattr(translate, "PROGRESS_INTERVAL", 0.0)
    text = "".join(f"We eat {word}.\n" for word in ("bread", "fish", "rice") * 12)

    def send(name="a.txt", content=text, **fields):
        files = {"file": (name, content.encode())}
        with served.client.stream("POST", "/api/documents", data=fields, files=files) as answer:
            lines = [line for line in answer.iter_lines() if line]
        return answer.status_code, [json.loads(line.removeprefix("data: ")) for line in lines]

    for source in ("en", "auto"):
        _, events = send(source=source, to="es")
        counts = [(event["sentences"], event["of"]) for event in events if "of" in event]
        assert counts == sorted(counts) and {of for _, of in counts} == {36}
        assert events[-1]["done"] is True
        fetched = served.client.get(f"/api/documents/{events[-1]['token']}")
        assert fetched.headers["content-disposition"] == 'attachment; filename="a.translated.txt"'
        libre = served.client.post("/translate", json={"q": text, "source": "en", "target": "es"}).json()
        assert fetched.text == libre["translatedText"]
    assert served.client.get("/api/documents/nothing").status_code == 404
    for changes, words in (
        ({"name": "a.pdf"}, "not supported"),
        ({"to": "de"}, "de is not supported"),
        ({"source": ""}, "missing source"),
    ):
        status, (told,) = send(**{"source": "en", "to": "es", **changes})
        assert status == 400 and words in told["error"]


def test_an_office_document_comes_back_as_one(served):
    document, file = docx.Document(), io.BytesIO()
    document.add_heading("we eat bread", 1)
    document.save(file)
    sent = {"file": ("a.docx", file.getvalue())}
    answer = served.client.post("/api/documents", data={"source": "en", "to": "es"}, files=sent)
    token = json.loads(answer.text.strip().splitlines()[-1].removeprefix("data: "))["token"]
    back = docx.Document(io.BytesIO(served.client.get(f"/api/documents/{token}").content)).paragraphs[0]
    libre = served.client.post("/translate", json={"q": "we eat bread", "source": "en", "target": "es"}).json()
    assert (back.text, back.style.name) == (libre["translatedText"], "Heading 1")
    refused = served.client.post("/api/documents", data={"source": "en", "to": "es"}, files={"file": ("a.docx", b"PK")})
    assert (
        "not a readable .docx file" in refused.text
        and "/" not in json.loads(refused.text.strip().splitlines()[-1].removeprefix("data: "))["error"]
    )
    assert ".docx" in served.client.get("/frontend/settings").json()["supportedFilesFormat"]


# The tree of a beam search


def test_the_tree_holds_every_way_the_search_went(translator):
    settings = SearchSettings(beam=4, n_best=4, max_length=12)
    search = translator.begin(SENTENCE, to="es", settings=settings)
    growth = Growth()
    while not search.done:
        search.advance()
        growth.watch(search)
    nodes, found = growth.nodes, search.results()[0]
    by_id = {node.id: node for node in nodes}
    assert [node.id for node in nodes] == list(range(1, len(nodes) + 1))
    for node in nodes:
        parent = by_id.get(node.parent)
        assert (node.parent == ROOT) == (node.step == 1)
        if parent:  # only continued hypotheses have children, and probabilities only decrease
            assert parent.state == "live" and parent.step == node.step - 1 and node.total <= parent.total
    for step in {node.step for node in nodes}:
        assert sum(node.state == "live" for node in nodes if node.step == step) <= 4
    for answer in found:
        path = sorted(path_to(nodes, answer, translator.vocabulary.end))
        last = by_id[path[-1]]
        said = [by_id[each].token for each in path]
        assert said[: len(answer.tokens)] == answer.tokens and len(said) == len(answer.tokens) + answer.finished
        assert last.total == pytest.approx(answer.log_probability) and last.score == pytest.approx(answer.score)


def test_the_tree_of_the_page_spells_its_translation(ask):
    told = ask("translate", beam=4, n_best=1, search=True)
    best = [node for node in told["search"]["nodes"] if node["best"]]
    assert [node["token"] for node in best if node["token"] != "</s>"] == told["translations"][0]["tokens"]
    assert told["search"]["width"] == 4


# Attention


def test_pieces_are_the_recorded_weights(ask, translator):
    report = inspect_translation(translator, translator.translate(SENTENCE, to="es")).report()
    told = ask("look")
    assert told["pieces"] == []
    assert [each["name"] for each in told["panels"]] == [panel.name for panel in report.panels]
    for panel in report.panels:
        pieces = ask("look", layers=[panel.name])["pieces"]
        assert [each["head"] for each in pieces] == list(range(panel.heads))
        for piece in pieces:
            assert np.array_equal(decoded(piece), quantise(panel.weights[piece["head"]]))
        about = next(each for each in told["panels"] if each["name"] == panel.name)
        assert (
            told["texts"][about["queries"]] == panel.queries.texts and told["texts"][about["keys"]] == panel.keys.texts
        )


def test_rows_heads_and_the_alignment_by_themselves(ask, translator):
    whole = ask("look", layers=["decoder.0.cross"], heads=[1])["pieces"][0]
    part = ask("look", layers=["decoder.0.cross"], heads=[1], rows=[1, 3])["pieces"][0]
    assert part["rows"] == [1, 3] and np.array_equal(decoded(part), decoded(whole)[1:3])
    (words,) = ask("look", layers=["alignment"])["pieces"]
    assert np.array_equal(decoded(words), quantise(translator.translate(SENTENCE, to="es").attention))


def test_small_maps_keep_their_peaks(ask):
    text = " ".join([SENTENCE] * 8)
    whole, small = (
        ask("look", text=text, target="x", layers=["encoder.0.attention"], side=side)["pieces"] for side in (0, 7)
    )
    for large, shrunk in zip(map(decoded, whole), map(decoded, small), strict=True):
        assert shrunk.shape == (7, 7) and shrunk.max() == large.max() and shrunk.min() >= large.min()


def test_scores_are_what_the_softmax_is_made_of(ask):
    for name in ("encoder.0.attention", "decoder.1.attention", "decoder.1.cross"):
        scores, weights = (ask("look", layers=[name], heads=[0], scores=each)["pieces"][0] for each in (True, False))
        for row, seen in zip(scores["values"], decoded(weights), strict=True):
            e = [0.0 if value is None else math.exp(value) for value in row]
            assert quantise(np.array(e) / sum(e)) == pytest.approx(seen, abs=1)


def test_a_given_translation_is_looked_at(ask, translator):
    told = ask("look", target="el pan es rojo", layers=["decoder.0.cross"])
    assert told["said"] == "el pan es rojo" and told["texts"]["target_words"] == ["el", "pan", "es", "rojo"]
    expected = inspect_translator(translator, SENTENCE, to="es", target="el pan es rojo").report().panels[2]
    assert np.array_equal(decoded(told["pieces"][0]), quantise(expected.weights[0]))


@pytest.mark.parametrize(
    "wrong",
    [{"layers": ["nothing"]}, {"layers": ["decoder.0.cross"], "heads": [99]}, {"layers": ["alignment"], "scores": True},
     {"layers": ["decoder.0.cross"], "rows": [3, 1]}, {"layers": ["decoder.0.cross"], "rows": [0, 999]},
     {"text": ""}, {"text": "x" * 10_001}, {"to": "zz"}, {"to": ""}, {"side": -1}, {"unknown": 1},
     {"model": "fixed", "to": "es"}],
)  # fmt: skip
def test_what_cannot_be_looked_at_is_told(served, translator_folder, wrong):
    asked = {"model": translator_folder.name, "text": SENTENCE, "to": "es", **wrong}
    answer = served.client.post("/api/look", json=asked)
    assert answer.status_code == 400 and answer.json()["error"]


def test_exports_open(served, translator_folder):
    def export(kind: str, **more) -> bytes:
        asked = {"model": translator_folder.name, "text": SENTENCE, "to": "es", "format": kind, **more}
        answer = served.client.post("/api/look/export", json=asked)
        assert answer.status_code == 200 and f'.{kind}"' in answer.headers["content-disposition"]
        return answer.content

    assert Image.open(io.BytesIO(export("png"))).size[0] > 200
    assert export("svg", layer="decoder.0.cross", head=1).decode().count("<svg") == 1
    page = export("html").decode()
    assert (
        page.startswith("<!doctype html>") and SENTENCE in page and "http://" not in page.replace("http://www.w3", "")
    )
    assert json.loads(export("json", layer="decoder.0.cross"))["panels"][0]["name"] == "decoder.0.cross"


# Models


def test_models(served, translator_folder, translator):
    listed = served.client.get("/api/models").json()
    assert listed["default"] == translator_folder.name
    entries = {each["id"]: each for each in listed["models"]}
    own = entries[translator_folder.name]
    assert own["parameters"] == sum(p.numel() for p in translator.models[0].parameters())
    assert own["attention"] and not entries["fixed"]["attention"]
    told = served.client.get(f"/api/models/{translator_folder.name}").json()
    assert told["config"]["width"] == 64 and "translation" in told["recipe"] and told["card"].startswith("#")
    assert {each["kind"] for each in told["layers"]} == {"self", "causal", "cross"}
    assert str(translator_folder) not in json.dumps(told)
    assert served.client.get("/api/models/nothing").status_code == 404
