import pytest

from regard.errors import DataError
from regard.training.prepare.pairs import PairPreparation
from regard.training.tasks.translation_recipe import TranslationRecipe


def corpus(tmp_path, lines, **data):
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
    cut.setattr(f"regard.training.prepare.pairs.{fails}", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        corpus(tmp_path, lines, **split)
    cut.undo()
    assert not (tmp_path / "data").exists()
    monkeypatch.setattr("regard.training.prepare.pairs.read_pairs", lambda *_: 1 / 0)  # nothing is read again
    corpus(tmp_path, lines, **split)
    assert (tmp_path / "data" / "manifest.json").read_bytes() == (whole / "data" / "manifest.json").read_bytes()
    assert not (tmp_path / "data.parts").exists()
