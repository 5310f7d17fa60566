"""Training on images: batches, losses and metrics against plain computations; runs resume bit for bit."""

import json
import math
import os
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from regard.checkpoints import load_model, newest_complete
from regard.data.images.augmentation import Augmentation
from regard.data.images.reading import Preprocessing, png, read_image
from regard.data.synthetic.shapes import scenes
from regard.errors import ConfigError, DataError
from regard.families.images.pipeline import ImageClassifier
from regard.families.images.task import FrechetJudge
from regard.training import image_task as images
from regard.training.loop import train
from regard.training.metrics_log import read_metrics
from regard.training.recipe.load import load_recipe, open_task
from regard.training.safeguards import SignalError
from regard.training.scores import frechet, mean_overlap
from regard.training.updates import Updates

COMMON = [
    "data.scenes.count=40", "data.scenes.valid_count=12", "data.scenes.test_count=6", "training.device=cpu",
    "training.steps=5", "training.warmup=2", "training.validate_every=3", "training.checkpoint_every=100",
    "training.log_every=2", "training.batch=16",
]  # fmt: skip
VIT = 'model={name="vit",preset="tiny",image_size=16,patch=4,width=16,heads=2,depth=2,ffn_width=24,classes=6}'
SWIN = (
    'model={name="swin",preset="tiny",image_size=16,patch=2,width=8,depths=[2],heads=[2],window=4,classes=6,'
    'stem="convolutions"}'
)
RESNET = 'model={name="resnet",preset="tiny",image_size=16,stem_width=8,widths=[8,16],depths=[1,1],classes=6}'
GPT = 'model={name="gpt",preset="igpt-tiny",width=16,heads=2,depth=2,max_length=256}'
SAGAN = 'model={name="sagan",preset="tiny",image_size=16,widths=[16,8],latent=8,attention_at=8,classes=6}'
SEGMENTER = (
    'model={name="segmenter",preset="tiny",image_size=16,width=8,classes=7,body="vit",body_preset="tiny",'
    "body_values={patch=4,width=16,heads=2,depth=1,ffn_width=16}}"
)
DETECTOR = (
    'model={name="detector",preset="tiny",image_size=32,width=8,'
    "body_values={stem='large',stem_width=8,widths=[8,8,16],depths=[1,1,1],norm='group'},"
    "proposals={sizes=[[8],[12],[20]],ratios=[1],sampled=16,train_before=20,train_after=20,before=20,after=10},"
    "regions={width=16,sampled=8}}"
)
MIXING = "augmentation={flip=0.5,shift=2,randaugment=1,erase=0.5,mixup=0.3,cutmix=1.0}"


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """The folder of a tiny residual network."""
    return train(load_recipe("scenes-vit", [*COMMON, RESNET]), tmp_path_factory.mktemp("judge") / "run")


def tiny(task, judge, *sets):
    changes = {
        "vit": ("scenes-vit", [VIT, MIXING, "training.label_smoothing=0.1", "training.ema=0.9"]),
        "resnet": ("scenes-vit", [RESNET, "training.ema=0.9"]),
        "swin": ("scenes-vit", [SWIN, "training.ema=0.9"]),
        "segmentation": ("scenes-segmentation", [SEGMENTER]),
        "detection": ("scenes-detector", [DETECTOR, "training.ema=0.9"]),
        "pixels": ("scenes-igpt", [GPT, "training.probe=20"]),
        "gan": ("fashion-mnist-sagan", [
            SAGAN, f"data={{train='scenes',judge='{judge}'}}", "training.validate_pictures=20", "training.ema=0.9",
        ]),
    }  # fmt: skip
    name, own = changes[task]
    return load_recipe(name, [*own, *COMMON, *sets])


def told(out):
    return [
        {key: value for key, value in row.items() if key not in ("seconds", "tokens_per_second", "waiting")}
        for row in read_metrics(out / "metrics.jsonl")
    ]


def task_of(recipe, folder):
    return open_task(recipe, folder, torch.device("cpu"), lambda: None)


