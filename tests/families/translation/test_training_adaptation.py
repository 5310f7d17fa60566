"""Adapting a trained translator: its weights and tokenizer, old data, anchors, frozen parts, new languages, reports."""

import shutil
from pathlib import Path

import pytest
import sacrebleu
import torch

import regard
from regard.checkpoints import load_model, save_model
from regard.checkpoints.models import own_tensors
from regard.cli.main import run
from regard.data.formats.pairs import read_pairs
from regard.data.synthetic.phrasebook import phrases
from regard.data.text.pair_loader import RowGroup
from regard.data.tokenizers.pair import PairTokenizer, TokenizerConfig, train_pair_tokenizer
from regard.errors import ConfigError, RegardError, UsageError
from regard.families.language.gpt import Gpt, GptConfig
from regard.families.translation.prepare import BASE
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.training.loop import train
from regard.training.metrics_log import read_metrics
from regard.training.recipe.load import load_recipe, open_task
from regard.training.run_state import LoaderPlace

QUICK = (
    "training.steps=3", "training.validate_every=2", "training.checkpoint_every=2", "training.validate_sentences=2",
    "training.batch_tokens=256", "training.device=cpu", "data.source=en", "data.split=0.2",
)  # fmt: skip


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty pairs, English and Spanish."""
    found = phrases("es", part="train", count=60, seed=9, max_words=6)
    return _write(tmp_path_factory.mktemp("pairs") / "new.tsv", [(pair.source, pair.target) for pair in found])


def _write(file: Path, pairs: list[tuple[str, str]]) -> Path:
    file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return file


def _recipe(base: Path, pairs: Path, *changes: str):
    given = (f"model.init={base}", f"data.train={pairs}", "data.target=es")
    return load_recipe("adapt", [*QUICK, *given, *changes])


def _opened(base: Path, pairs: Path, folder: Path, *changes: str):
    recipe = _recipe(base, pairs, *changes).resolved()
    return open_task(recipe, folder, torch.device("cpu"), lambda: None)


def test_training_starts_from_the_weights_the_tokenizer_and_the_decoding_of_the_folder(
    translator_folder, pairs, tmp_path
):
    task = _opened(translator_folder, pairs, tmp_path / "data")
    before, built = own_tensors(load_model(translator_folder).model), own_tensors(task.build())
    assert before.keys() == built.keys() and all(torch.equal(before[name], built[name]) for name in before)
    assert task.corpus.tokenizer == PairTokenizer.load(translator_folder)
    assert task.recipe.decoding.beam == 4 and task.recipe.model.name == "transformer"


@pytest.fixture(scope="module")
def adapted(translator_folder: Path, pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short adaptation with old data and frozen embeddings."""
    changes = "data.old=phrasebook", "data.phrasebook.count=40", "training.freeze=['embeddings']"
    return train(_recipe(translator_folder, pairs, *changes), tmp_path_factory.mktemp("adapted") / "out")


def test_an_adaptation_ends_with_a_table_of_both_domains_in_metrics_and_card(adapted):
    (tested,) = [row for row in read_metrics(adapted / "metrics.jsonl") if row["kind"] == "test"]
    wanted = {f"{m}_{d}_{t}" for m in ("bleu", "chrf") for d in ("new", "old") for t in ("before", "after")}
    assert wanted <= tested.keys()
    card = (adapted / "README.md").read_text(encoding="utf-8")
    assert f"| new domain, BLEU | {tested['bleu_new_before']:.1f} | {tested['bleu_new_after']:.1f} |" in card
    assert regard.load(adapted).translate("we eat bread", to="es").text


def test_frozen_embeddings_keep_their_weights_and_the_rest_learns(translator_folder, adapted):
    before, after = (load_model(folder).model for folder in (translator_folder, adapted))
    assert torch.equal(before.source_embedding.weight, after.source_embedding.weight)
    moved = [not torch.equal(one, other) for one, other in zip(before.parameters(), after.parameters(), strict=True)]
    assert sum(moved) > len(moved) / 2


@pytest.mark.parametrize("part", ["embeddings", "encoder", "decoder"])
def test_frozen_parts_learn_nothing(translator_folder, adapted, pairs, part):
    recipe = _recipe(translator_folder, pairs, f"training.freeze=['{part}']").resolved()
    model = open_task(recipe, adapted / "data", torch.device("cpu"), lambda: None).build()
    named = model.named_parameters(remove_duplicate=False)
    frozen = {name for name, parameter in named if not parameter.requires_grad} - {"output_weight"}
    assert {name.split(".")[0] for name in frozen} == {
        "embeddings": {"source_embedding", "target_embedding"}, "encoder": {"encoder"}, "decoder": {"decoder"}
    }[part]  # fmt: skip


