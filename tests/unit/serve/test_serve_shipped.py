"""A server without named models: six languages in all directions, by every API."""

from pathlib import Path

import pytest

from regard.serve.run import served_models

TEXTS = {
    "en": "where is the station?",
    "es": "¿dónde está la estación?",
    "pt": "onde fica a estação?",
    "fr": "où est la gare ?",
    "de": "wo ist der Bahnhof?",
    "it": "dov'è la stazione?",
}


def test_named_models_are_served_alone(built_in: Path) -> None:
    assert served_models(["runs/mine"]) == ["runs/mine"]
    assert served_models([]) == ["builtin:en-many", "builtin:many-en"]


@pytest.fixture
def client(built_in: Path, start_server):
    return start_server(served_models([])).client


def test_all_directions(client) -> None:
    languages = {each["code"]: set(each["targets"]) for each in client.get("/languages").json()}
    assert languages == {code: TEXTS.keys() - {code} for code in TEXTS}
    for source, text in TEXTS.items():
        for target in TEXTS.keys() - {source}:
            answer = client.post("/translate", json={"q": text, "source": source, "target": target}).json()
            assert answer["translatedText"]
            assert answer.get("pivot") == (None if "en" in (source, target) else "en")


def test_the_source_is_detected(client) -> None:
    for source, text in TEXTS.items():
        target = "fr" if source != "fr" else "en"
        answer = client.post("/translate", json={"q": text, "source": "auto", "target": target}).json()
        assert answer["detectedLanguage"]["language"] == source


def test_the_other_apis_have_them(client) -> None:
    names = [each["id"] for each in client.get("/v1/models").json()["data"]]
    assert {"en-many:fr", "many-en", "many-en+en-many:fr"} <= set(names)
    for name, source in (("en-many:fr", "en"), ("many-en", "de"), ("many-en+en-many:fr", "es")):
        asked = {"model": name, "messages": [{"role": "user", "content": TEXTS[source]}], "max_tokens": 8}
        assert client.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"]
    asked = {"text": TEXTS["es"], "source": "auto", "to": "fr"}
    answer = client.post("/api/translate", json=asked).json()
    assert (answer["from"], answer["to"], answer["pivot"]["language"]) == ("es", "fr", "en")
