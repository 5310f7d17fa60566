"""Neurons and the logit lens in reports: against recorded scores and the model's own logits, in JSON and in pages."""

import base64
import json
import re
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.attention import record
from regard.attention.places import record_activations
from regard.families.captions.view import caption_report
from regard.families.catalog import MODELS
from regard.families.folding.data import pad_inputs
from regard.families.navigation.synthetic import built_in_house
from regard.families.proteins.data import InteractionSettings, ProteinPairs
from regard.families.proteins.pipeline import InteractionPredictor
from regard.look.inspection import GivenInput, inspect_input, inspect_text
from regard.look.page import MAX_NEURONS, page_neurons, render_page
from regard.look.report import from_json, to_json
from tiny_speech import tiny_recognizer


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    return path


def softmax(scores):
    shares = np.exp(scores - scores.max())
    return shares / shares.sum()


def check(panel):
    """The softmax of the scores that neurons add up to is a row of the panel."""
    heads, rows, columns = panel.weights.shape
    rng = np.random.default_rng(1)
    for head, row in {(int(rng.integers(heads)), int(rng.integers(rows))) for _ in range(6)}:
        last = row + 1 if panel.kind == "causal" else columns
        found = [panel.neurons.at(head, row, column) for column in range(last)]
        assert all(each is not None for each, weight in zip(found, panel.weights[head, row], strict=False) if weight)
        seen = [column for column in range(last) if panel.weights[head, row, column] > 0]  # others are masked
        weights = softmax(np.array([found[column].score for column in seen]))
        shares = panel.weights[head, row, seen]  # less what goes to the padding of windows
        np.testing.assert_allclose(weights, shares / shares.sum(), atol=2e-4)


@pytest.mark.parametrize("kind", ["vit", "mvit", "resnet-local", "swin"])
def test_neurons_of_pictures_give_their_weights(kind, make_classifier, picture):
    panels = inspect_input(regard.load(make_classifier(kind)), GivenInput(picture)).report.panels
    assert panels
    for panel in panels:
        check(panel)


def test_places_of_different_windows_do_not_meet(make_classifier, picture):
    first, *_ = inspect_input(regard.load(make_classifier("swin")), GivenInput(picture)).report.panels
    window = first.queries.windows
    apart = next(place for place in range(len(window)) if window[place] != window[0])
    assert first.neurons.at(0, 0, apart) is None


@pytest.mark.parametrize("kind", ["soft", "heads"])
def test_neurons_of_captions_give_their_weights(kind, make_captioner, picture):
    captioner = regard.load(make_captioner(kind))
    (caption,) = captioner.caption(picture)
    report = caption_report(captioner, picture, caption, "")
    assert {panel.neurons is not None for panel in report.panels} == {True}
    for panel in report.panels:
        check(panel)


def test_neurons_of_speech_are_those_of_the_decoder(tmp_path):
    samples = np.random.default_rng(0).normal(size=8000).astype(np.float32) / 10
    recognizer = tiny_recognizer(decoder_depth=1)
    seen = recognizer.attention(samples)
    (name,) = (each for each in seen.neurons if each.endswith("cross"))
    assert seen.neurons[name].queries.shape[2] == len(seen.tokens)
    rows = [
        softmax(np.array([seen.neurons[name].at(0, row, key).score for key in range(seen.weights[name].shape[2])]))
        for row in range(len(seen.tokens))
    ]
    np.testing.assert_allclose(np.stack(rows) if rows else 0, seen.weights[name][0] if rows else 0, atol=2e-4)


def test_neurons_of_a_speech_encoder_are_the_mean_scores_of_the_frames_of_a_token():
    samples = np.random.default_rng(0).normal(size=8000).astype(np.float32) / 10
    recognizer = tiny_recognizer()
    seen = recognizer.attention(samples)
    assert seen.tokens and seen.neurons.keys() == seen.weights.keys()
    features = recognizer._features([samples])
    with torch.inference_mode(), record(recognizer.model) as looks:
        recognizer.model(features.values, None, torch.tensor([[0]]))
    begins = [round(start / seen.seconds) for _, start, _, _ in seen.path]
    ends = [round(end / seen.seconds) for _, _, end, _ in seen.path]
    for name, neurons in seen.neurons.items():
        logs = looks[name][0].double().log().numpy()  # scores, but for one number in each row
        for token, (first, last) in enumerate(zip(begins, ends, strict=True)):
            for head in range(len(logs)):
                scores = np.array([neurons.at(head, token, key).score for key in range(logs.shape[2])])
                expected = logs[head, first:last].mean(axis=0)
                np.testing.assert_allclose(scores - scores[0], expected - expected[0], atol=2e-3)