def test_the_scores_before_are_those_of_the_base_model(translator_folder, pairs, tmp_path):
    task = _opened(translator_folder, pairs, tmp_path / "data")
    model = load_model(translator_folder).model
    values = task.test(model, lambda: None)
    assert values["bleu_new_before"] == values["bleu_new_after"] and values["chrf_new_before"] > 0
    answers = regard.load(translator_folder).translate([pair.source for pair in task.corpus.valid], to="es")
    expected = sacrebleu.corpus_bleu(
        [each.text for each in answers], [[pair.target for pair in task.corpus.valid]], force=True
    )
    assert values["bleu_new_before"] == pytest.approx(expected.score, abs=1e-6)


def test_a_resumed_adaptation_goes_on_bit_for_bit_without_the_base(translator_folder, pairs, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(translator_folder, base)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(_recipe(base, pairs, "training.steps=4", "training.schedule=constant"), whole)
    train(_recipe(base, pairs, "training.steps=2", "training.schedule=constant"), cut)
    shutil.rmtree(base)
    train(load_recipe(cut / "recipe.toml", ["training.steps=4"]), cut, resume=True)
    first, second = (own_tensors(load_model(folder).model) for folder in (whole, cut))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_anchor_adds_the_squared_distance_for_every_token(translator_folder, pairs, tmp_path):
    task = _opened(translator_folder, pairs, tmp_path / "data", "training.anchor=0.5")
    model = task.build().eval()
    _, batch = next(task.batches(LoaderPlace()))
    weight = model.source_embedding.weight
    with torch.no_grad():
        weight += 0.01
    anchored, task.recipe = task.loss(model, batch), _recipe(translator_folder, pairs, "training.anchor=0")
    plain = task.loss(model, batch).total.item()
    expected = plain + 0.5 * anchored.tokens.item() * weight.numel() * 0.01**2
    assert anchored.total.item() == pytest.approx(expected, rel=1e-4)


def test_every_epoch_has_all_new_pairs_and_its_share_of_old_ones_without_repeating_any_early():
    new, old = RowGroup(0, 10), RowGroup(10, 22, count=4)
    epochs = [old.rows(5, epoch) for epoch in range(3)]
    assert all(new.rows(5, epoch).tolist() == list(range(10)) for epoch in range(3))
    assert sorted(row for rows in epochs for row in rows.tolist()) == list(range(10, 22))
    assert old.rows(5, 1).tolist() == epochs[1].tolist()


def test_old_pairs_are_mixed_in_by_their_share(translator_folder, pairs, tmp_path):
    changes = ("data.old=phrasebook", "data.phrasebook.count=300", "data.old_share=0.25")
    task = _opened(translator_folder, pairs, tmp_path / "data", *changes)
    new = task.corpus.report["train"]
    assert task.loader.groups == [RowGroup(0, new), RowGroup(new, len(task.corpus.train), round(new / 3))]
    assert task.corpus.old_valid and task.corpus.report["old"] == len(task.corpus.train) - new


def test_a_new_language_gets_a_tag_and_the_old_ones_answer_as_before(translator_folder, tmp_path):
    pairs = _write(tmp_path / "fr.tsv", [(f"we eat bread {n}", f"nous mangeons du pan {n}") for n in range(30)])
    task = _opened(translator_folder, pairs, tmp_path / "data", "data.target=fr")
    base, known = regard.load(tmp_path / "data" / BASE), regard.load(translator_folder)
    assert base.tokenizer.target_languages == ("es", "pt", "fr")
    assert base.tokenizer.tag("fr") == [known.tokenizer.source.size]
    tokens = torch.tensor([known.tokenizer.source_ids(["we are eating bread"], "es")[0]])
    given = tokens, torch.ones_like(tokens, dtype=torch.bool), tokens
    old, new = known.models[0](*given), base.models[0](*given)
    assert torch.allclose(new[..., : old.shape[-1]], old, atol=1e-6)  # for the old languages nothing has changed
    weights, tags = task.build().source_embedding.weight, list(known.tokenizer.source.tags.values())
    assert torch.allclose(weights[-1], weights[tags].mean(dim=0), atol=1e-6)
    with pytest.raises(ConfigError, match="leave embeddings out"):
        _opened(translator_folder, pairs, tmp_path / "no", "data.target=fr", "training.freeze=['embeddings']")


def test_the_only_language_of_a_model_stays_without_a_tag_when_another_is_added(pairs, tmp_path):
    tokenizer = train_pair_tokenizer(read_pairs(pairs, "en", "es"), TokenizerConfig(size=90), "en", ["es"])
    sizes = {"source_vocab": tokenizer.source.size, "target_vocab": tokenizer.target.size, "width": 8, "heads": 2}
    config = TransformerConfig.parse({**sizes, "encoder_depth": 1, "decoder_depth": 1, "ffn_width": 8})
    save_model(tmp_path / "one", "transformer", Transformer(config), tokenizer.save)
    task = _opened(tmp_path / "one", pairs, tmp_path / "data", "data.target=pt", f"data.old={{es='{pairs}'}}")
    both = task.corpus.tokenizer
    assert both.target_languages == ("es", "pt") and both.tag("es") == [] and both.tag("pt") == [tokenizer.source.size]
    assert {pair.to for pair in task.corpus.old_valid} == {"es"} and {pair.to for pair in task.corpus.valid} == {"pt"}
    with pytest.raises(UsageError, match="choose one of es, pt"):
        both.tag("")


def _refused(tmp_path, capsys, *sets: str) -> str:
    """The one line with which a training is refused; it leaves nothing behind."""
    out, given = tmp_path / "refused", [part for each in (*QUICK, *sets) for part in ("--set", each)]
    assert run(["train", "adapt", "--out", str(out), *given]) in (1, 2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and not out.exists()
    return error


def test_what_cannot_be_adapted_is_refused_in_one_line(translator_folder, pairs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("regard.families.translation.shipped.built_in_models", list)
    data = f"data.train={pairs}", "data.target=es"
    base = f"model.init={translator_folder}"
    one = _write(tmp_path / "one.tsv", [("we eat bread", "comemos pan")])
    greek = _write(tmp_path / "greek.tsv", [(f"τρώμε ψωμί {'α' * n}", f"мы едим хлеб {'я' * n}") for n in range(40)])
    gpt = tmp_path / "gpt"
    save_model(gpt, "gpt", Gpt(GptConfig.parse({"vocab": 20, "width": 8, "heads": 2, "depth": 1, "max_length": 8})))
    (tmp_path / "empty").mkdir()
    assert "model.init must be given" in _refused(tmp_path, capsys, *data, "model.init=")
    assert "no built-in translator is here" in _refused(tmp_path, capsys, *data)
    assert "which is not a folder" in _refused(tmp_path, capsys, *data, "model.init=nowhere")
    assert "holds no model" in _refused(tmp_path, capsys, *data, f"model.init={tmp_path / 'empty'}")
    assert "is no translator" in _refused(tmp_path, capsys, *data, f"model.init={gpt}")
    assert "data.train has 1 usable pair (none was dropped)" in _refused(
        tmp_path, capsys, base, f"data.train={one}", "data.target=es", "data.valid=" + str(one)
    )
    assert "does not fit these pairs" in _refused(tmp_path, capsys, base, f"data.train={greek}", "data.target=es")
    assert "translates from 'en'" in _refused(tmp_path, capsys, base, *data, "data.source=de")
    assert "[tokenizer]" in _refused(tmp_path, capsys, base, *data, "tokenizer.size=99")
    assert "change [model] back" in _refused(tmp_path, capsys, base, *data, "model.width=32")
    assert "cannot translate into 'it'" in _refused(tmp_path, capsys, base, *data, "data.old={it='phrasebook'}")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"source_vocab": 50, "target_vocab": 50}, "a source_vocab of 50; they do not belong together"),
        ({"source_vocab": 9000, "target_vocab": 9000}, "a source_vocab of 9,000; they do not belong together"),
        ({"pad": 5}, "pads with token 0, but its model with 5; they do not belong together"),
    ],
)
def test_a_tokenizer_of_another_model_is_refused(changes, said, translator_folder, pairs, tmp_path, capsys):
    loaded, tokenizer = load_model(translator_folder), PairTokenizer.load(translator_folder)
    model = type(loaded.model)(loaded.config.replace(**changes))
    save_model(tmp_path / "odd", "transformer", model, tokenizer.save)
    assert said in _refused(tmp_path, capsys, f"model.init={tmp_path / 'odd'}", f"data.train={pairs}", "data.target=es")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("tokenizer.json", None, "odd has no tokenizer.json, a part of its tokenizer"),
        (
            "tokenizer_config.json",
            None,
            "odd holds no tokenizer: neither tokenizer_config.json nor source.spm is there",
        ),
        (
            "tokenizer.json",
            '{"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}',
            "is no translator's: it lacks '<pad>'",
        ),
        ("tokenizer.json", "{}", "cannot read the tokenizer in"),
        ("tokenizer_config.json", '{"targets":["es"],"joint":true}', "is no translator's: it lacks 'source'"),
    ],
)
def test_a_tokenizer_that_cannot_be_read_is_refused(file, content, said, translator_folder, pairs, tmp_path, capsys):
    tokenizer = PairTokenizer.load(translator_folder)

    def write(folder):
        tokenizer.save(folder)
        (folder / file).unlink() if content is None else (folder / file).write_text(content)

    save_model(tmp_path / "odd", "transformer", load_model(translator_folder).model, write)
    assert said in _refused(tmp_path, capsys, f"model.init={tmp_path / 'odd'}", f"data.train={pairs}", "data.target=es")


def test_the_recipe_needs_a_base_for_what_only_an_adaptation_has():
    for key in ("data.old=phrasebook", "training.anchor=1", "training.freeze=['encoder']"):
        with pytest.raises(RegardError, match=f"given with {key.split('=')[0]}"):
            load_recipe("phrasebook", [key])
