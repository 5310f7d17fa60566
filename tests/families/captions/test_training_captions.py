"""Captioners learn: runs resume exactly, every variant trains, bodies start from classifiers, bad data are named."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from regard.checkpoints import load_model, newest_complete
from regard.cli.main import run
from regard.errors import CheckpointError, ConfigError
from regard.training.hard_attention import BASELINE
from regard.training.loop import train
from regard.training.metrics_log import read_metrics
from regard.training.recipe.load import load_recipe, open_task
from regard.training.safeguards import SignalError
from regard.training.updates import Updates

SMALL = (
    'body="resnet",body_values={stem="small",stem_width=8,block="basic",widths=[8,16],depths=[1,1]},image_size=16,'
    "embedding=12,width=16,heads=2,ffn_width=24,dropout=0.1,"
)
COMMON = [
    "data.scenes.count=40", "data.scenes.valid_count=12", "data.scenes.test_count=6", "training.device=cpu",
    "training.steps=6", "training.warmup=2", "training.batch=8", "training.validate_every=3",
    "training.checkpoint_every=6", "training.validate_images=5", "training.log_every=2", "training.ema=0.9",
]  # fmt: skip
VARIANTS = {
    "soft": 'decoder="lstm",depth=2',
    "none": 'decoder="gru",attention="none"',
    "hard": 'attention="hard"',
    "straight-through": 'attention="hard",estimator="straight_through",expected=0.0',
    "transformer": 'decoder="transformer",depth=2',
}


def tiny(variant, *sets):
    model = f'model={{name="captioner",{SMALL}{VARIANTS[variant]}}}'
    return load_recipe("scenes-captioner", [model, *COMMON, "training.coverage=0.5", "decoding.max_length=8", *sets])


@pytest.mark.parametrize(
    "variant", ["hard", *(pytest.param(n, marks=pytest.mark.full) for n in ("soft", "transformer"))]
)
def test_a_run_that_was_cut_ends_like_one_that_was_not(tmp_path, monkeypatch, variant):
    recipe = tiny(variant)
    train(recipe, tmp_path / "whole")
    original = Updates.backward

    def backward(self, *arguments):
        if self.progress.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Updates, "backward", backward)
        with pytest.raises(SignalError):
            train(recipe, tmp_path / "cut")
    train(recipe, tmp_path / "cut", resume=True)
    whole, cut = (
        load_file(newest_complete(tmp_path / name) / "train_state" / "state.safetensors") for name in ("whole", "cut")
    )
    assert whole.keys() == cut.keys() and (f"carried/{BASELINE}" in whole) == (variant == "hard")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert {"tokenizer.json", "preprocessor_config.json"} <= {file.name for file in (tmp_path / "cut").iterdir()}


@pytest.mark.parametrize("variant", ["none", "straight-through"])
def test_every_variant_trains_and_measures_its_captions(tmp_path, variant):
    out = train(tiny(variant), tmp_path / "run")
    measured = [row for row in read_metrics(out / "metrics.jsonl") if "cider" in row]
    assert measured and all({"loss", "bleu4", "cider", "exact"} <= row.keys() for row in measured)


def test_several_captions_of_an_image_share_its_grid(tmp_path):
    recipe = tiny("soft")
    task = open_task(recipe, tmp_path / "data", torch.device("cpu"), lambda: None)
    torch.manual_seed(0)
    model = task.build().eval()
    images, words = torch.randn(2, 3, 16, 16), torch.randint(3, 20, (4, 5))
    together, _ = model(images, words)
    apart = [model(images[row // 2 : row // 2 + 1], words[row : row + 1])[0] for row in range(4)]
    torch.testing.assert_close(together, torch.cat(apart), atol=1e-5, rtol=1e-4)


def test_a_body_starts_from_a_classifier(tmp_path):
    shape = 'stem="small",stem_width=8,block="basic",widths=[8,16],depths=[1,1]'
    body = f'model={{name="resnet",{shape},image_size=16,classes=6}}'
    common = [each for each in COMMON if "validate_images" not in each]
    classifier = train(load_recipe("scenes-vit", [body, *common, "training.steps=2"]), tmp_path / "classifier")
    recipe = tiny("soft", f"model.body_init={classifier}")
    assert recipe.resolved().model.body_init == str(classifier)
    task = open_task(recipe, tmp_path / "data", torch.device("cpu"), lambda: None)
    given, begun = load_model(classifier).model.state_dict(), task.build().body.state_dict()
    assert begun and all(torch.equal(given[name], begun[name]) for name in begun)
    wrong = tiny("soft", f"model.body_init={classifier}", "model.body_values.widths=[8,24]")
    with pytest.raises(CheckpointError, match="does not fit"):
        open_task(wrong, tmp_path / "data", torch.device("cpu"), lambda: None).build()
    with pytest.raises(ConfigError, match="has no body"):
        load_recipe("scenes-vit", ["model.body_init=somewhere"])


def test_mirrored_scenes_are_refused():
    with pytest.raises(ConfigError, match="left and a right"):
        load_recipe("scenes-captioner", ["augmentation.flip=0.5"])


@pytest.fixture
def flickr(tmp_path):
    """Four captioned images in a folder and a table beside it."""
    (tmp_path / "images").mkdir()
    rng, lines = np.random.default_rng(0), []
    for number in range(4):
        Image.fromarray(rng.integers(256, size=(20, 30, 3), dtype=np.uint8)).save(tmp_path / "images" / f"{number}.png")
        lines += [f"{number}.png\t{which}\tA dog , number {number} , runs {which} times ." for which in range(2)]
    (tmp_path / "captions.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


def of_files(flickr, *sets):
    model = f'model={{name="captioner",{SMALL}decoder="lstm"}}'
    data = f'data={{train="{flickr}/captions.tsv",split=1}}'
    wanted = [each for each in COMMON if "scenes" not in each]
    return load_recipe("scenes-captioner", [model, data, *wanted, "training.batch=2", "training.captions=2", *sets])


def test_files_of_captions_are_learnt_from(flickr):
    task = open_task(of_files(flickr), flickr / "data", torch.device("cpu"), lambda: None)
    assert "3 images with 6 captions; 1 for validation" in task.summary
    _, batch = next(iter(task.batches({})))
    assert batch.inputs.shape == batch.labels.shape and len(batch.labels) == 2 * len(batch.rows)
    said = [task.corpus.tokenizer.decode(row[real].tolist()) for row, real in zip(batch.labels, batch.labels_mask)]  # noqa: B905
    row = int(batch.rows[0])
    assert sorted(said[:2]) == [f"a dog number {row} runs {which} times" for which in range(2)]
    assert (batch.inputs[:, 0] == task.pad).all() and torch.equal(batch.inputs[:, 1:2], batch.labels[:, :1])


@pytest.mark.parametrize("bad", ["damaged", "extra", "missing"])
def test_bad_images_and_captions_are_named(flickr, bad, capsys):
    match bad:
        case "damaged":
            (flickr / "images" / "1.png").write_bytes(b"no image at all")
        case "extra":
            (flickr / "images" / "9.png").write_bytes((flickr / "images" / "1.png").read_bytes())
        case "missing":
            (flickr / "images" / "1.png").unlink()
    file = flickr / "recipe.toml"
    file.write_text(of_files(flickr).to_toml())
    assert run(["train", str(file), "--out", str(flickr / "run")]) == 1
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1 and {"damaged": "1.png", "extra": "9.png", "missing": "1.png"}[bad] in complaint
    assert "data.skip_bad = true" in complaint and not (flickr / "run" / "data").exists()
    task = open_task(of_files(flickr, "data.skip_bad=true"), flickr / "data", torch.device("cpu"), lambda: None)
    assert "; 1 left out, the first: " in task.summary and len(task.corpus.skipped) == 1


def test_annotations_of_another_format_are_refused(flickr, capsys):
    (flickr / "captions.json").write_text(json.dumps({"images": [], "annotations": [], "categories": []}))
    box = {"image_id": 1, "bbox": [0, 0, 1, 1]}
    boxes = {"images": [{"id": 1, "file_name": "0.png"}], "annotations": [box]}
    (flickr / "boxes.json").write_text(json.dumps(boxes))
    (flickr / "labels.tsv").write_text("sentence\tlabel\nfine\t1\n")
    for name, words in (("captions.json", "has no caption"), ("boxes.json", "not COCO's JSON of captions"),
                        ("labels.tsv", "line 1"), ("nowhere.tsv", "no such file")):  # fmt: skip
        recipe = of_files(flickr, f"data.train={flickr / name}", f"data.train_images={flickr / 'images'}")
        (flickr / "recipe.toml").write_text(recipe.to_toml())
        assert run(["train", str(flickr / "recipe.toml"), "--out", str(flickr / Path(name).stem)]) == 1
        complaint = capsys.readouterr().err
        assert complaint.count("\n") == 1 and words in complaint, complaint
