from pathlib import Path

import pytest
import sentencepiece

from regard.errors import DataError, RegardError
from regard.families.translation.prepare import PairPreparation
from regard.families.translation.recipe import TranslationRecipe
from regard.families.translation.task import _summary


def corpus(tmp_path, lines, **data):
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in lines), encoding="utf-8")
    section = {"train": str(tmp_path / "pairs.tsv"), "source": "en", "target": "es", **data}
    recipe = TranslationRecipe.parse({"data": section, "tokenizer": {"kind": "word", "size": 500, "min_frequency": 1}})
    preparation = PairPreparation(recipe.data, recipe.tokenizer, recipe.seed)
    preparation.prepare(tmp_path / "data", lambda: None)
    return preparation.open(tmp_path / "data")


def test_dropped_pairs_are_counted_by_reason(tmp_path):
    lines = [("one", "uno"), ("one", "uno"), ("", "dos"), ("three", "tres")]
    made = corpus(tmp_path, lines, valid=str(tmp_path / "pairs.tsv"))
    assert (made.report["train"], made.report["empty"], made.report["duplicate"]) == (2, 1, 1)
    assert len(made.train) == 2
    assert [pair.source for pair in made.valid] == ["one", "one", "three"]


def test_without_validation_data_a_share_is_set_aside_by_source(tmp_path):
    lines = [(f"w{i}", f"{word}{i}") for i in range(300) for word in ("a", "b")]
    made = corpus(tmp_path, lines, split=0.2)
    held_out = [pair.source for pair in made.valid]
    assert len(made.train) + len(held_out) == 600
    assert 60 < len(held_out) < 180
    assert all(held_out.count(source) == 2 for source in held_out)  # both translations of a source stay together


@pytest.mark.parametrize(("count", "least", "most"), [(100, 1, 25), (1000, 70, 130), (3000, 200, 300)])
def test_enough_is_set_aside_to_validate_on(tmp_path, count, least, most):
    made = corpus(tmp_path, [(f"w{i}", f"v{i}") for i in range(count)])
    assert least <= len(made.valid) <= most and len(made.train) + len(made.valid) == count