@pytest.mark.parametrize(
    "task",
    [
        "resnet",
        "segmentation",
        "detection",
        "pixels",
        "gan",
        *(pytest.param(n, marks=pytest.mark.full) for n in ("vit", "swin")),
    ],
)
def test_a_run_that_was_cut_ends_like_one_that_was_not(tmp_path, monkeypatch, task, judge):
    recipe = tiny(task, judge)
    train(recipe, tmp_path / "whole")
    original = Updates.backward

    def backward(self, group, *arguments):
        if self.progress.step == 4 and group != "generator":  # once is enough
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, group, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Updates, "backward", backward)
        with pytest.raises(SignalError):
            train(recipe, tmp_path / "cut")
    train(recipe, tmp_path / "cut", resume=True)
    assert told(tmp_path / "whole") == told(tmp_path / "cut")
    whole, cut = (
        load_file(newest_complete(tmp_path / name) / "train_state" / "state.safetensors") for name in ("whole", "cut")
    )
    assert whole.keys() == cut.keys()
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert (tmp_path / "whole" / "preprocessor_config.json").is_file()


def test_a_run_begun_before_a_key_of_its_model_was_known_goes_on(tmp_path):
    recipe, file = tiny("vit", "", "training.steps=2"), tmp_path / "run" / "recipe.toml"
    train(recipe, tmp_path / "run")
    assert file.read_text().count('stem = "patches"\n') == 1
    file.write_text(file.read_text().replace('stem = "patches"\n', ""))
    train(tiny("vit", "", "training.steps=3"), tmp_path / "run", resume=True)
    assert 'stem = "patches"\n' in file.read_text()


def test_a_stem_of_convolutions_learns(tmp_path):
    recipe = tiny("swin", "")
    out, before = train(recipe, tmp_path / "run"), task_of(recipe, tmp_path / "data")
    torch.manual_seed(recipe.seed)
    first, trained = before.build().state_dict(), load_model(out).model.state_dict()
    stem = [name for name in trained if name.startswith("patches.projection.")]
    assert len(stem) == 14  # two convolutions with norms (6 each with what they measure), and a projection (2)
    assert not [name for name in stem if torch.equal(first[name], trained[name])]


def test_batches_do_not_depend_on_workers_or_on_where_pictures_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "RESIDENT", 0)
    logs = []
    for workers in (0, 2):
        out = tmp_path / f"{workers}"
        train(load_recipe("scenes-vit", [VIT, MIXING, *COMMON, f"training.workers={workers}"]), out)
        logs.append(told(out))
    assert logs[0] == logs[1]
    monkeypatch.undo()
    train(load_recipe("scenes-vit", [VIT, MIXING, *COMMON]), tmp_path / "resident")
    assert told(tmp_path / "resident") == logs[0]


def test_the_loss_is_the_cross_entropy_of_soft_labels(tmp_path):
    recipe = tiny("vit", "")
    task = task_of(recipe, tmp_path / "data")
    torch.manual_seed(0)
    model = task.build().eval()
    _, batch = next(task.batches({}))
    found = task.loss(model, batch)
    draws = torch.from_numpy(recipe.augmentation.draw(np.random.default_rng([recipe.seed, 0, 0]), len(batch.rows)))
    mixed = recipe.augmentation(task.train.pixels(batch).float() / 255, draws)
    labels = task.train.labels[batch.rows]
    expected = 0.0
    log_p = model(task.corpus.preprocessing.normalise(mixed.images)).log_softmax(dim=1)
    for i in range(len(labels)):
        target = torch.full((6,), 0.1 / 6)
        target[labels[i]] += 0.9 * mixed.share[i]
        target[labels[i - 1]] += 0.9 * (1 - mixed.share[i])
        expected -= (target * log_p[i]).sum()
    torch.testing.assert_close(found.total, expected)
    assert found.tokens == batch.tokens == len(labels)


def test_an_epoch_has_every_picture_once_in_batches_of_like_size(tmp_path):
    task = task_of(tiny("vit", "", "training.batch=17"), tmp_path / "data")
    plan = task.corpus.train.plan(17, seed=3, epoch=2)
    assert sorted(np.concatenate(plan)) == list(range(40))
    assert {len(rows) for rows in plan} <= {13, 14}


