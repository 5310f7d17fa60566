"""Strict configuration: nothing is ignored, and every error says what to do."""

from typing import ClassVar

import pytest

from regard.config import Config, SavedConfig, known_keys, required_keys
from regard.errors import CheckpointError, ConfigError, with_article
from regard.families.catalog import MODELS


class Inner(Config):
    depth: int
    rate: float = 0.1


class Listed(Config):
    names: tuple[str, ...] = ()


class Outer(Config):
    name: str = "x"
    inner: Inner


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown key 'inner\.dept'.*'inner\.depth'"):
        Outer.parse({"inner": {"depth": 1, "dept": 2}})
    with pytest.raises(ConfigError, match=r"file\.toml: unknown key 'iner'; did you mean 'inner'"):
        Outer.parse({"inner": {"depth": 1}, "iner": {}}, where="file.toml")


def test_a_missing_key_is_named_with_its_section():
    with pytest.raises(ConfigError, match=r"inner\.depth must be given.*--set inner\.depth="):
        Outer.parse({})
    with pytest.raises(ConfigError, match=r"inner\.depth must be given"):
        Outer.parse({"inner": {}})


def test_a_wrong_value_is_shown():
    with pytest.raises(ConfigError, match=r"^inner\.depth = 'deep': should be a valid integer"):
        Outer.parse({"inner": {"depth": "deep"}})
    with pytest.raises(ConfigError, match=r"^f\.toml: outer\.inner\.depth = 'deep': should be a valid integer"):
        Outer.parse({"inner": {"depth": "deep"}}, where="f.toml", section="outer")
    with pytest.raises(ConfigError, match=r"""^names = 'deep': should be a list, such as \["deep"\]"""):
        Listed.parse({"names": "deep"})


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_every_number_is_finite(number: float):
    with pytest.raises(ConfigError, match=r"^inner\.rate = -?(nan|inf): should be a finite number"):
        Outer.parse({"inner": {"depth": 1, "rate": number}})


def test_keys_are_listed_and_configs_are_frozen():
    assert list(known_keys(Outer)) == ["name", "inner", "inner.depth", "inner.rate"]
    assert list(required_keys(Outer)) == ["inner.depth"]
    config = Outer.parse({"inner": {"depth": 1}})
    assert config.replace(name="y").name == "y"
    with pytest.raises(ConfigError, match="unknown key"):
        config.replace(nam="y")
    with pytest.raises(ValueError, match="frozen"):
        config.name = "z"


class Beside(SavedConfig):
    file_name: ClassVar[str] = "beside.json"
    count: int
    names: tuple[str, ...] = ()


def test_a_saved_configuration_is_read_as_it_was_written(tmp_path):
    Beside(count=3, names=("é", "b")).save(tmp_path)
    assert Beside.load(tmp_path) == Beside(count=3, names=("é", "b"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "has no beside.json"),
        ("{", "is not JSON"),
        ("[1]", "restore"),
        ('{"count": 1, "cuont": 2}', "cuont"),
        ('{"count": "many"}', "count"),
    ],
)
def test_a_file_beside_weights_that_is_missing_or_broken_is_named(content, words, tmp_path):
    if content is not None:
        (tmp_path / "beside.json").write_text(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        Beside.load(tmp_path)
    assert "beside.json" in str(caught.value)


def test_messages_name_every_model_with_its_article():
    """Read aloud: by its first sound, and letter by letter if the name is an abbreviation."""
    found = {with_article(name) for name in [*MODELS, "ImageCaptioner", "Translator", "unet"]}
    assert {"an ImageCaptioner", "a Translator", "a unet"} <= found
    with_an = {each.removeprefix("an ") for each in found if each.startswith("an ")} - {"ImageCaptioner"}
    assert with_an == {"agentformer", "elmo", "evoformer", "interactor", "lstm", "mvit"}
