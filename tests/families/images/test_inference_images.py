"""Image pipelines: batches against single images, attention laid over the image by hand, generated images."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.attention import record
from regard.checkpoints import model_card, save_model
from regard.checkpoints.folder import new_folder
from regard.checkpoints.models import identify
from regard.data.images.reading import Preprocessing, png
from regard.errors import CheckpointError, DataError, UsageError
from regard.families.catalog import MODELS
from regard.families.conversion import convert
from regard.families.images.generation import ClassImageGenerator, Palette, PixelGenerator
from regard.families.images.pipeline import ImageAttention, ImageClassifier, ImageSegmenter, LayerAttention
from regard.families.images.view import inspect_classifier
from regard.families.images.vit import Vit, VitConfig
from regard.families.loading import use_line
from regard.look.inspection import GivenInput

KINDS = ("vit", "vit-mean", "vit-stem", "swin", "swin-stem", "mvit", "resnet", "resnet-local")
BLANK = np.zeros((3, 4, 4), dtype=np.uint8)


def pictures(count, side=18):
    noise = np.random.default_rng(0).integers(0, 256, (count, side, side + 3, 3), dtype=np.uint8)
    return [Image.fromarray(each) for each in noise]


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_are_the_models_own_and_a_batch_is_like_one(make_classifier, kind):
    classifier = regard.load(make_classifier(kind))
    assert isinstance(classifier, ImageClassifier)
    images = pictures(3)
    together, alone = classifier.classify(images), [classifier.classify(image)[0] for image in images]
    for one, other, image in zip(together, alone, images, strict=True):
        assert list(one.labels) == sorted(one.labels, key=lambda label: -one.labels[label])
        assert one.labels == pytest.approx(other.labels, abs=1e-5)
        pixels = torch.from_numpy(classifier.preprocessing.pixels(image))[None].float() / 255
        logits = classifier.model((pixels - 0.4) / 0.2)[0]
        assert [one.labels[name] for name in "abc"] == pytest.approx(logits.softmax(0).tolist(), abs=1e-5)


def test_files_bytes_and_pictures_are_the_same(make_classifier, tmp_path):
    classifier, image = regard.load(make_classifier("vit")), pictures(1)[0]
    image.save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    answers = classifier.classify([image, data, tmp_path / "a.png", str(tmp_path / "a.png")])
    assert all(answer == answers[0] for answer in answers)
    assert classifier.classify([]) == []
    with pytest.raises(DataError, match="no file"):
        classifier.classify(tmp_path / "b.png")


def test_an_image_smaller_than_a_patch_is_enlarged(make_classifier):
    assert regard.load(make_classifier("vit")).classify(Image.new("RGB", (2, 1)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "resnet"])
def test_attention_lies_on_the_map_and_sums_to_one(make_classifier, kind):
    classifier = regard.load(make_classifier(kind))
    seen = classifier.attention(pictures(1)[0])
    assert seen.pixels.shape[0] == 3 and seen.layers
    for layer in seen.layers:
        queries, keys = (each[0] * each[1] + layer.extra for each in (layer.queries, layer.keys))
        assert layer.weights.shape[1:] == (queries, keys)
        sums = layer.weights.sum(axis=2)
        assert (sums <= 1 + 1e-5).all()
        if not kind.startswith("swin"):  # Swin attends to the padding of incomplete windows
            np.testing.assert_allclose(sums, 1, atol=1e-5)


def test_a_vits_attention_is_the_recorded_one(make_classifier):
    classifier = regard.load(make_classifier("vit"))
    image = pictures(1)[0]
    x = classifier.preprocessing.normalise(torch.from_numpy(classifier.pixels(image))[None])
    with torch.no_grad(), record(classifier.model) as looks:
        classifier.model(x)
    seen = classifier.attention(image, layers="encoder.1.*")
    assert [layer.name for layer in seen.layers] == ["encoder.1.attention"]
    np.testing.assert_allclose(seen.layers[0].weights, looks["encoder.1.attention"][0].numpy(), atol=1e-6)
    assert (seen.layers[0].queries, seen.layers[0].extra) == ((4, 4), 1)


def test_in_swin_a_place_looks_only_within_its_window(make_classifier):
    seen = regard.load(make_classifier("swin")).attention(pictures(1)[0])
    plain, shifted = seen.layers[0], seen.layers[1]
    assert plain.queries == (10, 10)
    for layer, corner in ((plain, 0), (shifted, 2)):
        rows, columns = np.divmod(np.arange(100), 10)
        window = (rows + 4 - corner) // 4 * 10 + (columns + 4 - corner) // 4
        apart = window[:, None] != window[None, :]
        assert layer.weights[:, apart].max() == 0
        assert (layer.weights[:, ~apart] > 0).all()


def test_in_local_attention_a_pixel_looks_at_its_neighbours(make_classifier):
    layer = regard.load(make_classifier("resnet-local")).attention(pictures(1)[0]).layers[0]
    rows, columns = np.divmod(np.arange(14 * 14), 14)
    near = (abs(rows[:, None] - rows) <= 1) & (abs(columns[:, None] - columns) <= 1)
    assert layer.weights[:, ~near].max() == 0
    assert (layer.weights[:, near] > 0).all()


def test_rollout_is_the_product_of_half_mixed_layers():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(5), size=(3, 2, 5))
    layers = [LayerAttention(str(n), each, (2, 2), (2, 2), 1) for n, each in enumerate(weights)]
    found = ImageAttention(BLANK, layers).rollout()
    expected = np.zeros(5)
    expected[0] = 1.0  # a row vector that is multiplied down from the class token of the last layer
    for each in reversed(weights):
        expected = expected @ (0.5 * each.mean(axis=0) + 0.5 * np.eye(5))
    np.testing.assert_allclose(found.flatten(), expected[1:])
    coarse = LayerAttention("coarse", weights[0], (1, 4), (1, 4), 1)
    assert ImageAttention(BLANK, [*layers, coarse]).rollout() is not None
    other = LayerAttention("other", np.ones((1, 2, 2)) / 2, (1, 1), (1, 1), 1)
    assert ImageAttention(BLANK, [*layers, other]).rollout() is None


def test_models_that_cannot_are_told_so(make_classifier, make_encoder):
    with pytest.raises(UsageError, match="classifies no images"):
        ImageClassifier.load(make_encoder())
    with pytest.raises(UsageError, match="no attention to look at"):
        regard.load(make_classifier("resnet")).attention(pictures(1)[0])


@pytest.mark.parametrize("kind", ["vit", "swin"])
def test_a_folder_goes_to_hugging_face_and_back_with_its_preprocessing(make_classifier, kind, tmp_path):
    ours = regard.load(make_classifier(kind))
    convert(make_classifier(kind), tmp_path / "theirs", "huggingface")
    convert(tmp_path / "theirs", tmp_path / "back", "regard")
    for place in ("theirs", "back"):
        again = regard.load(tmp_path / place)
        assert again.preprocessing == ours.preprocessing
        assert again.labels == ours.labels
        assert again.classify(pictures(1))[0].labels == pytest.approx(ours.classify(pictures(1))[0].labels, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "extra"), [({}, 1), ({"registers": 4}, 5), ({"distillation": "token"}, 2), ({"pooler": True}, 1)]
)
def test_a_model_without_a_head_gives_vectors_and_attention(changes, extra, tmp_path):
    sizes = {"image_size": 16, "patch": 4, "width": 16, "heads": 2, "depth": 2, "ffn_width": 24}
    config = VitConfig.parse({**sizes, "classes": 0, **changes})
    preprocessing = Preprocessing(size=(16, 16), resize=16, mean=(0.4,) * 3, std=(0.2,) * 3)
    save_model(tmp_path / "model", "vit", Vit(config), preprocessing.save)
    reader = regard.load(tmp_path / "model")
    assert isinstance(reader, ImageClassifier)
    images = pictures(3)
    vectors = reader.embed(images)
    assert vectors.shape == (3, 16)
    np.testing.assert_allclose(vectors[1], reader.embed(images[1])[0], atol=1e-5)
    with pytest.raises(UsageError, match="model has no head and knows no classes; use `embed`"):
        reader.classify(images)
    seen = reader.attention(images[0])  # the tokens before the places are those that the model says
    assert [layer.extra for layer in seen.layers] == [extra] * 2
    assert {layer.keys for layer in seen.layers} == {(4, 4)}
    found = inspect_classifier(reader, GivenInput(images[0], "a"))
    assert len(found.report.panels) == 2 and found.report.meta == {"vector": "16 numbers"}


@pytest.mark.parametrize("kind", ["vit-stem", "swin-stem"])
def test_a_stem_of_convolutions_has_no_form_of_theirs(make_classifier, kind, tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot be exported: as .*, it has stem 'convolutions'"):
        convert(make_classifier(kind), tmp_path / "theirs", "huggingface")
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("kind", ["vit", "swin"])
def test_folders_that_say_nothing_of_a_stem_have_patches(make_classifier, kind, tmp_path):
    with new_folder(tmp_path / "old") as folder:
        shutil.copytree(make_classifier(kind), folder, dirs_exist_ok=True)
        values = json.loads((folder / "config.json").read_text())
        assert values["regard"]["config"].pop("stem") == "patches"
        (folder / "config.json").write_text(json.dumps(values))
    old, new = (regard.load(folder) for folder in (tmp_path / "old", make_classifier(kind)))
    assert old.classify(pictures(1)) == new.classify(pictures(1))


# The class of every pixel


@pytest.fixture(scope="module")
def segmenter_folder(tmp_path_factory):
    torch.manual_seed(0)
    values = {**MODELS["segmenter"].presets["tiny"], "classes": 3, "class_names": ("background", "cat", "dog")}
    place = tmp_path_factory.mktemp("segmenter") / "model"
    preprocessing = Preprocessing(size=(32, 32), resize=32, mean=(0.4,) * 3, std=(0.2,) * 3)
    save_model(place, "segmenter", MODELS["segmenter"].model(MODELS["segmenter"].config(**values)), preprocessing.save)
    return place


def test_every_pixel_has_the_class_of_its_largest_logit(segmenter_folder):
    segmenter = regard.load(segmenter_folder)
    assert isinstance(segmenter, ImageSegmenter)
    square, wide = pictures(1, side=32)[0].crop((0, 0, 32, 32)), pictures(2, side=40)[1]
    first, second = segmenter.segment([square, wide])
    pixels = torch.from_numpy(np.asarray(square).copy()).permute(2, 0, 1)[None].float() / 255
    with torch.inference_mode():
        logits = segmenter.model((pixels - 0.4) / 0.2)
    assert np.array_equal(first.mask, logits.argmax(1)[0].numpy())
    assert second.mask.shape == (40, 43)  # the size of the image, not of the model
    assert sum(first.shares.values()) == pytest.approx(1)
    for name, share in first.shares.items():
        assert share == np.mean(first.mask == ("background", "cat", "dog").index(name))
    assert segmenter.summary(square) == {name: f"{share:.0%}" for name, share in first.shares.items()}
    assert segmenter.attention(square).layers[0].queries == (16, 16)


def test_only_segmenters_name_pixels(make_classifier, segmenter_folder):
    with pytest.raises(UsageError, match="segments no images; expected a segmenter"):
        ImageSegmenter.load(make_classifier("vit"))
    with pytest.raises(UsageError, match="classifies no images"):
        ImageClassifier.load(segmenter_folder)


# Generated images


@pytest.fixture(scope="module")
def painter_folder(tmp_path_factory):
    torch.manual_seed(0)
    config = MODELS["gpt"].config(
        **{**MODELS["gpt"].presets["igpt-tiny"], "vocab": 4, "width": 16, "heads": 2, "depth": 1, "max_length": 16}
    )
    palette = Palette(torch.tensor([[0.0], [120.0], [250.0]]))
    place = tmp_path_factory.mktemp("painter") / "model"
    save_model(place, "gpt", MODELS["gpt"].model(config), lambda temporary: palette.save(temporary, 4))
    return place


def test_a_painter_keeps_the_upper_half_and_repeats(painter_folder, tmp_path):
    painter = regard.load(painter_folder)
    assert isinstance(painter, PixelGenerator)
    shades = np.array([0, 120, 250], dtype=np.uint8)[np.random.default_rng(0).integers(0, 3, (4, 4))]
    (tmp_path / "given.png").write_bytes(png(shades[None]))
    made = painter.paint(tmp_path / "given.png", count=3)
    assert made.shape == (3, 1, 4, 4)
    assert all(np.array_equal(each[0, :2].numpy(), shades[:2]) for each in made)
    assert torch.equal(made, painter.paint(tmp_path / "given.png", count=3))
    assert len({each.numpy().tobytes() for each in made}) > 1
    assert set(made.unique().tolist()) <= {0, 120, 250}
    assert painter.paint(count=2).shape == (2, 1, 4, 4)
    assert np.array_equal(painter.paint(tmp_path / "given.png", keep=1.0)[0, 0].numpy(), shades)
    with pytest.raises(UsageError, match="between 0 and 1"):
        painter.paint(keep=1.5)


def test_pictures_are_completed_together_as_they_are_one_by_one(painter_folder, tmp_path):
    painter = regard.load(painter_folder)
    shades = np.array([0, 120, 250], dtype=np.uint8)[np.random.default_rng(1).integers(0, 3, (5, 1, 4, 4))]
    together = painter.complete(torch.from_numpy(shades), keep=0.25)
    for number, each in enumerate(shades):
        (tmp_path / "given.png").write_bytes(png(each))
        assert torch.equal(together[number : number + 1], painter.paint(tmp_path / "given.png", keep=0.25))


def test_a_painters_pixel_looks_only_at_pixels_before_it(painter_folder, tmp_path):
    painter = regard.load(painter_folder)
    shades = np.array([0, 120, 250], dtype=np.uint8)[np.random.default_rng(0).integers(0, 3, (4, 4))]
    (tmp_path / "given.png").write_bytes(png(shades[None]))
    seen = painter.attention(tmp_path / "given.png")
    assert np.array_equal(seen.pixels[0], shades)
    (layer,) = seen.layers
    assert (layer.queries, layer.keys, layer.extra) == ((4, 4), (4, 4), 0)
    tokens = torch.tensor([[3, *np.searchsorted([0, 120, 250], shades.flatten())[:-1]]])
    with torch.inference_mode(), record(painter.model) as looks:
        painter.model(tokens)
    recorded = looks["decoder.0.attention"][0].numpy()
    for pixel in range(16):  # input number `pixel` predicts it; key 0 is the start token
        np.testing.assert_allclose(layer.weights[:, pixel, :pixel], recorded[:, pixel, 1 : pixel + 1], atol=1e-6)
        assert (layer.weights[:, pixel, pixel:] == 0).all()
    assert seen.rollout() is None


def test_a_palette_of_another_model_is_refused(painter_folder):
    painter = PixelGenerator.load(painter_folder)
    with pytest.raises(CheckpointError, match="knows 4 tokens"):
        PixelGenerator(painter.model, Palette(torch.zeros(9, 1)), 4)


@pytest.fixture(scope="module")
def maker_folder(tmp_path_factory):
    torch.manual_seed(0)
    config = MODELS["sagan"].config(
        image_size=16, widths=(16, 8), latent=8, attention_at=8, classes=2, class_names=("cat", "dog"), channels=1
    )
    place = tmp_path_factory.mktemp("maker") / "model"
    save_model(place, "sagan", MODELS["sagan"].model(config))
    return place


@pytest.mark.parametrize("kind", ["segmenter", "painter", "maker"])
def test_what_the_card_says_works(kind, request, tmp_path, monkeypatch):
    place = request.getfixturevalue(f"{kind}_folder")
    name, config, _ = identify(place)
    code = model_card(name, config, use=use_line(place, name, config)).split("```python\n")[1].split("```")[0]
    pictures(1)[0].save(tmp_path / "image.png")
    monkeypatch.chdir(tmp_path)
    found = {}
    exec(code.replace("path/to/this/folder", str(place)), found)
    assert kind == "segmenter" or found["images"].dtype == torch.uint8


def test_a_maker_of_pictures(maker_folder):
    maker = regard.load(maker_folder)
    assert isinstance(maker, ClassImageGenerator)
    made = maker.make(["cat", "dog", "dog"], seed=3)
    assert made.shape == (3, 1, 16, 16) and made.dtype == torch.uint8
    assert torch.equal(made, maker.make(["cat", "dog", "dog"], seed=3))
    assert not torch.equal(made, maker.make(["cat", "dog", "dog"], seed=4))
    seen = maker.attention("dog", seed=3)
    (layer,) = seen.layers
    assert (layer.queries, layer.keys, layer.extra) == ((8, 8), (4, 4), 0)
    np.testing.assert_allclose(layer.weights.sum(axis=2), 1, atol=1e-5)
    with pytest.raises(UsageError, match="no class 'cow'; it has cat, dog"):
        maker.make(["cow"])