def test_mean_and_deviation_are_those_of_the_training_pictures(tmp_path):
    task = task_of(tiny("vit", ""), tmp_path / "data")
    pixels = np.stack([scene.pixels for scene in scenes(part="train", count=40, seed=1, size=16)]) / 255
    found = task.corpus.preprocessing
    assert found.mean == pytest.approx(pixels.mean(axis=(0, 2, 3)))
    assert found.std == pytest.approx(pixels.std(axis=(0, 2, 3)))


def test_measured_accuracy_is_that_of_the_published_model(tmp_path):
    out = train(tiny("resnet", ""), tmp_path / "run")
    rows = [row for row in told(out) if row["kind"] == "test"]
    classifier = ImageClassifier.load(out)
    drawn = list(scenes(part="test", count=6, seed=1, size=16))
    answers = classifier.classify([read_image(png(scene.pixels)) for scene in drawn])
    right = [answer.label == classifier.labels[scene.label] for answer, scene in zip(answers, drawn, strict=True)]
    assert rows[0]["accuracy"] == pytest.approx(np.mean(right))
    log_p = [math.log(answer.labels[classifier.labels[s.label]]) for answer, s in zip(answers, drawn, strict=True)]
    assert rows[0]["loss"] == pytest.approx(-np.mean(log_p), rel=1e-4)
    assert classifier.labels == ["circle", "square", "triangle", "cross", "ring", "diamond"]


@pytest.mark.parametrize("model", ["resnet", "swin"])
def test_what_batch_norms_measure_is_averaged_too(tmp_path, model):
    out = train(tiny(model, "", "training.validate_every=0"), tmp_path / "run")
    state = load_file(newest_complete(out) / "train_state" / "state.safetensors")
    averaged = [name.removeprefix("average/") for name in state if name.startswith("average/")]
    running = [name for name in averaged if name.endswith(("running_mean", "running_var"))]
    assert running and len(averaged) > len(running)
    published = load_file(out / "model.safetensors")
    assert all(torch.equal(published[name], state[f"average/{name}"]) for name in running)


def test_a_few_pictures_are_learnt_by_heart(tmp_path):
    out = train(
        load_recipe("scenes-vit", [
            VIT, *COMMON, "data.count=12", "augmentation={}", "training.steps=100", "training.lr=5e-3",
            "training.validate_every=0", "training.log_every=20", "training.schedule=constant",
        ]),
        tmp_path / "run",
    )  # fmt: skip
    assert [row["loss"] for row in told(out) if row["kind"] == "train"][-1] < 0.1


def test_pixels_are_predicted_from_those_before(tmp_path):
    task = task_of(tiny("pixels", ""), tmp_path / "data")
    torch.manual_seed(0)
    model = task.build().eval()
    _, batch = next(task.batches({}))
    tokens = task.palette.encode(task.train.pixels(batch))
    assert tokens.shape == (len(batch.rows), 256) and tokens.max() < task.start
    found = task.loss(model, batch)
    logits = model(torch.cat([torch.full((len(tokens), 1), task.start), tokens[:, :-1]], dim=1))
    expected = functional.cross_entropy(logits.transpose(1, 2), tokens, reduction="sum") / 256
    torch.testing.assert_close(found.total, expected)
    assert 0 <= task.validate(model, lambda: None)["accuracy"] <= 1


def test_the_phases_of_a_gan_update_their_own_network(tmp_path, judge):
    task = task_of(tiny("gan", judge), tmp_path / "data")
    torch.manual_seed(0)
    model = task.build().train()
    groups = task.parameters(model)
    assert {id(p) for group in groups.values() for p in group} == {id(p) for p in model.parameters()}
    _, batch = next(task.batches({}))
    seen = []
    for group, loss in task.phases(model, batch):
        gradients = torch.autograd.grad(loss.total, groups[group], allow_unused=True)
        assert any(each is not None and each.abs().sum() > 0 for each in gradients)
        others = torch.autograd.grad(loss.total, groups["generator"], allow_unused=True) if group == "critic" else ()
        assert all(each is None for each in others)
        seen.append(group)
    assert seen == ["critic", "generator"]
    assert (task.rate("critic"), task.rate("generator")) == (4.0, 1.0)


