"""The routes of the Features tab, against the dictionary itself."""

import json

import pytest

import regard


@pytest.fixture(scope="module")
def server(start_server_of_module, make_dictionary, translator_folder):
    return start_server_of_module([translator_folder, make_dictionary("gpt"), make_dictionary("vit")])


def asked(server, path, **body):
    return server.client.post(f"/api/features/{path}", json=body)


def test_the_list_and_a_feature_are_those_of_the_dictionary(server, make_dictionary):
    dictionary = regard.load(make_dictionary("gpt"))
    found = server.client.get("/api/features").json()  # without a name, the first dictionary
    known = {each.number: each for each in dictionary.contexts.features if each.contexts}
    assert {each["number"] for each in found["features"]} == known.keys() and found["reads_text"]
    assert found["place"] == "decoder.0.residual" and "/" not in found["model"]
    number = found["features"][0]["number"]
    told = server.client.get(f"/api/features/{number}").json()
    assert told["largest"] == known[number].largest
    assert [each["values"] for each in told["contexts"]] == [each.values for each in known[number].contexts]
    assert [tuple(each) for each in told["outputs"]["raised"]] == dictionary.outputs(number).raised


def test_a_feature_at_a_value_changes_the_answer_as_intervene_does(server, make_dictionary):
    dictionary = regard.load(make_dictionary("gpt"))
    changes = list[bool]()
    for feature in [each for each in dictionary.contexts.features if each.contexts][:6]:
        for value in (0.0, 300.0):
            own = dictionary.answers_in(feature.number, 0, value)
            found = asked(server, "change", number=feature.number, context=0, value=value).json()
            assert (found["whole"], found["changed"]) == own
            changes.append(own[0] != own[1])
    assert any(changes)
    found = asked(server, "change", number=feature.number, text="the owl", value=300.0).json()
    assert (found["whole"], found["changed"]) == dictionary.answers("the owl", feature.number, 300.0)


def test_the_features_of_a_text(server, make_dictionary):
    found = asked(server, "active", text="the fox saw").json()
    units, active = regard.load(make_dictionary("gpt")).active("the fox saw", 40)
    assert found["tokens"] == units.tokens
    assert [each["number"] for each in found["features"]] == [each.number for each in active]
    assert found["features"][0]["values"] == pytest.approx(active[0].values)


def test_a_name_is_kept_in_the_file_beside_the_weights(server, make_dictionary):
    folder = make_dictionary("gpt")
    assert asked(server, "name", number=3, name=" the owl ").json() == {"name": "the owl"}
    assert json.loads((folder / "names.json").read_text()) == {"3": "the owl"}
    assert asked(server, "name", number=3, name="").json() == {"name": ""}
    assert json.loads((folder / "names.json").read_text()) == {}


def test_images_come_with_their_contexts_and_no_client_names_a_file(server, make_dictionary, tmp_path):
    model = "features-of-vit"
    found = server.client.get("/api/features", params={"model": model}).json()
    number = found["features"][0]["number"]
    told = server.client.get(f"/api/features/{number}", params={"model": model}).json()
    assert not found["reads_text"] and told["images"].keys() == {each["example"] for each in told["contexts"]}
    changed = asked(server, "change", model=model, number=number, context=0, value=0.0).json()
    assert (changed["whole"], changed["changed"]) == regard.load(make_dictionary("vit")).answers_in(number, 0, 0.0)
    for path, more in (("active", {}), ("change", {"number": number, "value": 0.0})):
        refused = asked(server, path, model=model, text="/etc/passwd", **more)
        assert refused.status_code == 400 and "reads no texts" in refused.json()["error"]


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("change", {"number": 99, "value": 0.0, "context": 0}, "there is no feature 99; there are 0 to 23"),
        ("change", {"number": 0, "value": 0.0, "context": 50}, "there is no context 50 of feature 0"),
        ("change", {"number": 0, "value": 0.0}, "give a text, or the number of a context"),
        ("name", {"number": 0, "name": "x" * 201}, "at most 200"),
        ("active", {"text": "the owl", "model": "transformer"}, "there is no model 'transformer'"),
    ],
)
def test_wrong_requests_are_told_in_a_line(path, body, says, server):
    refused = asked(server, path, **body)
    assert 400 <= refused.status_code < 500 and says in refused.json()["error"]


def test_a_server_that_does_not_train_writes_no_names(start_server, make_dictionary):
    server = start_server([make_dictionary("gpt")], training=False)
    refused = asked(server, "name", number=3, name="the owl")
    assert refused.status_code == 403 and "the owl" not in regard.load(make_dictionary("gpt")).names.values()


def test_other_models_are_no_dictionaries(start_server, translator_folder):
    server = start_server([translator_folder])
    assert "no dictionary of features here" in server.client.get("/api/features").json()["error"]
    named = server.client.get("/api/features", params={"model": translator_folder.name}).json()
    assert named["error"] == f"{translator_folder.name} is no dictionary of features"
