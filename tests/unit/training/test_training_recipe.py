"""Recipes: the shipped ones are valid, and errors say what to do."""

from pathlib import Path

import pytest

from regard.config import known_keys
from regard.errors import ConfigError, UsageError
from regard.families.translation.recipe import TranslationRecipe
from regard.training.recipe.files import recipe_names
from regard.training.recipe.load import load_recipe

OWN = ("data.train=a.tsv", "data.source=en", "data.target=es")
SMALL = {"data": {"train": "a.tsv", "source": "en", "target": "es"}}


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_is_valid_and_survives_toml(name, tmp_path):
    own = [*OWN] if name.startswith(("pairs-", "adapt")) else []
    own += ["model={name='transformer',init='x'}", "decoding.beam=5"] if name == "adapt" else []
    recipe = load_recipe(name, own)
    for version in (recipe, recipe.resolved()):
        (tmp_path / "again.toml").write_text(version.to_toml(), encoding="utf-8")
        assert load_recipe(tmp_path / "again.toml") == version


@pytest.mark.parametrize(
    ("change", "nearest"),
    [
        ("training.warm_up=3", "training.warmup"),
        ("training.learning_rate=3", "training.lr"),  # not the most similar one with "training."
        ("trainin.steps=3", "training"),
        ("data.trian=x", "data.train"),
        ("tokenizer.sise=3", "tokenizer.size"),
        ("decoding.beams=3", "decoding.beam"),
        ("model.widht=64", "model.width"),
        ("model.name=transfomer", "transformer"),
        ("model.preset=smal", "small"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(change, nearest):
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        load_recipe("phrasebook", [change])


def test_a_name_like_no_other_is_answered_with_those_of_its_table():
    with pytest.raises(ConfigError, match=r"unknown key 'training.zzzz'; known keys: training\.\w+(, training\.\w+)+$"):
        load_recipe("phrasebook", ["training.zzzz=3"])


def test_an_unknown_recipe_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'phrasebook'"):
        load_recipe("phrasebok")
    with pytest.raises(UsageError, match="no recipe file"):
        load_recipe(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_recipe(tmp_path / "bad.toml")


def test_sets_are_toml_values_and_bare_words_are_strings():
    recipe = load_recipe(
        "phrasebook",
        [
            "training.lr=3e-4", "training.compile=true", "data.train=../some/where.tsv", 'data.target=["es", "fr"]',
            "model.width=64", "model.heads = 2", 'training.device="cpu"', "seed=7",
        ],
    )  # fmt: skip
    assert (recipe.training.lr, recipe.training.compile, recipe.training.device) == (3e-4, True, "cpu")
    assert (recipe.data.train, recipe.data.targets, recipe.seed) == ("../some/where.tsv", ["es", "fr"], 7)
    assert recipe.model.overrides["width"] == 64


@pytest.mark.parametrize("change", ["training.lr", "=3", "training..lr=3", "seed.x=1"])
def test_a_malformed_set_is_refused(change):
    with pytest.raises(UsageError, match="--set"):
        load_recipe("phrasebook", [change])


def test_wrong_values_are_named():
    with pytest.raises(ConfigError, match=r"training\.steps.*'many'"):
        load_recipe("phrasebook", ["training.steps=many"])
    with pytest.raises(ConfigError, match="width"):
        load_recipe("phrasebook", ["model.width=wide"])


def test_preset_values_yield_to_the_recipe():
    model = TranslationRecipe.parse({**SMALL, "model": {"name": "transformer", "preset": "tiny", "heads": 2}}).model
    config = model.config(source_vocab=50, target_vocab=60, pad=0)
    assert (config.width, config.heads, config.source_vocab, config.target_vocab) == (128, 2, 50, 60)
    assert model.resolved().overrides["width"] == 128
    assert model.resolved().config(source_vocab=50, target_vocab=60, pad=0) == config


def test_vocabulary_sizes_come_from_the_tokenizer():
    with pytest.raises(ConfigError, match="comes from the tokenizer"):
        TranslationRecipe.parse({**SMALL, "model": {"name": "transformer", "source_vocab": 10}})


def test_tables_by_target_language():
    data = {"train": {"es": "a", "pt": "b"}, "valid": "c", "source": "en", "target": ["es", "pt"]}
    section = TranslationRecipe.parse({"data": data}).data
    assert [section.path("train", target) for target in ("es", "pt")] == ["a", "b"]
    assert (section.path("valid", "pt"), section.path("test", "pt")) == ("c", "")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"train": {"es": "a"}, "source": "en", "target": ["es", "pt"]}, "no path for"),
        ({"train": {"es": "a", "de": "b"}, "source": "en", "target": "es"}, "names"),
        ({"train": "a", "source": "en", "target": "en"}, "its own target"),
        ({"train": "a", "source": "en", "target": ["es", "es"]}, "several different"),
        ({"train": "a", "source": "en", "target": []}, "several different"),
    ],
)
def test_data_that_does_not_hold_together_is_refused(data, message):
    with pytest.raises(ConfigError, match=message):
        TranslationRecipe.parse({"data": data})


