"""Training on texts and regions: starting from other models, exact resume, recalls, and the commands on the result."""

import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import regard
from regard.checkpoints import newest_complete, save_model
from regard.cli.main import run
from regard.data.images.reading import Preprocessing, png
from regard.data.synthetic.shapes import scenes
from regard.data.tokenizers.training import VocabularyConfig, train_vocabulary
from regard.errors import ConfigError, DataError, UsageError
from regard.families.catalog import MODELS
from regard.families.language.bert import Bert, BertConfig
from regard.families.vision_language.model import PRESETS, Vilbert, VilbertConfig
from regard.training.loop import train
from regard.training.recipe.files import recipe_names
from regard.training.recipe.load import load_recipe, open_task
from regard.training.scores import recalls

TINY = (
    "model.preset=tiny", "model.width=32", "model.region_width=32", "model.link_width=32", "data.regions.side=4",
    "data.scenes.count=48", "data.scenes.valid_count=12", "data.scenes.test_count=6", "training.steps=6",
    "training.batch=8", "training.validate_every=3", "training.checkpoint_every=3", "training.workers=0",
    "training.device=cpu", "data.image_size=32",
)  # fmt: skip
VOCABULARY = VocabularyConfig.parse({"kind": "word", "min_frequency": 1})
TASKS = ("", "-retrieval", "-pointing", "-questions")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One small folder for each task; the others start from the pre-trained one."""
    root = tmp_path_factory.mktemp("vilbert")
    train(load_recipe("scenes-vilbert", TINY), root / "p")
    sizes = [each for each in TINY if not each.startswith("model.")]
    for task in TASKS[1:]:
        sets = [*sizes, f"model.init={root / 'p'}", "model.preset="]
        train(load_recipe(f"scenes-vilbert{task}", sets), root / f"p{task}")
    return root


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    (scene,) = scenes(part="test", count=1, seed=1, size=48)
    path = tmp_path_factory.mktemp("image") / "scene.png"
    path.write_bytes(png(scene.pixels))
    return path


def test_recalls_are_those_of_sorting():
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores, right = rng.normal(size=(12, 30)), rng.random((12, 30)) < 0.1
        right[:, 3] = True
        found = recalls(scores, right)
        for count in (1, 5, 10):
            best = np.argsort(-scores, axis=1)[:, :count]
            assert found[count] == np.mean([right[row, places].any() for row, places in enumerate(best)])
    assert recalls(np.zeros((4, 20)), np.eye(4, 20, dtype=bool)) == {1: 0.0, 5: 0.0, 10: 0.0}


@pytest.mark.parametrize("task", ["", "-retrieval"])
def test_a_run_continues_exactly(task, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(load_recipe(f"scenes-vilbert{task}", TINY), whole)
    train(load_recipe(f"scenes-vilbert{task}", [*TINY, "training.steps=3"]), cut)
    train(load_recipe(f"scenes-vilbert{task}", TINY), cut, resume=True)
    states = [load_file(newest_complete(out) / "train_state" / "state.safetensors") for out in (whole, cut)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_validation_does_not_depend_on_the_size_of_batches(trained, tmp_path):
    model, found = regard.load(trained / "p").model, []
    for batch in (3, 12):
        recipe = load_recipe("scenes-vilbert", [*TINY, f"training.batch={batch}"])
        task = open_task(recipe, tmp_path / "data", torch.device("cpu"), lambda: None)
        found.append(task.validate(model, lambda: None))
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_fine_tuning_starts_from_the_body_of_the_pretrained_model(trained):
    before = load_file(trained / "p" / "model.safetensors")
    for task in TASKS[1:]:
        after = load_file(trained / f"p{task}" / "model.safetensors")
        shared = [name for name in after if name in before and name.startswith(("links.", "words.encoder"))]
        assert shared and max((after[name] - before[name]).abs().max() for name in shared) < 0.01


def test_the_word_stream_starts_from_a_bert(tmp_path):
    tokenizer = train_vocabulary(["a large red circle above a small blue square"], VOCABULARY, "enclosed")
    config = BertConfig.parse({"vocab": tokenizer.size, "depth": 3, "width": 24, "heads": 2, "ffn_width": 40})
    save_model(tmp_path / "bert", "bert", Bert(config), tokenizer.save)
    sets = [each for each in TINY if not each.startswith("model.width")]
    recipe = load_recipe("scenes-vilbert", [*sets, f"words.init={tmp_path / 'bert'}", "training.steps=1",
                                            "model.word_links=[0,1]", "training.lr=1e-12"])  # fmt: skip
    train(recipe, tmp_path / "v")
    given, found = (load_file(tmp_path / name / "model.safetensors") for name in ("bert", "v"))
    torch.testing.assert_close(found["words.embedding.weight"], given["embedding.weight"])
    torch.testing.assert_close(
        found["words.encoder.1.feed_forward.up.weight"], given["encoder.1.feed_forward.up.weight"]
    )
    with pytest.raises(UsageError, match="expected a BERT"):
        train(load_recipe("scenes-vilbert", [*sets, f"words.init={tmp_path / 'v'}"]), tmp_path / "w")


def test_pairs_in_a_batch_have_the_scores_they_have_alone(trained, image):
    model, texts = regard.load(trained / "p-retrieval"), ["a circle", "a large red circle above a small blue square"]
    many = scenes(part="test", count=5, seed=2, size=48)
    regions = [model.regions(Image.fromarray(scene.pixels.transpose(1, 2, 0))) for scene in many]
    together = model.scores(regions, texts)
    for number, each in enumerate(regions):
        for place, text in enumerate(texts):
            assert model.scores([each], [text])[0, 0] == pytest.approx(together[number, place], abs=1e-5)


def test_the_verb_does_what_the_model_was_trained_for(trained, image, capsys):
    def lines(*arguments):
        assert run(["match", *map(str, arguments), "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    found = lines(image, "a red circle", "a blue square", "-m", trained / "p")
    assert [each["score"] for each in found] == sorted((each["score"] for each in found), reverse=True)
    assert all(each["probability"] == pytest.approx(1 / (1 + np.exp(-each["score"]))) for each in found)
    (pointed,) = lines(image, "the leftmost shape", "-m", trained / "p-pointing")
    left, top, right, bottom = pointed["box"]
    assert 0 <= left < right <= 1 and 0 <= top < bottom <= 1
    (answer,) = lines(image, "what colour is the ring", "-m", trained / "p-questions")
    assert 0 < answer["probability"] < 1
    (searched,) = lines("a circle", "--images", image.parent, "-m", trained / "p-retrieval")
    assert searched["image"] == str(image) and searched["probability"] is None


@pytest.mark.parametrize(
    ("task", "columns"),
    [
        ("", r"-?\d+\.\d{4}\t0\.\d{4}\tTEXT"),
        ("-retrieval", r"-?\d+\.\d{4}\t\tTEXT"),
        ("-pointing", r"0\.\d{4} 0\.\d{4} [01]\.\d{4} [01]\.\d{4}\t0\.\d{4}\tTEXT"),
        ("-questions", r"\w+\t[01]\.\d{4}\tTEXT"),
    ],
)
def test_the_columns_of_every_kind_of_model(task, columns, trained, image, capsys, monkeypatch):
    model, text = str(trained / f"p{task}"), "a red circle"
    assert run(["match", str(image), text, "-m", model]) == 0
    line = capsys.readouterr().out
    assert re.fullmatch(columns.replace("TEXT", text), line.removesuffix("\n"))
    for given, content in (([str(image)], f"{text}\n".encode()), (["-", text], image.read_bytes())):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert run(["match", *given, "-m", model]) == 0
        assert capsys.readouterr().out == line
    if task in ("", "-retrieval"):
        assert run(["match", text, "--images", str(image.parent), "-m", model]) == 0
        score, probability, _ = line.split("\t")
        assert capsys.readouterr().out == f"{score}\t{probability}\t{image}\t{text}\n"


def test_bad_images_of_a_folder_are_named_and_skipped_on_request(trained, image, tmp_path, capsys):
    (tmp_path / "good.png").write_bytes(image.read_bytes())
    (tmp_path / "bad.png").write_bytes(b"")
    command = ["match", "a circle", "--images", str(tmp_path), "-m", str(trained / "p")]
    assert run(command) == 1
    told = capsys.readouterr()
    assert "bad.png is empty" in told.err and len(told.out.splitlines()) == 1
    assert run([*command, "--skip-bad"]) == 0
    assert f"skipped 1 of 2 files: {tmp_path / 'bad.png'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["IMAGE", "a", "-m", "p-none"], "p-none"),
        (["IMAGE", "-m", "p"], "an image and at least one text"),
        (["none.png", "a", "-m", "p"], "no file"),
        (["IMAGE", " ", "-m", "p"], "says nothing"),
        (["IMAGE", "a " * 200, "-m", "p"], "tokens; the model reads 128"),
        (["a", "--images", "IMAGE", "-m", "p"], "is not a folder"),
        (["a", "--images", "FOLDER", "-m", "p-questions"], "trained to answer questions, not to match"),
    ],
)
def test_mistakes_are_one_line(arguments, says, trained, image, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    places = {"IMAGE": str(image), "FOLDER": str(image.parent)}
    arguments = [places.get(each, each) for each in arguments]
    arguments[-1] = str(trained / arguments[-1])
    assert run(["match", *arguments]) != 0
    complaint = capsys.readouterr().err
    assert says in complaint and complaint.count("\n") == 1


@pytest.mark.parametrize("task", TASKS)
def test_every_head_is_evaluated_and_looked_at(task, trained, image, tmp_path, capsys):
    assert run(["evaluate", "scenes", "-m", str(trained / f"p{task}"), "--count", "12", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert ("accuracy" in scores) == (task in ("-pointing", "-questions"))
    assert (
        run(["look", str(image), "the large shape", "-m", str(trained / f"p{task}"), "-o", str(tmp_path / "a.json")])
        == 0
    )
    report = json.loads((tmp_path / "a.json").read_text())
    panels = {panel["name"]: [report["axes"][axis]["kind"] for axis in panel["axes"]] for panel in report["panels"]}
    assert panels["links.0.words.cross"] == ["tokens", "boxes"] and panels["links.0.regions.cross"] == [
        "boxes",
        "tokens",
    ]
    assert report["shown_as"] == "boxes" and report["picture"]
    first = report["panels"][0]["name"]  # the layer that the head reads: words' last look does not reach a pointer
    assert first == ("links.1.regions.cross" if task == "-pointing" else "links.1.words.cross")


def test_mistakes_in_recipes_are_explained(trained, tmp_path):
    with pytest.raises(ConfigError, match="only 'scenes' has"):
        load_recipe("scenes-vilbert-pointing", ["data.train=captions.tsv"])
    with pytest.raises(ConfigError, match="leave words"):
        load_recipe("scenes-vilbert", ["model.init=x", "model.preset=", "words.init=y"])
    recipe = load_recipe("scenes-vilbert", [f"model.init={trained / 'p'}", "model.preset=", "data.regions.side=6"])
    with pytest.raises(ConfigError, match="was trained with other regions"):
        train(recipe, tmp_path / "out")


def test_every_recipe_has_the_regions_of_its_pretraining():
    """Otherwise fine-tuning could not start from it."""
    for name in recipe_names():
        if name.startswith("scenes-vilbert-"):
            assert load_recipe(name).data.regions == load_recipe("scenes-vilbert").data.regions


@pytest.mark.parametrize("head", ["none", "pretraining", "score", "point", "answer"])
def test_padding_changes_nothing(head):
    torch.manual_seed(0)
    model = Vilbert(VilbertConfig(vocab=20, width=16, heads=2, depth=2, ffn_width=16, max_length=12, region_features=6,
                                  region_width=24, region_heads=2, region_depth=2, region_ffn_width=16, link_width=8,
                                  link_heads=2, word_links=(0, 1), region_links=(0, 1), head=head)).eval()  # fmt: skip
    tokens, features, spots = torch.randint(20, (1, 5)), torch.randn(1, 3, 6), torch.rand(1, 3, 5)
    real = torch.ones(1, 5, dtype=torch.bool), torch.ones(1, 3, dtype=torch.bool)
    alone = model(tokens, real[0], features, spots, real[1])
    pad = torch.nn.functional.pad
    padded = model(pad(tokens, (0, 4), value=7), pad(real[0], (0, 4)), pad(features, (0, 0, 0, 2), value=3.0),
                   pad(spots, (0, 0, 0, 2), value=2.0), pad(real[1], (0, 2)))  # fmt: skip
    torch.testing.assert_close(padded.words[:, :5], alone.words, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(padded.regions[:, :3], alone.regions, atol=1e-5, rtol=1e-5)
    for mine, other in ((padded.logits, alone.logits), (padded.match, alone.match)):
        if mine is not None:
            mine = mine[:, :3] if head == "point" else mine
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)
    if head == "point":
        assert padded.logits.softmax(-1)[0, 3:].eq(0).all()
    if head in ("none", "point", "answer"):
        with pytest.raises(ConfigError, match="use one with head"):
            _ = alone.score


def test_captions_with_photographs_are_learnt_from_a_grid(tmp_path, capsys):
    (tmp_path / "x_images").mkdir()
    lines = []
    for number, scene in enumerate(scenes(part="train", count=12, seed=4, size=40)):
        (tmp_path / "x_images" / f"{number}.png").write_bytes(png(scene.pixels))
        lines += [f"{number}.png\t{place}\t{text}" for place, text in enumerate((scene.caption, f"Number {number} ."))]
    captions = tmp_path / "x_captions.tsv"
    captions.write_text("\n".join(lines) + "\n")
    sizes = [each for each in TINY if not each.startswith(("data.scenes", "data.image_size"))]
    grid = ["data.regions.rows=2", "data.regions.columns=2", f"data.train={captions}", f"data.valid={captions}"]
    grid += ["tokenizer.min_frequency=1", "training.precision=fp32"]
    train(load_recipe("flickr8k-vilbert", [*sizes, *grid]), tmp_path / "p")
    assert load_file(tmp_path / "p" / "model.safetensors")["masked.regions.weight"].shape[0] == 48  # features
    sets = [*(each for each in sizes if not each.startswith("model.")), *grid, f"model.init={tmp_path / 'p'}"]
    train(load_recipe("flickr8k-vilbert-retrieval", [*sets, "model.preset="]), tmp_path / "r")
    capsys.readouterr()
    for model in ("p", "r"):
        assert run(["evaluate", str(captions), "-m", str(tmp_path / model), "--json"]) == 0
        scores = json.loads(capsys.readouterr().out)
        assert (scores["images"], scores["texts"]) == (12, 24) and "chance, caption to image, recall@5" in scores
    (tmp_path / "x_images" / "3.png").write_text("no image")
    with pytest.raises(DataError, match=r"3\.png"):
        train(load_recipe("flickr8k-vilbert", [*sizes, *grid]), tmp_path / "bad")
    assert not (tmp_path / "bad" / "model.safetensors").exists()
    train(load_recipe("flickr8k-vilbert", [*sizes, *grid, "data.skip_bad=true"]), tmp_path / "skipped")
    assert "left out, the first" in capsys.readouterr().err


def test_regions_of_a_detector_travel_with_the_model(tmp_path, image):
    torch.manual_seed(0)
    entry = MODELS["detector"]
    detector = entry.model(entry.config.parse({**entry.presets["tiny"], "classes": 2, "class_names": ("a", "b")}))
    preprocessing = Preprocessing(size=(64, 64), resize=64, mean=(0.5,) * 3, std=(0.5,) * 3)
    save_model(tmp_path / "detector", "detector", detector, preprocessing.save)
    changes = ["data.regions.finder=detector", f"data.regions.detector={tmp_path / 'detector'}", "data.regions.most=3"]
    train(load_recipe("scenes-vilbert", [*TINY, *changes, "data.scenes.count=16"]), tmp_path / "p")
    (expected,) = regard.load(tmp_path / "detector").regions(image, 3)
    (tmp_path / "detector").rename(tmp_path / "away")  # the model folder has a copy
    model = regard.load(tmp_path / "p")
    found = model.regions(image)
    assert model.config.region_features == expected.features.shape[1] and model.config.region_classes == 3
    np.testing.assert_allclose(found.boxes[1:] * 48, expected.boxes, atol=0.01)
    np.testing.assert_allclose(found.features[1:], expected.features, atol=1e-2, rtol=1e-2)
    np.testing.assert_allclose(found.features[0], expected.features.mean(axis=0), atol=1e-2, rtol=1e-2)
    np.testing.assert_allclose(found.classes[1:].sum(axis=1), 1, atol=1e-5)
    with pytest.raises(ConfigError, match="belong together"):
        load_recipe("scenes-vilbert", ["data.regions.finder=detector"])


@pytest.mark.parametrize("name", ["resnet", "captioner"])
def test_cells_get_the_features_of_a_body_that_travels_with_the_model(tmp_path, image, name):
    torch.manual_seed(0)
    entry = MODELS[name]
    vocabulary = {"vocab": 8} if name == "captioner" else {}
    body = entry.model(entry.config.parse({**entry.presets["tiny"], **vocabulary, "image_size": 32})).eval()
    preprocessing = Preprocessing(size=(32, 32), resize=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    save_model(tmp_path / "body", name, body, preprocessing.save)
    changes = ["data.regions.finder=grid", "data.regions.rows=2", "data.regions.columns=2", "data.scenes.count=16"]
    train(load_recipe("scenes-vilbert", [*TINY, *changes, f"data.regions.body={tmp_path / 'body'}"]), tmp_path / "p")
    (tmp_path / "body").rename(tmp_path / "away")  # the model folder has a copy
    found, picture = regard.load(tmp_path / "p").regions(image), Image.open(image)
    assert found.boxes.tolist() == [
        [0, 0, 1, 1],
        [0, 0, 0.5, 0.5],
        [0.5, 0, 1, 0.5],
        [0, 0.5, 0.5, 1],
        [0.5, 0.5, 1, 1],
    ]
    pixels = (
        torch.from_numpy(np.array(picture.resize((32, 32), Image.Resampling.BILINEAR))).permute(2, 0, 1)[None] / 127.5
        - 1
    )
    with torch.inference_mode():
        coarsest = (body.body if name == "captioner" else body).features(pixels)[-1]
    half = coarsest.shape[2] // 2
    corner = coarsest[0, :, half:, :half].mean(dim=(1, 2))  # the third cell, below on the left
    expected = (corner - corner.mean()) / corner.std(unbiased=False)
    np.testing.assert_allclose(found.features[3], expected, atol=1e-2)
    sizes = [each for each in TINY if not each.startswith("model.")]
    with pytest.raises(ConfigError, match="other regions"):  # pixels in place of features
        train(
            load_recipe("scenes-vilbert", [*sizes, *changes, f"model.init={tmp_path / 'p'}", "model.preset="]),
            tmp_path / "q",
        )
    with pytest.raises(ConfigError, match="to 'grid'"):
        load_recipe("scenes-vilbert", [f"data.regions.body={tmp_path / 'away'}"])


def test_an_initial_gain_lets_words_read_places_from_the_start():
    def moved_by(gain):
        """How far the first word's vector moves with the place of a region."""
        torch.manual_seed(0)
        config = VilbertConfig.parse({"vocab": 20, **PRESETS["mini"], "head": "answer", "initial_gain": gain})
        model = Vilbert(config).eval()
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear) and layer.in_features >= 64 and layer is not model.feature:
                usual = 0.02 if gain is None else gain * layer.in_features**-0.5
                assert layer.weight.std().item() == pytest.approx(usual, rel=0.15)
        tokens, features, spots = torch.randint(20, (8, 6)), torch.randn(8, 3, 192), torch.rand(8, 3, 5)
        real = torch.ones(8, 6, dtype=torch.bool), torch.ones(8, 3, dtype=torch.bool)
        words = [model(tokens, real[0], features, each, real[1]).words[:, 0] for each in (spots, spots.roll(1, 0))]
        return (words[0] - words[1]).norm().item()

    assert moved_by(1.0) > 5 * moved_by(None)
