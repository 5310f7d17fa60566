"""`regard plan`: what can be planned, what is printed, and the figures of the papers and lectures."""

import json

import pytest

from regard.checkpoints import save_model
from regard.cli.main import run
from regard.errors import ConfigError, UsageError
from regard.families.catalog import MODELS
from regard.plan.plan import LECTURES, count_parameters, make_plan


def test_the_paper_base_model_has_65_million_parameters():
    # Vaswani 2017, table 3: 65 million with a shared vocabulary of about 37,000
    plan = make_plan("transformer:base", sets=["tokenizer.size=37000", "model.tie=all"])
    assert plan.parameters == pytest.approx(65e6, rel=0.04)


@pytest.mark.parametrize(
    ("what", "millions"),
    [("bert:base", 110), ("bert:large", 336), ("bert:roberta", 125), ("bert:albert", 12), ("bert:distilbert", 66),
     ("gpt:gpt2", 124), ("gpt:gpt2-medium", 355), ("gpt:gpt2-large", 774), ("gpt:gpt2-xl", 1558),
     ("gpt:llama-7b", 6738), ("t5:small", 60), ("t5:base", 220), ("t5:large", 738)],
)  # fmt: skip
def test_published_models_have_the_parameters_their_authors_count(what, millions):
    # Devlin 2019, Liu 2019, Lan 2020, Sanh 2019; Radford 2019 as released; Touvron 2023; Raffel 2020
    assert count_parameters(what) == pytest.approx(millions * 1e6, rel=0.03)


@pytest.mark.parametrize(
    ("what", "parameters"),
    [
        ("vit:b-16", 86_567_656),  # as timm, torchvision and transformers count them, with 1000 classes
        ("swin:t", 28_288_354),
        ("resnet:50", 25_557_032),
        ("mvit:v2-s", 34_870_216),  # for images; the video model of 16 x 224 differs only in its patches and head
    ],
)
def test_models_of_pictures_have_their_published_size_and_their_words(what, parameters, capsys):
    assert make_plan(what).parameters == parameters
    assert run(["plan", what, "--batch", "3"]) == 0
    text = capsys.readouterr().out
    assert "a batch of 3 images of 224 x 224 pixels" in text and "sentence" not in text


def test_pixels_are_the_tokens_of_a_picture_that_is_read_as_a_text():
    plan = make_plan("fashion-mnist-igpt")
    assert (plan.batch, plan.target_length) == (128, 784)
    assert {(m.queries, m.keys) for m in plan.measured.matrices} == {(784, 784)}
    assert make_plan("fashion-mnist-igpt", sets=["data.size=14"]).target_length == 196
    assert make_plan("gpt:igpt-small").target_length == 1024  # Chen 2020: 32 x 32
    assert make_plan("gpt:gpt2").target_length == make_plan("tinyshakespeare-gpt").target_length == 32
    assert make_plan("fashion-mnist-igpt", target_length=10).target_length == 10


def test_windows_are_shown(capsys):
    assert run(["plan", "swin:tiny"]) == 0
    assert "4 windows, 2 x 49 x 49" in capsys.readouterr().out


@pytest.mark.parametrize("what", [f"{name}:{next(iter(entry.presets))}" for name, entry in MODELS.items()])
def test_every_model_of_the_catalogue_can_be_planned(what, capsys):
    tokens = MODELS[what.partition(":")[0]].config.model_fields.keys() & {"vocab", "source_vocab"}
    sets = ["training.batch=20"] if not tokens else ["tokenizer.size=500", "training.batch_tokens=640"]
    options = ["--source-length", "32", "--target-length", "32", *(word for each in sets for word in ("--set", each))]
    assert run(["plan", what, "--json", *options]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["batch"] == 20
    assert not tokens or 500 in (planned["config"].get("vocab"), planned["config"].get("target_vocab"))


def test_memory_counts_weights_gradients_two_moments_and_what_is_alive():
    plan = make_plan("transformer:tiny", batch=2, source_length=5, target_length=6, sets=["training.ema=0.9"])
    weights = 4 * plan.parameters
    words, width, tokens = plan.config.target_vocab, plan.config.width, 2 * 6
    memory = plan.memory
    temporary = memory.pop("temporary")
    assert memory == {
        "weights": weights,
        "gradients": weights,
        "optimizer": 2 * weights,
        "average": weights,
        "activations": plan.measured.activations,
    }
    # The loss: logits, log-probabilities, and the gradients of both factors; few enough to be computed at once.
    assert temporary == pytest.approx(4 * (2 * tokens * words + words * width + 2 * tokens * width), rel=0.05)


def test_a_recipe_a_preset_and_a_folder_can_be_planned(tmp_path):
    from_recipe = make_plan("phrasebook", sets=["tokenizer.size=500", "training.batch_tokens=640"])
    assert (from_recipe.config.source_vocab, from_recipe.batch) == (500, 20)
    assert make_plan("seq2seq:small").config.width == MODELS["seq2seq"].presets["small"]["width"]

    model = MODELS["transformer"].model(from_recipe.config)
    save_model(tmp_path / "model", "transformer", model)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"never read")
    assert make_plan(str(tmp_path / "model")).config == from_recipe.config