def test_training_that_does_not_hold_together_is_refused():
    with pytest.raises(ConfigError, match="only 3 checkpoints are kept"):
        TranslationRecipe.parse({**SMALL, "training": {"average": 5, "keep": 3}})
    with pytest.raises(ConfigError, match="validate_sentences"):
        TranslationRecipe.parse({**SMALL, "training": {"metric": "bleu", "validate_sentences": 0}})


def test_every_key_is_documented():
    page = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text(encoding="utf-8")
    sections = {
        "model",
        "data",
        "data.filters",
        "data.phrasebook",
        "data.variants",
        "tokenizer",
        "training",
        "decoding",
    }
    assert [key for key in known_keys(TranslationRecipe) if key not in sections and f"| `{key}` |" not in page] == []


def test_a_recipe_has_the_values_of_its_base_where_it_has_none_of_its_own(tmp_path):
    plain, guided = load_recipe("multi30k-en-de-rnn"), load_recipe("multi30k-en-de-rnn-guided")
    assert (plain.training.guide, guided.training.guide) == (0.0, 0.1)
    assert guided.training.model_copy(update={"guide": 0.0}) == plain.training and guided.data == plain.data
    (tmp_path / "first.toml").write_text('base = "phrasebook-rnn"\ntakes = "an hour"\n[model]\nwidth = 64\n')
    (tmp_path / "second.toml").write_text('base = "first.toml"\n[training]\nsteps = 7\n')
    found = load_recipe(tmp_path / "second.toml", ["seed=5"])
    assert (found.model.overrides["width"], found.model.preset, found.training.steps, found.seed) == (64, "small", 7, 5)
    assert found.takes == "" and found.tokenizer == load_recipe("phrasebook-rnn").tokenizer


def test_a_base_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "one.toml").write_text('base = "other.toml"\n')
    (tmp_path / "other.toml").write_text('base = "one.toml"\n')
    with pytest.raises(ConfigError, match="leads back to the recipe itself"):
        load_recipe(tmp_path / "one.toml")
    (tmp_path / "number.toml").write_text("base = 3\n")
    with pytest.raises(ConfigError, match="expected the name of a recipe"):
        load_recipe(tmp_path / "number.toml")
    (tmp_path / "lost.toml").write_text('base = "phrasebok-rnn"\n')
    with pytest.raises(UsageError, match="did you mean 'phrasebook-rnn'"):
        load_recipe(tmp_path / "lost.toml")


def test_models_of_the_length_figure_differ_in_attention_alone():
    attending, fixed = load_recipe("phrasebook-rnn"), load_recipe("phrasebook-rnn-fixed")
    assert (attending.training, attending.tokenizer, attending.data) == (fixed.training, fixed.tokenizer, fixed.data)
    differences = set(attending.resolved().model.overrides.items()) ^ set(fixed.resolved().model.overrides.items())
    assert differences == {("attention", "additive"), ("attention", "none")}


def test_a_folder_to_start_from_takes_the_place_of_the_recipe_s_preset() -> None:
    assert load_recipe("pairs-transformer", [*OWN, "model.init=x"]).model.preset == ""
    assert load_recipe("pairs-transformer", [*OWN, "model.init="]).model.preset == "small"
    with pytest.raises(ConfigError, match=r"the shape comes from model\.init"):
        load_recipe("pairs-transformer", [*OWN, "model.init=x", "model.preset=tiny"])
