"""Attention of all kinds of text models through the server, against the models themselves."""

import base64
import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import regard
from regard.families.language.language_models import LanguageModel
from regard.look.inspection import inspect_text
from regard.look.interventions import without_heads
from regard.look.page import quantise
from regard.serve.models.attention_cache import AttentionCache, Question

PROMPT = "the fox saw"
WRITING = {"max_tokens": 8, "temperature": 0.9, "top_p": 0.95, "seed": 3}
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def made(make_writer, make_encoder) -> dict[str, Path]:
    places = [make_writer("gpt"), make_writer("llama"), make_writer("t5"), make_encoder("masked")]
    return {place.name: place for place in places}


@pytest.fixture(scope="module")
def client(start_server_of_module, made: dict[str, Path], translator_folder: Path) -> httpx.Client:
    return start_server_of_module([translator_folder, *made.values()]).client


@pytest.fixture
def ask(client: httpx.Client) -> Ask:
    def ask(model: str, text: str = PROMPT, **fields: Any) -> Any:
        answer = client.post("/api/look", json={"model": model, "text": text, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


def decoded(piece: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(piece["data"]), np.uint8).reshape(piece["shape"])


@pytest.mark.parametrize(
    ("name", "given"),
    [("gpt-writer", {"writing": WRITING}), ("llama-writer", {}), ("t5-writer", {"writing": WRITING}),
     ("t5-writer", {"target": "the owl"}), ("masked", {"pair": "she is [MASK]"})],
)  # fmt: skip
def test_pieces_are_what_the_scene_shows(ask: Ask, made: dict[str, Path], name: str, given: dict[str, Any]) -> None:
    text = "we are big" if name == "masked" else PROMPT
    options = {**given.get("writing", {}), **{key: value for key, value in given.items() if key != "writing"}}
    inspection = inspect_text(regard.load(made[name]), text, **options)
    report = inspection.report()
    told = ask(name, text, **given, predictions={})
    assert [each["name"] for each in told["panels"]] == [panel.name for panel in report.panels]
    assert (told["said"], told["places"]) == (inspection.said, inspection.places)
    assert [each["place"] for each in told["predictions"]] == [each.place for each in report.predictions]
    for own, sent in zip(report.predictions, told["predictions"], strict=True):
        assert [each["probability"] for each in sent["choices"]] == pytest.approx(
            [each.probability for each in own.choices], abs=1e-5
        )
    for panel in report.panels:
        about = next(each for each in told["panels"] if each["name"] == panel.name)
        assert (
            told["texts"][about["queries"]] == panel.queries.texts and told["texts"][about["keys"]] == panel.keys.texts
        )
        for piece in ask(name, text, **given, layers=[panel.name])["pieces"]:
            assert np.abs(decoded(piece).astype(int) - quantise(panel.weights[piece["head"]])).max() <= 1


def test_scores_of_a_causal_head_end_at_the_query(ask: Ask) -> None:
    asked = {"layers": ["decoder.1.attention"], "heads": [1]}
    scores, weights = (ask("gpt-writer", **asked, scores=each)["pieces"][0] for each in (True, False))
    for row, (values, seen) in enumerate(zip(scores["values"], decoded(weights), strict=True)):
        assert [value is None for value in values] == [key > row for key in range(len(values))]
        e = [0.0 if value is None else math.exp(value) for value in values]
        assert quantise(np.array(e) / sum(e)) == pytest.approx(seen, abs=1)


def test_the_distribution_is_reshaped_without_writing_anew(ask: Ask) -> None:
    plain, cold = (
        ask("gpt-writer", writing=WRITING, predictions={"places": [1, 3], "top": 4, "temperature": temperature})
        for temperature in (1.0, 0.3)
    )
    assert plain["said"] == cold["said"]
    for one, other in zip(plain["predictions"], cold["predictions"], strict=True):
        assert [each["probability"] for each in one["choices"]] == [each["probability"] for each in other["choices"]]
        best, sharper = one["choices"][0], other["choices"][0]
        assert (
            sharper["drawn"] > best["drawn"] == pytest.approx(best["probability"], abs=1e-3)
        )  # less the padding token


def test_what_is_streamed_is_looked_at_and_not_written_again(client: httpx.Client, ask: Ask, monkeypatch) -> None:
    asked = {"model": "gpt-writer", "text": PROMPT, "writing": WRITING}
    with client.stream("POST", "/api/look/stream", json=asked) as answer:
        events = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line]
    assert events[-1] == {"done": True}
    texts = [event["text"] for event in events[:-1]]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    monkeypatch.setattr(LanguageModel, "generate", lambda *_, **__: pytest.fail("it was written again"))
    assert ask("gpt-writer", writing=WRITING)["said"] == texts[-1]


@pytest.mark.parametrize("name", ["masked", "gpt-writer"])
def test_where_nothing_is_written_the_stream_is_empty(client: httpx.Client, name: str) -> None:
    answer = client.post("/api/look/stream", json={"model": name, "text": "we"})
    assert answer.text == 'data: {"done": true}\n\n'


@pytest.mark.parametrize(
    "wrong",
    [{"model": "masked", "text": " "}, {"model": "masked", "to": "es"}, {"model": "masked", "writing": WRITING},
     {"model": "masked", "text": "we " * 40},
     {"model": "masked", "text": "[MASK]", "predictions": {"temperature": 2.0}},
     {"model": "gpt-writer", "pair": "x"}, {"model": "gpt-writer", "target": "x"}, {"model": "gpt-writer", "to": "es"},
     {"model": "gpt-writer", "text": "fox " * 99}, {"model": "gpt-writer", "writing": {"max_tokens": 99_999}},
     {"model": "gpt-writer", "writing": {"max_tokens": 3, "temperature": -1}},
     {"model": "gpt-writer", "predictions": {"places": [0, 999]}},
     {"model": "gpt-writer", "predictions": {"places": [2, 1]}},
     {"model": "gpt-writer", "predictions": {"top": 0}}, {"model": "gpt-writer", "predictions": {"top": 101}},
     {"model": "gpt-writer", "predictions": {"top_p": 0}}, {"model": "gpt-writer", "predictions": {"unknown": 1}},
     {"model": "gpt-writer", "pair": "x" * 10_001}, {"model": "run", "to": "es", "pair": "x"},
     {"model": "run", "to": "es", "writing": WRITING}],
)  # fmt: skip
def test_what_cannot_be_looked_at_is_told(client: httpx.Client, wrong: dict[str, Any]) -> None:
    answer = client.post("/api/look", json={"text": PROMPT, **wrong})
    assert answer.status_code == 400 and answer.json()["error"]


def test_too_much_for_one_answer_is_refused(client: httpx.Client) -> None:
    asked = {"model": "llama-writer", "text": "the fox saw " * 400, "predictions": {"top": 100}}
    answer = client.post("/api/look", json=asked)
    assert answer.status_code == 400 and "fewer places" in answer.json()["error"]


def test_only_so_many_recordings_are_kept(gpt_folder: Path, monkeypatch) -> None:
    monkeypatch.setattr("regard.serve.models.attention_cache.MAX_RECORDINGS", 2)
    cache, writer = AttentionCache(), regard.load(gpt_folder)
    questions = [Question("gpt-writer", f"the fox {number}") for number in range(3)]
    first, second, third = (cache.text(question, writer) for question in questions)
    assert cache.text(questions[1], writer) is second and cache.text(questions[2], writer) is third
    assert cache.text(questions[0], writer) is not first


def test_exports_hold_the_predictions(client: httpx.Client) -> None:
    asked = {"model": "gpt-writer", "text": PROMPT, "writing": WRITING, "format": "json"}
    seen = client.post("/api/look/export", json=asked).json()
    assert sum(each["written"] for each in seen["predictions"]) >= 8 - 1
    page = client.post("/api/look/export", json={**asked, "format": "html"}).text
    assert "What it expected next" in page


def test_the_list_of_models_says_which_predict_tokens(client: httpx.Client) -> None:
    listed = {each["id"]: each["predicts_tokens"] for each in client.get("/api/models").json()["models"]}
    assert listed == {"run": False, "gpt-writer": True, "llama-writer": True, "t5-writer": True, "masked": True}


@pytest.mark.parametrize("name", ["gpt-writer", "llama-writer", "masked"])
def test_neurons_add_up_to_the_score_that_is_sent(client: httpx.Client, ask: Ask, name: str) -> None:
    described = ask(name, "the fox saw")
    panel = described["panels"][-1]
    query, key, head = len(described["texts"][panel["queries"]]) - 1, 1, panel["heads"] - 1
    scores = ask(name, "the fox saw", layers=[panel["name"]], heads=[head], scores=True)["pieces"][0]["values"]
    asked = {"model": name, "text": "the fox saw", "layer": panel["name"], "head": head, "query": query, "key": key}
    found = client.post("/api/look/neurons", json=asked).json()
    assert found["score"] == pytest.approx(scores[query][key], abs=1e-3)
    assert sum(found["parts"]) * found["scale"] + found["bias"] == pytest.approx(found["score"], abs=1e-3)
    products = [one * other for one, other in zip(found["query"], found["key"], strict=True)]
    assert found["parts"] == pytest.approx(products, abs=1e-3)
    wrong = client.post("/api/look/neurons", json=asked | {"key": 999})
    assert wrong.status_code == 400 and "key 999" in wrong.json()["error"]


def test_a_question_without_heads_leaves_the_model_as_it_was(
    client: httpx.Client, ask: Ask, made: dict[str, Path]
) -> None:
    off, writing = ["decoder.0.attention:0", "decoder.1.attention:*"], WRITING | {"temperature": 0.0}
    whole = ask("gpt-writer", writing=writing, layers=["decoder.1.attention"])
    changed = ask("gpt-writer", writing=writing, without=off, layers=["decoder.1.attention"])
    again = ask("gpt-writer", writing=writing, layers=["decoder.1.attention"])
    assert again["said"] == whole["said"] and again["pieces"] == whole["pieces"]
    generator = regard.load(made["gpt-writer"])
    with without_heads(generator, off):
        inspection = inspect_text(generator, PROMPT, **writing)
        (expected,) = inspection.record(["decoder.1.attention"]).weights.values()
    assert changed["said"] == inspection.said
    for piece in changed["pieces"]:
        assert np.array_equal(decoded(piece), quantise(expected[piece["head"]]))
    refused = client.post("/api/look", json={"model": "gpt-writer", "text": PROMPT, "without": ["decoder.9.x:0"]})
    assert refused.status_code == 400 and "no attention layer matches" in refused.json()["error"]
