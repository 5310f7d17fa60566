"""Every number of every configuration is validated before a model is built: it is refused in one line, or it works."""

import math
import types
from typing import Union, get_args, get_origin

import pytest

from regard.checkpoints.models import outline
from regard.cli.main import run
from regard.config import Config
from regard.errors import ConfigError
from regard.families.catalog import MODELS, TASKS
from regard.training.recipe.files import recipe_names
from regard.training.recipe.load import load_recipe

SIZES = {"vocab": 8, "source_vocab": 8, "target_vocab": 8}
WHOLE, BROKEN = (0, -1, 1, 3), (-1.0, math.nan, math.inf, -math.inf)
SEVERAL = ((), (0,), (-1, 2), (3, 5), (7, 7, 7))
MAY_BE_NEGATIVE = {"length_penalty", "presence_penalty", "frequency_penalty"}


def kinds(annotation: object) -> set[type]:
    """The plain types of a field, without limits and None."""
    if get_origin(annotation) in (Union, types.UnionType):
        return set().union(*(kinds(each) for each in get_args(annotation)))
    origin = get_origin(annotation) or annotation
    return {origin} if isinstance(origin, type) else set()


def values_for(annotation: object) -> tuple[object, ...]:
    found = kinds(annotation)
    if tuple in found:
        return SEVERAL
    return (*WHOLE, *BROKEN) if found & {int, float} else ()


def attempt(name: str, key: str, value: object) -> Config | None:
    """The configuration of a tiny model with one value changed, or None if it is refused in one line."""
    entry = MODELS[name]
    sizes = {each: size for each, size in SIZES.items() if each in entry.config.model_fields}
    try:
        return entry.config.parse({**entry.presets["tiny"], **sizes, key: value}, section="model")
    except ConfigError as error:
        message = str(error)
    assert "\n" not in message and message.startswith(("model.", "unknown key")), (key, value, message)
    return None


@pytest.mark.parametrize("name", MODELS)
def test_what_a_configuration_lets_pass_can_be_built(name):
    entry = MODELS[name]
    for key, field in entry.config.model_fields.items():
        for value in values_for(field.annotation):
            config = attempt(name, key, value)
            if isinstance(value, float) or value in (-1, (0,), (-1, 2)):
                assert config is None, f"{name}: {key} = {value} was accepted"
            if config is None or (name == "t5" and key in SIZES):  # T5's two vocabularies are one
                continue
            if name == "sagan":  # it computes the norms of its matrices
                entry.model(config)
            else:
                outline(name, config)


@pytest.mark.parametrize("name", MODELS)
def test_every_preset_is_valid(name):
    for preset, values in MODELS[name].presets.items():
        sizes = {key: size for key, size in SIZES.items() if key in MODELS[name].config.model_fields}
        assert MODELS[name].config.parse({**values, **sizes}, where=preset)


@pytest.mark.parametrize("task", TASKS)
def test_numbers_of_recipes_are_checked(task):
    """Every number of every section, including [decoding]: none may be infinite, and hardly any negative."""
    name = next(
        each for each in recipe_names() if not each.startswith(("pairs", "adapt")) and load_recipe(each).task == task
    )
    for section, field in TASKS[task].recipe.model_fields.items():
        inner = next((each for each in kinds(field.annotation) if issubclass(each, Config)), None)
        fields = {f"{section}.{key}": each for key, each in inner.model_fields.items()} if inner else {section: field}
        for key, each in fields.items():
            if section == "model" or not kinds(each.annotation) & {int, float}:
                continue
            for value in ("nan", "inf", "-inf") if key.split(".")[-1] in MAY_BE_NEGATIVE else ("nan", "inf", "-1"):
                if value == "-1" and key == "decoding.seed":
                    continue
                with pytest.raises(ConfigError) as error:
                    load_recipe(name, [f"{key}={value}"])
                assert key in str(error.value) and "\n" not in str(error.value)


WRONG = (
    ("phrasebook", "model.heads=3", "model.heads = 3: must divide width = 128 evenly"),
    ("phrasebook", "model.dropout=2", "model.dropout = 2: should be less than 1"),
    ("phrasebook", "model.width=-8", "model.width = -8: should be greater than 0"),
    ("phrasebook", "model.positions=rotary --set model.heads=128", "rotary positions need an even width"),
    ("scenes-vit", "model.heads=7", "model.heads = 7: must divide width = 64 evenly"),
    ("scenes-segmentation", "model.body_values.heads=[3,4]", "model.body_values.heads[0] = 3: must divide"),
    ("phrasebook", "model.init=x --set model.preset=tiny", "model.preset = 'tiny': the shape comes from model.init"),
    ("scenes-segmentation", "model.init=x", "model.init = 'x': is not for task 'segmentation'"),
    ("phrasebook", "training.betas=[0.9,1.5]", "training.betas = 1.5: should be less than 1"),
    ("phrasebook", "seed=-1", "seed = -1: should be greater than or equal to 0"),
    ("phrasebook", "decoding.beam=100000", "decoding.beam = 100000: should be less than or equal to 1024"),
)


@pytest.mark.parametrize("verb", ["train", "plan"])
@pytest.mark.parametrize(("recipe", "change", "words"), WRONG)
def test_the_command_line_refuses_them_and_writes_nothing(tmp_path, monkeypatch, capsys, verb, recipe, change, words):
    monkeypatch.chdir(tmp_path)
    assert run([verb, recipe, "--set", *change.split()]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())
