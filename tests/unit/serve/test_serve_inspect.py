"""The routes of the Image tab, against the model itself."""

import base64
import io
import json
import math

import numpy as np
import pytest
from PIL import Image

import regard
from regard.checkpoints import save_model
from regard.errors import UsageError
from regard.families.catalog import MODELS
from regard.families.navigation.pipeline import find_house
from regard.look.interventions import without_heads
from regard.look.page import quantise
from regard.serve.models import attention_cache
from regard.serve.models.registry import ModelRegistry
from regard.serve.routes import attention


@pytest.fixture
def picture():
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def server(start_server, make_classifier, translator_folder):
    return start_server([translator_folder, make_classifier("vit"), make_classifier("resnet")])


def sent(server, content, model="vit"):
    return server.client.post("/api/inspect", files={"file": ("cat.png", content)}, data={"model": model})


def test_labels_and_layers_are_the_models_own(server, make_classifier, picture):
    told = sent(server, picture).json()
    classifier = regard.load(make_classifier("vit"))
    assert told["answer"]["labels"] == pytest.approx(classifier.classify(picture)[0].labels)
    seen = classifier.attention(picture)
    for number, layer in enumerate(seen.layers):
        piece = server.client.post("/api/inspect/layer", json={"id": told["id"], "layer": number}).json()
        weights = np.frombuffer(base64.b64decode(piece["data"]), np.uint8).reshape(piece["shape"])
        assert np.array_equal(weights, quantise(layer.weights))
    assert told["report"]["title"] == "cat.png"


def test_heads_are_switched_off_for_one_answer_alone(server, make_classifier, picture):
    classifier, head = regard.load(make_classifier("vit")), "encoder.1.attention:0"

    def asked(*heads):
        given = {"model": "vit", "without": list(heads)}
        return server.client.post("/api/inspect", files={"file": ("cat.png", picture)}, data=given)

    whole, told = classifier.classify(picture)[0].labels, asked(head).json()
    with without_heads(classifier, [head]):
        changed = classifier.classify(picture)[0].labels
    assert told["answer"]["labels"] == pytest.approx(changed) != pytest.approx(whole)
    assert told["without"] == [head] and told["report"]["panels"][1]["layer"] == "encoder.1.attention"
    assert asked().json()["answer"]["labels"] == pytest.approx(whole)
    wrong = asked("encoder.7.attention:0")
    assert wrong.status_code == 400 and "no attention layer matches" in wrong.text


def test_examples_are_pictures_that_can_be_sent_back(server):
    first, *others = server.client.get("/api/inspect/examples?model=resnet").json()
    assert len(others) == 5 and first["caption"].startswith("a ")
    told = sent(server, base64.b64decode(first["data"])).json()
    with Image.open(io.BytesIO(base64.b64decode(told["report"]["picture"].partition(",")[2]))) as shown:
        assert shown.size == (256, 256)  # more detailed than the 16 pixels of the model's input


def test_a_model_without_attention_still_names_the_picture(server, picture):
    told = sent(server, picture, "resnet").json()
    assert told["report"]["layers"] == [] and set(told["answer"]["labels"]) == {"a", "b", "c"}


def test_refusals_are_words(server, picture, monkeypatch, translator_folder):
    for content, model, status, words in (
        (b"hello", "vit", 400, "cat.png is no image"),
        (picture[:60], "vit", 400, "cut short"),
        (picture, translator_folder.name, 400, "does not look at files"),
        (picture, "nobody", 404, "there is no model"),
    ):
        answer = sent(server, content, model)
        assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
    assert server.client.post("/api/inspect/layer", json={"id": "x", "layer": 0}).status_code == 404
    monkeypatch.setattr(attention, "MAX_WEIGHTS", 10)
    assert "draw it with `regard look`" in sent(server, picture).json()["error"]
    answer = server.client.post("/v1/completions", json={"model": "vit", "prompt": "hello"})
    assert "reads no texts" in answer.json()["error"]["message"]


def test_old_pictures_leave_when_memory_is_short(server, picture, monkeypatch):
    monkeypatch.setattr(attention_cache, "MAX_BYTES", 1)
    first, second = (sent(server, picture).json()["id"] for _ in range(2))
    assert server.client.post("/api/inspect/layer", json={"id": first, "layer": 0}).status_code == 404
    assert server.client.post("/api/inspect/layer", json={"id": second, "layer": 0}).status_code == 200


def test_models_that_make_pictures_are_refused(tmp_path):
    config = MODELS["sagan"].config(image_size=8, widths=(8,), latent=4, attention_at=0, classes=2)
    save_model(tmp_path / "model", "sagan", MODELS["sagan"].model(config))
    with pytest.raises(UsageError, match="use `regard generate`"):
        ModelRegistry([tmp_path / "model"])


def test_the_models_page_tells_what_a_picture_costs(server):
    details = server.client.get("/api/models/vit").json()
    assert details["ability"] == "see"
    assert any("image" in row[0] for row in details["plan"])


def test_a_house_is_walked_through(start_server, make_navigator):
    server = start_server([make_navigator("vlnbert")])
    example = server.client.get("/api/inspect/examples?model=vlnbert").json()[0]
    graph = json.dumps(example["graph"]).encode()
    options = {"start": example["start"], "heading": str(example["heading"])}

    def asked(**changes):
        data = {"model": "vlnbert", "text": example["instruction"], "options": json.dumps(options | changes)}
        return server.client.post("/api/inspect", files={"file": ("home_connectivity.json", graph)}, data=data)

    told = asked().json()
    navigator, house = regard.load(make_navigator("vlnbert")), find_house(graph)
    (answer,) = navigator.navigate(
        example["instruction"], house, example["start"], heading=math.radians(example["heading"])
    )
    assert [path["viewpoints"] for path in told["answer"]["paths"]] == [list(path.numbers) for path in answer.paths]
    assert told["report"]["view"] == "house" and len(told["report"]["details"]["house"]["positions"]) == len(house)
    piece = server.client.post("/api/inspect/layer", json={"id": told["id"], "layer": 0}).json()
    assert piece["shape"][0] == told["report"]["panels"][0]["heads"]
    assert asked(rank="1").json()["report"]["details"]["rank"] == 1
    for changes, words in (
        ({"start": "x"}, "no viewpoint"),
        ({"heading": "north"}, "expected a number"),
        ({"rank": "99"}, "rank"),
    ):
        refused = asked(**changes)
        assert refused.status_code == 400 and words in refused.json()["error"]