class Compiled(torch.nn.Module):
    """A stand-in for a torch.compile wrapper, which type checks cannot trace: calls the wrapped module."""

    def __init__(self, module):
        super().__init__()
        self.module, self.draw, self.critic = module, getattr(module, "draw", None), getattr(module, "critic", None)

    def forward(self, *arguments):
        return self.module(*arguments)


def test_both_networks_of_a_gan_are_compiled(tmp_path, monkeypatch, judge):
    compiled = []

    def compiling(module, **options):
        compiled.append(type(module).__name__)
        return Compiled(module)

    monkeypatch.setattr(torch, "compile", compiling)
    plain = train(tiny("gan", judge), tmp_path / "plain")
    assert not compiled
    again = train(tiny("gan", judge, "training.compile=true"), tmp_path / "compiled")
    assert compiled == ["Sagan", "Critic"]
    assert told(again) == told(plain)


def test_a_gan_leaves_a_sheet_of_pictures(tmp_path, judge):
    out = train(tiny("gan", judge), tmp_path / "run")
    sheet = read_image(out / "samples.png")
    assert sheet.size == (10 * 17 - 1, 10 * 17 - 1)
    assert all(row["frechet"] > 0 for row in told(out) if row["kind"] == "valid")


def test_completed_pictures_are_judged_and_left_on_a_sheet(tmp_path, judge):
    recipe = tiny("pixels", "", f"data.judge={judge}", "training.validate_pictures=8", "training.metric=frechet")
    out = train(recipe, tmp_path / "run")
    assert all(row["frechet"] > 0 for row in told(out) if row["kind"] in ("valid", "test"))
    sheet = read_image(out / "completions.png")
    assert sheet.size == (6 * 17 - 1, 10 * 17 - 1)
    pixels = np.asarray(sheet.convert("RGB"))
    given, whole = pixels[:16, :16], pixels[:16, 5 * 17 : 5 * 17 + 16]
    assert np.array_equal(given[:8], whole[:8]) and not given[8:].any()


def test_a_judge_finds_what_differs(judge):
    pictures = torch.from_numpy(np.stack([s.pixels for s in scenes(part="valid", count=60, seed=1, size=16)]))
    found = FrechetJudge(str(judge), 16, 3, torch.device("cpu"))
    assert found.distance(pictures.split(20), pictures.split(7)) == pytest.approx(0, abs=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        assert found.distance(pictures.split(20), [pictures]) == pytest.approx(0, abs=1e-6)
        rounded = found.distance([pictures[:30]], [pictures[30:]])
    assert rounded == pytest.approx(found.distance([pictures[:30]], [pictures[30:]]))
    noisy = (pictures.float() + 40 * torch.randn(pictures.shape)).clamp(0, 255).to(torch.uint8)
    near, far = found.distance([pictures[:30]], [pictures[30:]]), found.distance([pictures[:30]], [noisy[30:]])
    assert 0 < near < far
    with pytest.raises(ConfigError, match="reads images of 16 pixels and 3 channels; these have 28 and 1"):
        FrechetJudge(str(judge), 28, 1, torch.device("cpu"))


def test_some_pictures_are_taken_from_all_over(tmp_path):
    pictures = task_of(tiny("pixels", ""), tmp_path / "data").corpus.train
    assert pictures.spread(5).rows.tolist() == pictures.rows[::8].tolist()
    assert pictures.spread(100).rows.tolist() == pictures.rows.tolist()


def test_frechet_distances_of_known_normals():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(4000, 3))
    assert frechet(points, points) == pytest.approx(0, abs=1e-6)
    assert frechet(points, points + np.array([3, 0, 4])) == pytest.approx(25)
    scaled = points * [1, 2, 3]  # |m - n|² + Σ (σ - τ)² where both are diagonal
    expected = sum((np.std(points[:, i], ddof=1) * i) ** 2 for i in range(3))
    assert frechet(points, scaled) == pytest.approx(expected, rel=0.05)
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    assert frechet(points @ turn, scaled @ turn) == pytest.approx(frechet(points, scaled))
    assert frechet(points, scaled) == pytest.approx(frechet(scaled, points))