def test_of_many_pairs_a_hundredth_is_set_aside(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.families.translation.prepare.HELD_OUT", 20)
    made = corpus(tmp_path, [(f"w{i}", f"v{i}") for i in range(6000)])
    assert 35 <= len(made.valid) <= 85


def test_the_log_says_where_validation_has_few_sentences(tmp_path):
    section = {"train": str(tmp_path / "pairs.tsv"), "source": "en", "target": "es"}
    report = {"train": 900, "valid": 90, "test": 0}
    said = _summary(TranslationRecipe.parse({"data": section}), report)
    assert "90 held out for validation" in said and "so few sentences" in said
    assert "so few" not in _summary(TranslationRecipe.parse({"data": section}), {**report, "valid": 200})
    given = TranslationRecipe.parse({"data": {**section, "valid": section["train"]}})
    assert "held out" not in _summary(given, report) and "so few" not in _summary(given, report)


def test_swapped_files_hold_the_target_first(tmp_path):
    made = corpus(tmp_path, [("uno", "one"), ("dos", "two")], valid=str(tmp_path / "pairs.tsv"), swap=True)
    assert [(pair.source, pair.target) for pair in made.valid] == [("one", "uno"), ("two", "dos")]
    assert made.tokenizer.target.decode(made.train.pair(0)[1].tolist()) == "uno"


def test_several_targets_are_tagged(tmp_path):
    (tmp_path / "pt.tsv").write_text("one\tum\n", encoding="utf-8")
    table = {"es": str(tmp_path / "pairs.tsv"), "pt": str(tmp_path / "pt.tsv")}
    made = corpus(tmp_path, [("one", "uno")], train=table, valid=table, target=["es", "pt"])
    assert [(pair.target, pair.to) for pair in made.valid] == [("uno", "es"), ("um", "pt")]
    spanish, portuguese = (made.train.pair(row)[0].tolist() for row in (0, 1))
    assert spanish[0] != portuguese[0] and spanish[1:] == portuguese[1:]


def test_a_corpus_of_nothing_is_refused(tmp_path):
    with pytest.raises(DataError, match="no training pair is left"):
        corpus(tmp_path, [("one", "")])
    assert not (tmp_path / "data").exists()


def test_a_prepared_corpus_is_read_back(tmp_path):
    first = corpus(tmp_path, [("one", "uno"), ("two", "dos")], valid=str(tmp_path / "pairs.tsv"))
    second = corpus(tmp_path, [("changed", "cambiado")], valid=str(tmp_path / "pairs.tsv"))
    assert (first.tokenizer, first.valid, first.report) == (second.tokenizer, second.valid, second.report)


@pytest.mark.parametrize("fails", ["train_pair_tokenizer", "encode_corpus", "Stages.gather"])
def test_a_preparation_that_was_cut_goes_on_after_its_last_stage(tmp_path, monkeypatch, fails):
    lines, split = [(f"w{i}", f"v{i}") for i in range(100)], {"split": 0.2}
    whole = tmp_path / "whole"
    whole.mkdir()
    corpus(whole, lines, **split)
    cut = pytest.MonkeyPatch()
    cut.setattr(f"regard.families.translation.prepare.{fails}", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        corpus(tmp_path, lines, **split)
    cut.undo()
    assert not (tmp_path / "data").exists()
    monkeypatch.setattr("regard.families.translation.prepare.read_pairs", lambda *_: 1 / 0)  # nothing is read again
    corpus(tmp_path, lines, **split)
    assert (tmp_path / "data" / "manifest.json").read_bytes() == (whole / "data" / "manifest.json").read_bytes()
    assert not (tmp_path / "data.parts").exists()


@pytest.fixture(scope="module")
def pieces(tmp_path_factory) -> Path:
    """A folder with SentencePiece models: en.model, es.model, and bytes.model with pieces for bytes."""
    folder = tmp_path_factory.mktemp("pieces")
    english = [f"the {word} number {number}" for word in ("first", "second", "third") for number in range(40)]
    spanish = [f"el {word} número {number}" for word in ("primer", "segundo", "tercer") for number in range(40)]
    for name, texts, extra in (("en", english, {}), ("es", spanish, {}), ("bytes", english, {"byte_fallback": True})):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_prefix=str(folder / name),
            vocab_size=300 if extra else 40,
            hard_vocab_limit=False,
            minloglevel=2,
            **extra,
        )
    return folder


def with_pieces(tmp_path: Path, tokenizer: dict, **data):
    (tmp_path / "pairs.tsv").write_text("the first number 7\tel primer número 7\n", encoding="utf-8")
    section = {
        "train": str(tmp_path / "pairs.tsv"),
        "valid": str(tmp_path / "pairs.tsv"),
        "source": "en",
        "target": "es",
    }
    recipe = TranslationRecipe.parse({"data": section | data, "tokenizer": tokenizer})
    preparation = PairPreparation(recipe.data, recipe.tokenizer, recipe.seed)
    preparation.prepare(tmp_path / "data", lambda: None)
    return recipe, preparation.open(tmp_path / "data")


def test_sentencepiece_models_of_ones_own_cut_the_text(tmp_path, pieces):
    names = {"file": str(pieces / "en.model"), "target_file": str(pieces / "es.model")}
    recipe, made = with_pieces(tmp_path, {"joint": False, **names})
    for side, row, name, text in (
        (made.tokenizer.source, made.train.pair(0)[0], "en", "the first number 7"),
        (made.tokenizer.target, made.train.pair(0)[1], "es", "el primer número 7"),
    ):
        expected = sentencepiece.SentencePieceProcessor(model_file=str(pieces / f"{name}.model"))
        assert side.pieces(row.tolist()) == [*expected.encode(text, out_type=str), "</s>"]
        assert side.decode(row.tolist()) == text
        assert side.size <= expected.get_piece_size() + 1  # no <s>; and <pad> is new
    assert recipe.vocabulary == max(made.tokenizer.source.size, made.tokenizer.target.size)
    turned = recipe.reversed().tokenizer
    assert (turned.file, turned.target_file) == (names["target_file"], names["file"])


def test_one_sentencepiece_model_serves_several_targets(tmp_path, pieces):
    table = {"es": str(tmp_path / "pairs.tsv"), "pt": str(tmp_path / "pairs.tsv")}
    given = {"file": str(pieces / "en.model")}
    _, made = with_pieces(tmp_path, given, train=table, valid=table, target=["es", "pt"])
    tokenizer = made.tokenizer
    assert tokenizer.target_languages == ("es", "pt")
    assert tokenizer.source.pieces(tokenizer.source_ids(["the"], "pt")[0])[0] == ">>pt<<"
    assert tokenizer.source.vocabulary == tokenizer.target.vocabulary


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"file": "none.model"}, r"tokenizer\.file: .*none\.model cannot be read \(No such file"),
        ({"file": "bytes.model"}, "has pieces for bytes; train it again without byte_fallback"),
        ({"file": "en.vocab"}, "not a SentencePiece model .*; spm_train writes one"),
        ({"file": "en.model", "lowercase": True}, "lowercase changes how a text is cut"),
        ({"file": "en.model", "joint": False}, "give target_file too"),
        ({"file": "en.model", "target_file": "es.model"}, "set joint = false"),
        ({"target_file": "es.model", "joint": False}, "give the one of the source as file"),
    ],
)
def test_files_that_are_no_tokenizer_are_refused_before_anything_is_read(tmp_path, pieces, given, message):
    paths = {key: str(pieces / value) if key.endswith("file") else value for key, value in given.items()}
    with pytest.raises(RegardError, match=message):
        with_pieces(tmp_path, paths, train=str(tmp_path / "missing.tsv"))


def test_two_files_of_any_name_are_given_by_language(tmp_path):
    (tmp_path / "src-train.txt").write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "tgt-train.txt").write_text("uno\ndos\n", encoding="utf-8")
    (tmp_path / "tgt-short.txt").write_text("uno\n", encoding="utf-8")
    files = {"en": str(tmp_path / "src-train.txt"), "es": str(tmp_path / "tgt-train.txt")}
    made = corpus(tmp_path, [], train=files, valid=files)
    assert [(pair.source, pair.target, pair.to) for pair in made.valid] == [("one", "uno", "es"), ("two", "dos", "es")]
    assert made.report["train"] == 2
    recipe = TranslationRecipe.parse({"data": {"train": files, "source": "en", "target": "es"}})
    turned = recipe.reversed().data
    back = PairPreparation(turned, recipe.tokenizer, recipe.seed)
    assert [(pair.source, pair.target) for pair in back._pairs("train")] == [("uno", "one"), ("dos", "two")]
    with pytest.raises(DataError, match=r"src-train\.txt has 2 lines, .*tgt-short\.txt has 1"):
        corpus(tmp_path / "again", [], train=files | {"es": str(tmp_path / "tgt-short.txt")})
    with pytest.raises(RegardError, match="files of lines have no styles"):
        TranslationRecipe.parse({"data": {"train": files, "source": "en", "target": "es", "style": "tone"}})
