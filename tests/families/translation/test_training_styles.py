"""Styles of translations: a column of the pairs becomes a tag, and a model obeys it."""

from pathlib import Path

import pytest

import regard
from regard.data.formats.languages import language_name, style_of, styled
from regard.data.formats.pairs import read_pairs
from regard.errors import DataError, UsageError
from regard.families.translation.translator import Translator
from regard.training.loop import train
from regard.training.recipe.load import load_recipe

NAMES = ["ana", "leo", "eva", "tom", "sol", "ivo", "noa", "max"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Transformer that saw every sentence in two styles, and some sentences without any."""
    place = tmp_path_factory.mktemp("styles")
    rows = list[tuple[str, str, str]]()
    for name in NAMES:
        rows += [
            (f"you see {name}", f"usted ve a {name}", "Formal"),
            (f"you see {name}", f"tú ves a {name}", "informal"),
        ]
        rows += [(f"i see {name}", f"veo a {name}", "")]
    lines = ["\t".join(row) + "\n" for row in [("en", "es", "register"), *rows * 4]]
    (place / "pairs.tsv").write_text("".join(lines), "utf-8")
    changes = [
        f"data.train={place / 'pairs.tsv'}", f"data.valid={place / 'pairs.tsv'}", "data.source=en", "data.target=es",
        "data.style=register", "tokenizer.kind=word", "tokenizer.size=60",
        "tokenizer.min_frequency=1", "model.preset=", "model.width=32", "model.heads=2", "model.ffn_width=32",
        "model.encoder_depth=1", "model.decoder_depth=1", "model.dropout=0", "training.steps=80", "training.lr=0.01",
        "training.warmup=10", "training.batch_tokens=256", "training.validate_every=80", "training.label_smoothing=0",
        "training.checkpoint_every=80", "training.device=cpu", "training.precision=fp32", "training.average=0",
    ]  # fmt: skip
    train(load_recipe("pairs-transformer", changes), place / "run")
    return place / "run"


def test_a_model_obeys_the_style_that_is_asked_for(folder: Path) -> None:
    translator = regard.load(folder)
    assert isinstance(translator, Translator)
    assert translator.tokenizer.target_languages == ("es", "es-x-formal", "es-x-informal")
    for name in NAMES:
        text = f"you see {name}"
        assert translator.translate(text, style="formal").text == f"usted ve a {name}"
        assert translator.translate(text, style="informal").text == f"tú ves a {name}"
        assert translator.translate(text).text in (f"usted ve a {name}", f"tú ves a {name}")
    with pytest.raises(UsageError, match="no style 'rude' for es: it knows formal, informal"):
        translator.translate("you see ana", style="rude")


def test_a_model_without_styles_refuses_them_in_a_line(translator_folder: Path) -> None:
    with pytest.raises(UsageError, match="no style 'formal' for es: it learnt none"):
        regard.load(translator_folder).translate("we eat", to="es", style="formal")


def test_styles_are_private_use_subtags_and_a_column_names_them(tmp_path: Path) -> None:
    assert styled("pt-br", "Formal") == "pt-br-x-formal" and styled("es", "") == "es"
    assert style_of("pt-br-x-formal") == "formal" and style_of("es") == ""
    assert language_name("pt-br-x-formal") == "Portuguese (BR, formal)"
    lines = ['{"en": "you", "es": "tú", "kind": "informal"}', '{"en": "I", "es": "yo"}']
    (tmp_path / "p.jsonl").write_text("\n".join(lines), "utf-8")
    assert [pair.style for pair in read_pairs(tmp_path / "p.jsonl", "en", "es", style="kind")] == ["informal", ""]
    (tmp_path / "p.tsv").write_text("en\tes\tkind\nyou\ttú\tvery rude\n", "utf-8")
    with pytest.raises(DataError, match=r"line 2: a style is one word"):
        list(read_pairs(tmp_path / "p.tsv", "en", "es", style="kind"))
    with pytest.raises(DataError, match="no column 'tone' for the style; its columns are en, es, kind"):
        list(read_pairs(tmp_path / "p.tsv", "en", "es", style="tone"))
    with pytest.raises(DataError, match="only TSV, CSV and JSONL have styles"):
        list(read_pairs(tmp_path / "p.tmx", "en", "es", style="tone"))