def test_mean_overlap_against_sets():
    rng = np.random.default_rng(0)
    true, guessed = rng.integers(0, 4, 500), rng.integers(0, 3, 500)
    table = np.zeros((5, 5), dtype=int)
    np.add.at(table, (true, guessed), 1)
    shares = [((true == c) & (guessed == c)).sum() / ((true == c) | (guessed == c)).sum() for c in range(4)]
    assert mean_overlap(table) == pytest.approx(np.mean(shares))  # the fifth class does not occur, so it does not count


@pytest.mark.parametrize(
    ("recipe", "sets", "words"),
    [
        ("scenes-vit", ["model.classes=5"], "model.classes is 5, but the images have 6"),
        ("scenes-vit", ["data.split=5"], "parts and labels of their own"),
        ("scenes-vit", ["data.train=nowhere"], "no file or folder"),
        ("scenes-vit", ["training.metric=iou"], "does not measure"),
        ("scenes-segmentation", ["data.train=somewhere"], "only data.train = 'scenes'"),
        ("scenes-segmentation", ["augmentation.mixup=0.2"], "mixup and cutmix are for task 'images'"),
        ("scenes-igpt", ["model.max_length=100"], "an image has 256 pixels"),
        ("scenes-igpt", ["training.metric=accuracy", "training.probe=0"], "set training.probe above 0"),
        ("scenes-igpt", ["training.metric=frechet"], "which a judge measures"),
        ("fashion-mnist-sagan", ["data.judge=''"], "data.judge must be given"),
        ("fashion-mnist-resnet", ["data.valid=x"], "both say what to validate on"),
    ],
)
def test_what_does_not_fit_together_is_refused_in_words(tmp_path, recipe, sets, words):
    def begin():
        task_of(load_recipe(recipe, [*COMMON, *sets]), tmp_path / "data").build()

    with pytest.raises((ConfigError, DataError), match=words):
        begin()


def write_folder_of_scenes(folder, count):
    for number, scene in enumerate(scenes(part="train", count=count, seed=9, size=20)):
        place = folder / scene.things[0].shape
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:04}.png").write_bytes(png(scene.pixels))


def test_a_folder_of_pictures_with_a_bad_one_is_learnt_from_and_the_bad_one_named(tmp_path):
    write_folder_of_scenes(tmp_path / "set", 60)
    (tmp_path / "set" / "ring" / "bad.jpg").write_text("no picture")
    sets = [VIT, *COMMON, f"data={{train='{tmp_path / 'set'}',split=12}}"]
    task = task_of(load_recipe("scenes-vit", sets), tmp_path / "data")
    assert "48 images of 6 classes; 12 for validation" in task.summary and "bad.jpg is no image" in task.summary
    held = np.bincount(task.corpus.valid.store.labels[task.corpus.valid.rows])
    assert held.tolist() == [2] * 6
    with pytest.raises(DataError, match="there are only 60"):
        task_of(load_recipe("scenes-vit", [*sets, "data.split=60"]), tmp_path / "other")


def test_a_trained_model_is_fine_tuned_with_its_own_preprocessing(tmp_path):
    first = train(load_recipe("scenes-vit", [VIT, *COMMON]), tmp_path / "first")
    write_folder_of_scenes(tmp_path / "set", 30)
    sets = ["model={name='vit'}", f"model.init={first}", f"data={{train='{tmp_path / 'set'}',split=6}}"]
    out = train(load_recipe("scenes-vit", [*sets, *COMMON, "training.lr=1e-9"]), tmp_path / "second")
    before, after = (load_model(folder).model.state_dict() for folder in (first, out))
    torch.testing.assert_close(before["encoder.0.attention.query.weight"], after["encoder.0.attention.query.weight"])
    assert Preprocessing.load(out, 16, 3) == Preprocessing.load(first, 16, 3)
    config = json.loads((out / "config.json").read_text())["regard"]["config"]
    assert config["class_names"] == sorted(config["class_names"])


def test_nothing_is_drawn_at_random_without_augmentation():
    assert np.array_equal(Augmentation().draw(np.random.default_rng(1), 3)[:, :2], np.ones((3, 2)))  # mixing weights
