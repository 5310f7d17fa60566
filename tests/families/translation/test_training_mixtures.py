"""Mixtures of corpora: several files and languages in one training, drawn by shares or by a temperature."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

import regard
from regard.cli.main import run
from regard.data.tokenizers.pair import PairTokenizer
from regard.errors import ConfigError, DataError
from regard.training.loop import train
from regard.training.metrics_log import METRICS, read_metrics
from regard.training.recipe.load import open_task, parse_recipe

WORDS = {"en": "we eat bread", "es": "comemos pan", "pt": "comemos pão", "de": "wir essen brot"}
TINY = {
    "name": "transformer", "width": 16, "heads": 2, "ffn_width": 16, "encoder_depth": 1, "decoder_depth": 1,
}  # fmt: skip
TRAINING = {
    "steps": 3, "validate_every": 3, "checkpoint_every": 3, "validate_sentences": 20, "batch_tokens": 64,
    "device": "cpu", "precision": "fp32", "warmup": 1,
}  # fmt: skip


def _table(folder: Path, source: str, target: str, count: int, first: int = 0) -> str:
    """A file of pairs without a header."""
    file = folder / f"{source}-{target}-{first}.tsv"
    rows = (f"{WORDS[source]} {n}\t{WORDS[target]} {n}\n" for n in range(first, first + count))
    file.write_text("".join(rows), encoding="utf-8")
    return str(file)


def _recipe(source, target, train_corpora, valid="", **data):
    values = {"source": source, "target": target, "train": train_corpora, "valid": valid, **data}
    sections = {"model": TINY, "data": values, "tokenizer": {"size": 60}, "training": TRAINING}
    return parse_recipe({"task": "translation", **sections}, where="test")


def _opened(recipe, folder: Path):
    return open_task(recipe, folder, torch.device("cpu"), lambda: None)


@pytest.fixture
def mixture(tmp_path: Path):
    """40 pairs into Spanish and 20 into Portuguese, which are drawn twice as often."""
    corpora = [
        {"path": _table(tmp_path, "en", "es", 40), "target": "es"},
        {"path": _table(tmp_path, "en", "pt", 20), "target": "pt", "share": 2.0},
    ]
    valid = [{**each, "path": _table(tmp_path, "en", each["target"], 4, 90), "share": 1.0} for each in corpora]
    return _recipe("en", ["es", "pt"], corpora, valid)


def test_shares_say_how_often_a_pair_is_drawn(mixture, tmp_path):
    task = _opened(mixture, tmp_path / "data")
    assert (task.corpus.sizes, [pair.to for pair in task.corpus.valid]) == ([40, 20], ["es"] * 4 + ["pt"] * 4)
    rows = Counter(row for batch in task.loader._plan(0) for row in batch.tolist())
    assert rows == Counter({row: 1 if row < 40 else 2 for row in range(60)})


def test_a_quarter_is_another_quarter_in_the_next_epoch(tmp_path):
    corpora = [{"path": _table(tmp_path, "en", "es", 40), "share": 0.25}]
    task = _opened(_recipe("en", "es", corpora), tmp_path / "data")
    size, plan = task.corpus.sizes[0], task.loader._plan
    epochs = [[row for batch in plan(epoch) for row in batch.tolist()] for epoch in range(4)]
    assert [len(rows) for rows in epochs] == [round(size / 4)] * 4
    assert len({row for rows in epochs for row in rows}) == min(size, 4 * round(size / 4))
    assert [batch.tolist() for batch in plan(1)] == [batch.tolist() for batch in _opened_again(task, tmp_path)(1)]


def _opened_again(task, folder):
    return _opened(task.recipe, folder / "data").loader._plan


def test_temperature_evens_out_languages_and_keeps_the_size_of_an_epoch(tmp_path):
    corpora = [{"path": "a.tsv", "target": "es"}, {"path": "b.tsv", "target": "es"}, {"path": "c.tsv", "target": "pt"}]
    drawn = _recipe("en", ["es", "pt"], corpora, temperature=2.0).data.drawn([600, 300, 100])
    assert drawn == [500, 250, 250]
    assert _recipe("en", ["es", "pt"], corpora).data.drawn([600, 300, 100]) == [600, 300, 100]


def test_many_sources_are_read_by_one_model_and_measured_each(tmp_path, capsys):
    corpora = [
        {"path": _table(tmp_path, "en", "es", 30), "source": "es", "swap": True},
        {"path": _table(tmp_path, "de", "en", 30), "source": "de"},
        {"path": "phrasebook", "source": "pt"},
    ]
    recipe = _recipe(["es", "de", "pt"], "en", corpora, split=0.3, phrasebook={"count": 30})
    train(recipe, tmp_path / "run")
    tokenizer = PairTokenizer.load(tmp_path / "run")
    assert (tokenizer.source_languages, tokenizer.target_languages) == (("es", "de", "pt"), ("en",))
    assert tokenizer.source_language == "es"
    assert regard.load(tmp_path / "run").tokenizer == tokenizer
    (row,) = [row for row in read_metrics(tmp_path / "run" / METRICS) if "bleu" in row]
    assert {"bleu", "bleu_es", "bleu_de", "bleu_pt"} <= set(row)
    assert run(["evaluate", "-m", str(tmp_path / "run"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said) >= {"bleu", "es", "de", "pt"} and set(said["de"]) == {"bleu", "chrf", "exact"}
    assert run(["evaluate", "-m", str(tmp_path / "run"), "--from", "de", "--json"]) == 0
    assert said["de"]["chrf"] == pytest.approx(json.loads(capsys.readouterr().out)["chrf"])
    assert run(["evaluate", corpora[1]["path"], "-m", str(tmp_path / "run")]) != 0
    assert "say which with --from" in capsys.readouterr().err


def test_lines_of_jsonl_may_have_different_languages(tmp_path):
    lines = [{"en": f"we eat {n}", ("es" if n % 2 else "pt"): f"comemos {n}"} for n in range(20)]
    lines += [{"en": "both", "es": "ambos", "pt": "ambos!"}, {"en": "none", "it": "nessuno"}]
    file = tmp_path / "train.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    corpus = _opened(_recipe("en", ["es", "pt"], str(file), str(file)), tmp_path / "data").corpus
    assert corpus.sizes == [11, 11]
    assert corpus.report["in other languages"] == 2  # once in train, once in valid
    with pytest.raises(DataError, match=r"line 1: no language of en to fr, en to it; the keys are: en, pt"):
        _lacking(file, lines[:3], tmp_path / "none")
    with pytest.raises(DataError, match=r"data.target: no training pair for fr; give some, or leave it out"):
        _lacking(file, lines, tmp_path / "some")


def _lacking(file: Path, lines: list[dict[str, str]], folder: Path):
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    _opened(_recipe("en", ["fr", "it"], str(file), str(file)), folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": [{"path": "a.tsv"}]}, r"data.train: a.tsv does not say its target; give one of \['es', 'pt'\]"),
        ({"train": [{"path": "a.tsv", "target": "fr"}]}, "the target of a.tsv is 'fr', but data.target is"),
        ({"train": [{"path": "a.tsv", "target": "es"}]}, r"data.train has no path for \['pt'\]"),
        ({"source": ["en", "de"], "train": {"es": "a.tsv"}}, r"write \[\[data.train\]\] for each corpus"),
        ({"source": ["en", "es"]}, "data.source 'es' is also in data.target"),
        ({"source": ["en", "en"]}, "data.source is .* expected one language code, or several different ones"),
    ],
)
def test_languages_that_do_not_fit_are_refused(changes, message):
    corpora = [{"path": f"{code}.tsv", "target": code, "source": "en"} for code in ("es", "pt")]
    values = {"source": "en", "target": ["es", "pt"], "train_corpora": corpora}
    changes = {"train_corpora" if key == "train" else key: value for key, value in changes.items()}
    with pytest.raises(ConfigError, match=message):
        _recipe(**{**values, **changes})