def test_neurons_of_a_house_are_those_of_its_panels(make_navigator):
    start = built_in_house(1, 0).viewpoints[0]
    given = GivenInput(f"builtin:houses#0@{start}", "house", "walk to the kitchen", {})
    report = inspect_input(regard.load(make_navigator("vlnbert")), given).report
    assert report.panels and all(panel.neurons is not None for panel in report.panels)
    for panel in report.panels:
        check(panel)


def described_again(report):
    """The report that is read from its JSON."""
    return from_json(json.loads(json.dumps(to_json(report))))


@pytest.mark.parametrize("changes", [{}, {"decoder": "autoregressive"}, {"agent_aware": False}])
def test_neurons_of_agents_give_their_weights(changes, make_forecaster):
    forecaster = regard.load(make_forecaster(width=16, **changes))
    given = GivenInput("builtin:walkers#1", "scene", "", {"at": "200", "samples": "2"})
    report = inspect_input(forecaster, given).report
    assert {panel.name.split(".")[0] for panel in report.panels} == {"encoder", "decoder"}
    for panel in (*report.panels, *described_again(report).panels):
        check(panel)
        assert (panel.neurons.own is None) == (changes.get("agent_aware") is False)


@torch.inference_mode()
def test_tokens_of_one_agent_have_a_query_and_key_of_their_own(make_forecaster):
    forecaster = regard.load(make_forecaster(width=16, norm="post"))
    (answer,) = forecaster.forecast("builtin:walkers#1", at=200.0, samples=1)
    layer = forecaster.model.encoder.layers[0].attention
    with record_activations(forecaster.model, "encoder.layers.0.input") as kept:
        seen = forecaster.attention(answer)
    x, steps = kept["encoder.layers.0.input"][0], forecaster.config.past
    for asking, asked, query, key in ((1, 2, layer.own_query, layer.own_key), (1, steps + 2, layer.query, layer.key)):
        found = seen.neurons["encoder.layers.0.attention"].at(1, asking, asked)
        for place, projection, vector in ((asking, query, found.query), (asked, key, found.key)):
            expected = projection(x[place]).numpy()[len(vector) :]
            np.testing.assert_allclose(vector, expected[: len(vector)], atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_neurons_of_residues_give_their_weights_and_mean_scores_of_triangles(rows, make_folder_of_structures):
    predictor = regard.load(make_folder_of_structures())
    (protein,) = predictor.read("AELMQKRHGN")
    given = replace(protein, rows=np.repeat(protein.rows, rows, axis=0))
    seen = predictor.attention(given)
    assert seen.neurons.keys() == seen.weights.keys()
    inputs = pad_inputs([given], predictor.settings.rows)
    with torch.inference_mode(), record(predictor.model, "*.starting.attention") as looks:
        predictor.model(*inputs, recycles=0)
    for name, weights in seen.weights.items():
        if name.endswith("starting.attention"):
            logs = looks[name].double().log().numpy()  # of the pairs i, j to the pairs i, k: scores, but for one number
            for i, k in ((0, 3), (4, 1)):
                found = [seen.neurons[name].at(1, i, each).score for each in (0, k)]
                assert found[1] - found[0] == pytest.approx((logs[i, 1, :, k] - logs[i, 1, :, 0]).mean(), abs=1e-3)
        elif not name.endswith("ending.attention"):
            scores = np.array([[seen.neurons[name].at(1, i, k).score for k in range(10)] for i in range(10)])
            shares = np.stack([softmax(row) for row in scores])
            np.testing.assert_allclose(shares, weights[1], atol=2e-4)


def test_a_chain_of_many_residues_has_neurons_of_some_layers(make_folder_of_structures, monkeypatch):
    predictor = regard.load(make_folder_of_structures())
    (protein,) = predictor.read("AELMQKRHGN")
    whole = predictor.attention(protein).neurons
    most = sum(
        each.size for name, each in whole.items() if not name.endswith(("starting.attention", "ending.attention"))
    )
    monkeypatch.setattr("regard.families.folding.pipeline.MOST_NEURONS", most)
    some = predictor.attention(protein)
    assert 0 < len(some.neurons) < len(some.weights) and sum(each.size for each in some.neurons.values()) <= most


def test_neurons_of_two_proteins_give_their_weights():
    torch.manual_seed(0)
    entry = MODELS["interactor"]
    model = entry.model(entry.config.parse(entry.presets["tiny"]))
    torch.nn.init.normal_(model.query)
    known = ProteinPairs(["a", "b"], ["MKL", "MSV"], np.array([[0, 1]]), np.array([1]))
    predictor = InteractionPredictor(model, InteractionSettings.of(known, "pairs", 0.1, 0.1))
    report = inspect_input(predictor, GivenInput(b"MKLV" * 16, "a", "MSTAGKVIKACDEFGHI" * 6)).report
    assert {panel.name.rpartition(".")[0] for panel in report.panels} == set(predictor.attention("MK", "LV").weights)
    for panel in (*report.panels, *described_again(report).panels):
        check(panel)


def test_neurons_of_texts_are_in_json_and_in_pages(translator_folder, gpt_folder, make_encoder):
    for folder in (translator_folder, gpt_folder, make_encoder("masked")):
        to = {"to": "es"} if folder == translator_folder else {}
        report = inspect_text(regard.load(folder), "one two three", **to).report()
        for panel in report.panels:
            check(panel)
        for ours, theirs in zip(described_again(report).panels, report.panels, strict=True):
            np.testing.assert_allclose(ours.neurons.queries, theirs.neurons.queries, atol=1e-5)
            check(ours)
        one = report.panels[0].head(1)
        assert one.neurons.at(0, 0, 0).score == pytest.approx(report.panels[0].neurons.at(1, 0, 0).score)
        page = render_page(report)
        for number, each in enumerate(page_neurons(report)):
            (packed,) = re.findall(rf'id="neurons-{number}">([^<]*)<', page)
            integers = np.frombuffer(zlib.decompress(base64.b64decode(packed)), "<i2")
            queries = integers[: np.prod(each.form["shapes"][0])].reshape(each.form["shapes"][0])
            known = report.panels[number].neurons
            np.testing.assert_allclose(queries * each.form["units"][0], known.queries, atol=1e-4)


def test_a_page_leaves_out_more_neurons_than_it_can_hold(gpt_folder, monkeypatch):
    report = inspect_text(regard.load(gpt_folder), "one two three").report()
    assert sum(panel.neurons.size for panel in report.panels) < MAX_NEURONS
    monkeypatch.setattr("regard.look.page.MAX_NEURONS", 10)
    assert page_neurons(report) == [None] * len(report.panels)
    assert 'id="neurons-0"' not in render_page(report)


@torch.inference_mode()
def test_the_logit_lens_ends_with_what_the_model_says(
    gpt_folder, translator_folder, make_encoder, make_classifier, picture
):
    writer = regard.load(gpt_folder)
    inspection = inspect_text(writer, "one two three")
    lens = inspection.logit_lens(3)
    assert list(lens.layers) == ["decoder.0", "decoder.1"] and lens.places == inspection.axes["target"].labels()
    for place, (said, known) in enumerate(zip(lens.layers["decoder.1"], inspection.predict(top=3), strict=True)):
        assert [each.token for each in said] == [each.token for each in known.choices], place
        assert [each.probability for each in said] == pytest.approx(
            [each.probability for each in known.choices], abs=1e-4
        )
    assert lens.layers["decoder.0"] != lens.layers["decoder.1"]
    translator = regard.load(translator_folder)
    spoken = inspect_text(translator, "we are eating bread", to="es")
    best = translator.log_probabilities(spoken.title, spoken.answer, to="es").argmax(dim=-1).tolist()
    last = list(spoken.logit_lens(1).layers.values())[-1]
    assert [row[0].token for row in last] == translator.tokenizer.target.pieces(best)
    encoder = regard.load(make_encoder("masked"))
    hidden = inspect_text(encoder, "one [MASK] three")
    place, top = hidden.predict(top=1)[0].place, list(hidden.logit_lens(1).layers.values())[-1]
    assert top[place][0].token == hidden.predict(top=1)[0].choices[0].token
    classifier = regard.load(make_classifier("vit"))
    report = inspect_input(classifier, GivenInput(picture)).report
    (label,) = list(report.logit_lens.layers.values())[-1]
    assert (label[0].token, label[0].probability) == (
        classifier.classify(picture)[0].label, pytest.approx(classifier.classify(picture)[0].probability, abs=1e-4)
    )  # fmt: skip
    assert from_json(to_json(report)).logit_lens.to_json() == report.logit_lens.to_json()