def test_mistakes_are_explained(tmp_path):
    with pytest.raises(UsageError, match="batch is 0"):
        make_plan("transformer:tiny", batch=0)
    with pytest.raises(ConfigError, match="'smal' is not one of transformer; did you mean 'small'"):
        make_plan("transformer:smal")
    with pytest.raises(UsageError, match="trained model"):
        make_plan(str(tmp_path), sets=["model.width=8"])


def test_the_lectures_figures():
    pixels, patches_16, patches_14, full, windows = LECTURES
    assert (pixels.entries, pixels.nbytes, pixels.total_bytes) == (128**4, 2**30, 768 * 2**30)
    assert patches_16.entries == 14**4 == 38_416
    assert round(patches_16.nbytes / 2**10) == 150
    assert int(patches_16.total_bytes / 2**20) == 112
    assert (patches_14.entries, patches_14.nbytes, patches_14.total_bytes) == (65_536, 256 * 2**10, 192 * 2**20)
    assert full.entries == 56**4 == 9_834_496
    assert windows.entries == 7**2 * 56 * 56
    assert full.entries == 64 * windows.entries


def test_the_command_prints_text_and_json(capsys):
    assert run(["plan", "transformer:tiny", "--json", "--batch", "2"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["memory"]["total"] == sum(v for k, v in planned["memory"].items() if k != "total")
    assert planned["parameters"] == sum(part["parameters"] for part in planned["parts"].values())

    assert run(["plan", "transformer:tiny"]) == 0
    assert f"{planned['parameters']:,} parameters" in capsys.readouterr().out
    assert run(["plan", "lectures"]) == 0
    text = capsys.readouterr().out
    assert all(figure in text for figure in ("768 GB", "38,416", "150.1 KB", "112.5 MB", "192 MB", "9,834,496"))


def test_an_encoder_folder_can_be_planned(make_encoder):
    folder = make_encoder("masked")
    plan = make_plan(str(folder), batch=2, source_length=8)
    assert plan.name == "bert" and plan.parameters > 0


def test_a_step_can_be_predicted_and_a_cluster_planned(capsys):
    assert run(["plan", "vit:tiny", "--batch", "2", "--time", "--rounds", "1", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["step"]["predicted"] == pytest.approx(sum(planned["kinds"].values()))
    assert {"product", "attention", "elementwise", "update", "launch"} <= planned["kinds"].keys()

    assert run(["plan", "gpt:gpt2", "--target-length", "1024", "--batch", "8", "--gpus", "1024"]) == 0
    text = capsys.readouterr().out
    assert "1 Ttokens on 1,024 GPUs: 119,210 steps of 8,388,608 tokens" in text and "sharded (FSDP2)" in text


def test_mistakes_about_a_cluster_are_explained(capsys):
    assert run(["plan", "gpt:nano", "--gpus", "8", "--cluster", "wires=3"]) == 2
    assert "wire" in capsys.readouterr().err
    assert run(["plan", "gpt:nano", "--cluster", "wire=3"]) == 2
    assert "--gpus" in capsys.readouterr().err
    assert run(["plan", "gpt:nano", "--gpus", "8", "--tokens", "0"]) == 2
    assert "'--tokens': Input should be greater than or equal to 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "batch"),
    [
        ("vilbert:tiny", "3 texts of 9 tokens with 5 regions each"),
        ("vlnbert:tiny", "3 texts of 9 tokens with 5 steps each"),
        ("path_lstm:tiny", "3 texts of 9 tokens with paths of 5 steps"),
        ("agentformer:tiny", "3 scenes of 9 agents"),
        ("conformer:tiny", "3 recordings of 9 frames with 5 tokens"),
        ("bert:tiny", "3 texts of 9 tokens"),
        ("gpt:tiny", "3 texts of 5 tokens"),
        ("transformer:tiny", "3 sentences of 9 source and 5 target tokens"),
    ],
)
def test_a_plan_says_what_the_model_reads(what, batch, capsys):
    assert run(["plan", what, "--batch", "3", "--source-length", "9", "--target-length", "5"]) == 0
    shown = capsys.readouterr().out
    assert f"a batch of {batch}\n" in shown
    assert ("decoding one sentence" in shown) == (what in ("gpt:tiny", "transformer:tiny"))


def test_a_recipe_whose_data_are_still_to_be_named_is_planned_as_with_data(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    data = [f"data.train={tmp_path / 'pairs.tsv'}", "data.source=en", "data.target=es"]
    sets = ["model.preset=tiny", "tokenizer.size=300"]
    assert count_parameters("pairs-transformer") > 1e6
    for recipe in ("pairs-transformer", "pairs-rnn"):
        alone, named = (make_plan(recipe, sets=[*sets, *more], batch=2) for more in ([], data))
        assert alone.to_json() == named.to_json()


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["training.stepz=3"], "unknown key 'training.stepz'; did you mean 'training.steps'"),
        (["decoding.bem=3"], "'decoding.bem'; did you mean 'decoding.beam'"),
        (["data.source=en"], "data.train must be given"),
    ],
)
def test_a_recipe_without_data_is_checked_like_others(sets, says):
    with pytest.raises(UsageError, match=says):
        make_plan("pairs-transformer", sets=sets, batch=2)
