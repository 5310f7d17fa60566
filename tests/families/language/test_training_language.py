"""Tasks on single texts: short runs that learn measurably, resume exactly, and refuse invalid input."""

import math
import os
import signal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

import regard
from regard.checkpoints import load_model, newest_complete, verify
from regard.cli.main import run
from regard.config import known_keys
from regard.data.synthetic.phrasebook import phrases
from regard.data.text.token_blocks import TokenStore
from regard.errors import CheckpointError, ConfigError, DataError, UsageError
from regard.families.catalog import TASKS
from regard.families.language.classification import label_tables
from regard.families.language.encoder import TextEncoder
from regard.families.language.lstm import Lstm
from regard.families.language.modelling import _continued
from regard.training.initial_model import build_model, initial_tokenizer
from regard.training.loop import train
from regard.training.metrics_log import read_metrics
from regard.training.recipe.load import load_recipe, open_task
from regard.training.safeguards import SignalError
from regard.training.updates import Updates

LOOP = (
    "training.device=cpu", "training.schedule=cosine", "training.warmup=10", "training.lr=5e-3",
    "training.log_every=20", "training.checkpoint_every=0", "training.precision=fp32", "training.ema=0",
)  # fmt: skip
GPT = ('model={name="gpt",preset="nano",width=32,heads=2,depth=1,max_length=32}',)
LSTM = ('model={name="lstm",embedding=16,width=24,depth=2,input_dropout=0.1,weight_drop=0.1,change_penalty=0.1}',)
ELMO = ('model={name="elmo",width=24,depth=1,filters=[[1,8],[2,8]],characters=6,highways=1}',)
BERT = ('model={name="bert",width=32,heads=2,depth=1,ffn_width=64,max_length=64,dropout=0.0,attention_dropout=0.0}',)
T5 = ('model={name="t5",preset="tiny",width=32,heads=2,head_width=16,encoder_depth=1,decoder_depth=1,ffn_width=64}',)
TIMES = ("tokens_per_second", "seconds", "waiting")


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """Documents of three sentences, each document about one person."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    sources = [pair.source for pair in phrases("es", part="train", count=900, seed=3, max_words=7)]
    names = ["Lucas", "Ana", "Pedro", "Clara"]
    lines = [
        f"{names[i % 4]} says {s} {names[i % 4]}\n"
        for i, three in enumerate(zip(*[iter(sources)] * 3, strict=True))
        for s in three
    ]
    path.write_text("".join(line + ("\n" if i % 3 == 2 else "") for i, line in enumerate(lines)), encoding="utf-8")
    return path


def language(path, *more, recipe="tinyshakespeare-gpt-small"):
    own = (f"data.train={path}", "data.block=32", "training.batch_tokens=512", "training.validate_every=20")
    return load_recipe(recipe, [*LOOP, *GPT, *own, "training.steps=40", *more])


def masked(path, *more):
    own = (f"data.train={path}", "data.valid=''", "data.block=40", "data.split=0.1", "tokenizer.size=300",
           "training.batch_tokens=1280", "training.validate_every=25", "training.steps=50")  # fmt: skip
    return load_recipe("wikitext2-bert", [*LOOP, *BERT, *own, *more])


def told(out, kind="valid"):
    rows = [row for row in read_metrics(out / "metrics.jsonl") if row["kind"] == kind]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


# --- language ---


def test_a_language_model_beats_the_frequencies_of_characters(tmp_path, text):
    out = train(language(text), tmp_path / "run")
    verify(out)
    content = text.read_text()
    shares = [content.count(character) / len(content) for character in set(content)]
    assert told(out)[-1]["loss"] < -sum(share * math.log(share) for share in shares) - 0.1
    assert told(out)[-1]["perplexity"] == pytest.approx(math.exp(told(out)[-1]["loss"]))
    model = regard.load(out)
    assert model.generate("Lucas says", max_tokens=5, temperature=0.0).text
    assert "model.generate" in (out / "README.md").read_text()


def test_what_is_compiled_is_the_model_for_its_blocks_and_the_loss(tmp_path, monkeypatch, text):
    """Blocks have one shape, so the graph is compiled for that shape, not for any length."""
    compiled = []

    def fake(function, dynamic=None):
        compiled.append((getattr(function, "__name__", type(function).__name__), dynamic))
        return function

    monkeypatch.setattr(torch, "compile", fake)
    train(language(text, "training.steps=2", "training.compile=true", "training.validate_every=0"), tmp_path / "run")
    assert compiled == [("Gpt", False), ("cross_entropy", None)]
    train(language(text, "training.steps=2", "training.validate_every=0", "training.compile=false"), tmp_path / "plain")
    assert len(compiled) == 2


def test_the_loss_told_is_the_mean_over_the_whole_validation_text(tmp_path, text):
    out = train(language(text, "training.steps=3"), tmp_path / "run")
    model = regard.load(out)
    valid = text.read_text()[int(len(text.read_text()) * 0.9) :]
    ids = torch.tensor(model.tokenizer.encode([valid])[0].ids)
    losses = []
    for begin in range(0, len(ids) - 1, 32):
        block = ids[begin : begin + 33]
        log_p = model.model(block[None, :-1])[0].log_softmax(-1)
        losses += (-log_p.gather(1, block[1:, None])).flatten().tolist()
    assert len(losses) == len(ids) - 1
    assert told(out)[-1]["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)


@pytest.mark.parametrize(("cut", "kind"), [(7, "gpt"), pytest.param(20, "gpt", marks=pytest.mark.full), (7, "lstm")])
def test_a_language_run_that_was_cut_ends_like_one_that_was_not(tmp_path, monkeypatch, text, cut, kind):
    model = LSTM if kind == "lstm" else ()
    recipe = language(text, *model, "training.steps=24", "model.dropout=0.2", "training.ema=0.9")
    train(recipe, tmp_path / "whole")
    original = Updates.backward

    def backward(self, *arguments):
        if self.progress.step == cut:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Updates, "backward", backward)
        with pytest.raises(SignalError):
            train(recipe, tmp_path / "cut")
    train(recipe, tmp_path / "cut", resume=True)
    states = [
        load_file(newest_complete(tmp_path / name) / "train_state" / "state.safetensors") for name in ("whole", "cut")
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert all(told(tmp_path / "whole", kind) == told(tmp_path / "cut", kind) for kind in ("train", "valid"))


def test_a_recurrent_model_is_measured_with_its_state_carried_through_the_text(tmp_path, text):
    out = train(language(text, *LSTM, "training.steps=20"), tmp_path / "run")
    model = regard.load(out)
    valid = text.read_text()[int(len(text.read_text()) * 0.9) :]
    ids = torch.tensor(model.tokenizer.encode([valid])[0].ids)
    total, streams = 0.0, 10
    length = math.ceil((len(ids) - 1) / streams)
    for begin in range(0, len(ids) - 1, length):  # each in one pass, not in blocks
        log_p = model.model(ids[None, begin : begin + length][:, : len(ids) - 1 - begin])[0].log_softmax(-1)
        total -= log_p.gather(1, ids[begin + 1 : begin + 1 + length, None]).sum().item()
    assert told(out)[-1]["loss"] == pytest.approx(total / (len(ids) - 1), rel=1e-4)
    assert model.generate("Lucas says", max_tokens=5, temperature=0.0).text


def test_training_goes_on_from_the_state_of_the_block_before(tmp_path, monkeypatch, text):
    seen, original = [], Lstm.read

    def read(self, tokens, state=None, mask=None):
        reading = original(self, tokens, state, mask)
        if self.training:
            seen.append((state, reading.state))
        return reading

    monkeypatch.setattr(Lstm, "read", read)
    train(
        language(text, *LSTM, "training.steps=60", "training.validate_every=0", "training.batch_tokens=1024"),
        tmp_path / "run",
    )
    assert len(seen) == 60
    begun = 0
    for (_, before), (state, _) in pairwise(seen):
        if all((layer == 0).all() for layer in state):
            begun += 1
        else:
            assert all(torch.equal(a, b) and not a.requires_grad for a, b in zip(state, before, strict=True))
    assert begun == 1  # an epoch has 34 batches


def test_a_state_that_is_not_finite_is_forgotten(tmp_path, text):
    carried = {"0": torch.ones(2, 1, 3, 4)}
    carried["0"][0, 0, 1] = math.nan
    begins = torch.tensor([False, False, True])
    assert _continued({}, begins) is None and _continued(carried, begins[:2]) is None
    (state,) = _continued(carried, begins)
    assert (state[:, :, 2] == 0).all() and (state[:, :, 0] == 1).all()
    recipe = language(text, *LSTM, "training.steps=6", "training.validate_every=0", "training.on_nan=skip")
    task = open_task(recipe, tmp_path / "data", torch.device("cpu"), lambda: None)
    model = task.build()
    _, batch = next(task.batches({}))
    with torch.no_grad():
        model.embedding.weight.fill_(math.nan)
    assert not task.loss(model, batch).total.isfinite()
    assert all(layer.isfinite().all() for layer in task.carried.values())


@pytest.fixture(scope="module")
def elmo(tmp_path_factory, text):
    return train(
        language(text, *ELMO, "tokenizer.kind=word", "tokenizer.size=2000"), tmp_path_factory.mktemp("e") / "run"
    )


def test_a_two_way_model_is_measured_on_both_directions(elmo, text):
    encoder = regard.load(elmo)
    assert isinstance(encoder, TextEncoder)
    valid = text.read_text()[int(len(text.read_text()) * 0.9) :]
    ids = torch.tensor(encoder.tokenizer.encode([valid])[0].ids)
    losses = []
    for begin in range(0, len(ids) - 1, 32):
        block = ids[begin : begin + 33]
        output = encoder.model(block[None])
        losses += (-output.logits[0, :-1].log_softmax(-1).gather(1, block[1:, None])).flatten().tolist()
        losses += (-output.previous[0, 1:].log_softmax(-1).gather(1, block[:-1, None])).flatten().tolist()
    assert len(losses) == 2 * len(ids) - 2
    assert told(elmo)[-1]["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert told(elmo)[-1]["perplexity"] < encoder.tokenizer.size / 4


def test_a_word_is_embedded_in_its_context(elmo):
    encoder = regard.load(elmo)
    texts = ["Lucas says we are late", "Ana says"]
    vectors = encoder.embed(texts, normalise=False)
    alone = encoder.model.encode(torch.tensor([encoder.tokenizer.encode(texts[:1])[0].ids]))[0].mean(0)
    torch.testing.assert_close(vectors[0], alone)
    assert vectors.shape == (2, 48)
    with pytest.raises(UsageError, match="no attention to look at"):
        encoder.attention("Lucas says")
    with pytest.raises(UsageError, match="guesses no words"):
        encoder.fill("Lucas [MASK]")
    assert "model.embed" in (elmo / "README.md").read_text()


def test_a_two_way_model_is_fine_tuned_with_its_mix(tmp_path, elmo, text):
    rows = [f"{line.strip()}\t{'yes' if 'Ana' in line else 'no'}" for line in text.read_text().splitlines() if line]
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "\n".join(rows[:600]) + "\n")
    (tmp_path / "valid.tsv").write_text("sentence\tlabel\n" + "\n".join(rows[600:800]) + "\n")
    changes = [f"data.train={tmp_path}/train.tsv", f"data.valid={tmp_path}/valid.tsv", 'data.labels=["no","yes"]',
               f'model={{name="elmo",init="{elmo}"}}', "training.steps=100", "training.batch_tokens=512",
               "training.validate_every=100", "training.lr=1e-2"]  # fmt: skip
    out = train(load_recipe("glue-sst2-minilm", [*LOOP, *changes]), tmp_path / "run")
    assert told(out)[-1]["accuracy"] > 0.95
    encoder = regard.load(out)
    assert encoder.model.mix.abs().max() > 0
    assert [each.label for each in encoder.classify(["Ana says we are late Ana", "Lucas says we are late Lucas"])] == [
        "yes", "no"
    ]  # fmt: skip


def test_documents_are_separated_by_end_tokens(tmp_path, text):
    out = train(
        language(text, "data.documents=blank", "training.steps=1", "tokenizer.kind=bpe", "tokenizer.size=300"),
        tmp_path / "run",
    )
    store, tokenizer = TokenStore.open(out / "data" / "train"), regard.load(out).tokenizer
    assert (store.tokens == tokenizer.end).sum() == len(store.documents) - 2
    assert tokenizer.decode(store.tokens[store.tokens != tokenizer.end].tolist()) in text.read_text().replace(
        "\n\n", "\n"
    )


def test_training_goes_on_from_a_folder(tmp_path, text):
    first = train(language(text, "training.steps=30"), tmp_path / "first")
    more = language(text, f'model={{name="gpt",init="{first}"}}', "training.steps=1", "training.lr=1e-6")
    second = train(more, tmp_path / "second")
    assert told(second)[-1]["loss"] == pytest.approx(told(first)[-1]["loss"], abs=0.01)


# --- masked ---


def test_a_masked_model_learns_words_and_what_belongs_together(tmp_path, text):
    out = train(masked(text), tmp_path / "run")
    first, last = told(out)[0], told(out)[-1]
    encoder = regard.load(out)
    assert last["loss"] < first["loss"] and last["perplexity"] < encoder.tokenizer.size / 2  # half of a uniform guess
    assert 0 < last["accuracy"] < 1 and 0 < last["next_sentence"] < 1
    assert encoder.config.head == "pretraining"
    assert len(encoder.fill("Lucas says the [MASK] is red Lucas", top=3)) == 3


def test_hidden_words_without_next_sentences(tmp_path, text):
    out = train(masked(text, "data.next_sentence=false", "data.documents=line", "training.steps=5"), tmp_path / "run")
    assert "next_sentence" not in told(out)[-1]
    assert regard.load(out).config.head == "masked"


# --- classification ---


def labelled(init, table, *more):
    own = (f"model.init={init}", f"data.train={table}", f"data.valid={table}", "training.batch_tokens=512")
    settings = ("training.steps=60", "training.validate_every=30", "training.warmup=5")
    return load_recipe("glue-sst2-minilm", [*LOOP, *own, *settings, *more])


@pytest.fixture(scope="module")
def init(tmp_path_factory, text) -> Path:
    return train(masked(text, "training.steps=10"), tmp_path_factory.mktemp("init") / "run")


@pytest.fixture(scope="module")
def table(tmp_path_factory, text) -> Path:
    path = tmp_path_factory.mktemp("table") / "table.tsv"
    lines = [line for line in text.read_text().splitlines() if line][:240]
    rows = [f'"{line}\t{int(line.startswith(("Lucas", "Ana")))}\t{len(line)}\t{line[::-1]}\n' for line in lines]
    path.write_text("sentence\tlabel\tlength\tother\n" + "".join(rows))
    return path


def measured(out, table, capsys):
    """The output of `regard evaluate`."""
    capsys.readouterr()
    assert run(["evaluate", str(table), "-m", str(out)]) == 0
    found = {name: float(value) for name, value in map(str.split, capsys.readouterr().out.splitlines())}
    assert 0 < found.pop("unknown") < 0.1  # some words are not in the small vocabulary
    return found


def best(out, *metrics):
    """The validation metrics of the published checkpoint, which here used the same table."""
    rows = [row for row in told(out) if row["kind"] == "valid"]
    row = max(rows, key=lambda row: row[metrics[0]])
    return {metric: pytest.approx(row[metric], abs=2e-3) for metric in metrics}


def test_fresh_weights_keep_the_shape_and_the_tokenizer_alone(init, table):
    tokenizer, given = initial_tokenizer(str(init)), load_model(init).model
    started, fresh = (
        build_model(labelled(init, table, f"model.fresh={value}").model, tokenizer, head="classify")
        for value in ("false", "true")
    )
    assert torch.equal(started.embedding.weight, given.embedding.weight)
    assert fresh.embedding.weight.shape == given.embedding.weight.shape and fresh.config == started.config
    assert not any(
        torch.equal(a, b) for a, b in zip(fresh.parameters(), started.parameters(), strict=True) if a.ndim > 1
    )
    with pytest.raises(ConfigError, match=r"shape and the tokenizer of model\.init, which is not given"):
        load_recipe("wikitext2-bert", ["model.fresh=true"])


def test_labels_are_learnt_from_a_folder(tmp_path, init, table, capsys):
    out = train(labelled(init, table), tmp_path / "run")
    assert told(out)[-1]["accuracy"] > 0.9
    assert told(out)[-1]["matthews"] > 0.8
    encoder = regard.load(out)
    assert encoder.classify("Lucas says the cat is red Lucas")[0].labels.keys() == {"0", "1"}
    verify(out)
    assert measured(out, table, capsys) == {"texts": 240.0, **best(out, "accuracy", "f1", "matthews")}


def test_values_and_pairs(tmp_path, init, table, capsys):
    own = ("data.labels=[]", "data.label=length", "data.pair=other", "training.metric=spearman", "training.steps=20")
    out = train(labelled(init, table, *own), tmp_path / "run")
    assert set(told(out)[-1]) == {"step", "kind", "loss", "pearson", "spearman"}
    assert regard.load(out).classify(["a"], ["b"])[0].value is not None
    assert measured(out, table, capsys) == {"texts": 240.0, **best(out, "spearman", "pearson")}


@pytest.mark.parametrize("labels", [("0", "1"), ()])
def test_r_drop_of_a_classifier_is_half_of_the_papers_sum(tmp_path, init, table, labels):
    own = (f"data.labels={list(labels)}", f"data.label={'label' if labels else 'length'}", "model.dropout=0.1")
    recipe = labelled(init, table, *own, "training.r_drop=5.0", "training.metric=loss")
    task = open_task(recipe, tmp_path / "data", torch.device("cpu"), lambda: None)
    batch, model = task.texts["train"](np.arange(6)), task.build().train()
    torch.manual_seed(1)
    loss = task.loss(model, batch).total
    torch.manual_seed(1)
    twice = [each.repeat(2, 1) for each in (batch.inputs, batch.mask, batch.segments)]
    first, second = model(*twice).logits.chunk(2)
    assert not torch.equal(first, second)  # two passes with different dropout
    if labels:
        p, q = first.log_softmax(-1), second.log_softmax(-1)
        errors = sum(functional.nll_loss(each, batch.targets, reduction="sum") for each in (p, q))
        apart = sum(functional.kl_div(a, b, reduction="sum", log_target=True) for a, b in ((p, q), (q, p))) / 2
    else:
        errors = sum(((each[:, 0] - batch.targets) ** 2).sum() for each in (first, second))
        apart = ((first - second) ** 2).sum()
    torch.testing.assert_close(loss, (errors + 5.0 * apart) / 2)


def test_a_classifier_learns_under_r_drop(tmp_path, init, table):
    out = train(labelled(init, table, "training.r_drop=1.0"), tmp_path / "run")
    assert told(out)[-1]["accuracy"] > 0.9


def test_what_no_classifier_can_be_measured_on(tmp_path, init, table, capsys):
    out = train(labelled(init, table, "training.steps=1"), tmp_path / "run")
    (tmp_path / "empty.tsv").write_text("sentence\tlabel\n")
    (tmp_path / "other.tsv").write_text("sentence\tlabel\na\tmaybe\n")
    for arguments, code, said in (
        ([], 2, "a table of labelled texts"),
        ([str(tmp_path / "empty.tsv")], 1, "has no labelled text"),
        ([str(tmp_path / "other.tsv")], 1, "line 2: the label 'maybe' is none of the model's (data.labels): 0, 1"),
    ):
        assert run(["evaluate", *arguments, "-m", str(out)]) == code
        assert said in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"has no recipe\.toml of a classifier"):  # as in folders of other libraries
        label_tables(tmp_path)


def test_columns_by_number_are_of_tables_without_a_header(tmp_path, init, table):
    bare = tmp_path / "bare.tsv"
    bare.write_text("".join(table.read_text().splitlines(keepends=True)[1:]))
    out = train(labelled(init, bare, "data.text=0", "data.label=1", "training.steps=1"), tmp_path / "run")
    assert len((out / "data" / "train.jsonl").read_text().splitlines()) == 240


# --- text to text ---


def test_spans_are_learnt(tmp_path, text):
    own = (f"data.train={text}", "data.valid=''", "data.documents=blank", "data.block=32", "data.split=0.1",
           "data.sentinels=20", "tokenizer.size=400", "training.batch_tokens=512", "training.steps=40",
           "training.validate_every=20", "training.lr=1e-2")  # fmt: skip
    out = train(load_recipe("wikitext2-t5", [*LOOP, *T5, *own]), tmp_path / "run")
    assert told(out)[-1]["loss"] < told(out)[0]["loss"]
    assert isinstance(regard.load(out).generate("Lucas says <extra_id_0>", max_tokens=3).text, str)


def test_one_model_answers_several_prompts(tmp_path):
    (tmp_path / "shout.tsv").write_text("".join(f"say {word}\t{word.upper()}\n" for word in ("yes", "no", "why") * 4))
    own = (
        f'data.train={{question="builtin:question",shout="{tmp_path / "shout.tsv"}"}}', "data.test={}",
        f'data.valid={{question="builtin:question",shout="{tmp_path / "shout.tsv"}"}}', "data.count=300",
        'data.prefixes={shout="Shout:"}', "data.held_out=30", "data.temperature=4", "data.max_words=5",
        "training.steps=60", "training.validate_every=60", "training.batch_tokens=512", "training.lr=1e-2",
    )  # fmt: skip
    out = train(load_recipe("prompts-t5", [*LOOP, *T5, *own]), tmp_path / "run")
    values = told(out)[-1]
    assert values["exact_question"] > 0.6 and values["exact_shout"] > 0.3  # it distinguishes the two tasks
    assert regard.load(out).generate("Shout: say yes").text in ("YES", "NO", "WHY")
    assert told(out, "samples")


# --- refused input ---


def test_an_empty_corpus_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(DataError, match="no text to learn from"):
        train(masked(tmp_path / "empty.txt"), tmp_path / "run")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(DataError, match="no text to learn from"):
        train(language(tmp_path / "empty.txt"), tmp_path / "other")


def test_text_without_next_sentences_is_refused(tmp_path):
    (tmp_path / "lines.txt").write_text("one line\n\nanother line\n\n" * 20)
    with pytest.raises(DataError, match="several lines each"):
        train(masked(tmp_path / "lines.txt"), tmp_path / "run")


def test_a_block_longer_than_the_model_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="32 positions"):
        train(language(text, "data.block=64"), tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.labels=['0','2']"], "label '1' is none of the model's"),
        (["data.labels=['0','1','2']", "training.metric=accuracy"], "label '2' never occurs"),
        (["data.label=nowhere"], "no column 'nowhere'"),
        (["data.label=sentence", "data.labels=[]", "training.metric=spearman"], "is not a number"),
        (["data.text=9", "data.label=1"], "column 10 is needed"),
        (["data.valid=''"], "no text for validation"),
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path, init, table, changes, message):
    with pytest.raises(DataError, match=message):
        train(labelled(init, table, *changes), tmp_path / "run")


def test_a_missing_or_wrong_init_is_refused(tmp_path, table, text):
    with pytest.raises(ConfigError, match=r"model\.init must be given"):
        labelled("''", table)
    with pytest.raises(UsageError, match="not a folder"):
        train(labelled(tmp_path / "nowhere", table), tmp_path / "run")
    gpt = train(language(text, "training.steps=1"), tmp_path / "gpt")
    with pytest.raises(UsageError, match="holds a gpt model"):
        train(labelled(gpt, table), tmp_path / "other")


def test_an_init_that_does_not_fit_is_refused(tmp_path, init, table):
    with pytest.raises(CheckpointError, match="does not fit"):
        train(labelled(init, table, "model.width=64"), tmp_path / "run")


@pytest.mark.parametrize(
    ("recipe", "change", "message"),
    [
        ("tinyshakespeare-gpt-small", "task=langage", "did you mean 'language'"),
        ("tinyshakespeare-gpt-small", "data.blok=3", "did you mean 'data.block'"),
        ("tinyshakespeare-gpt-small", "training.guide=1", "unknown key 'training.guide'"),
        ("tinyshakespeare-gpt-small", "training.metric=bleu", "does not measure"),
        ("tinyshakespeare-gpt-small", "model={name='bert'}", "cannot do task 'language'"),
        ("tinyshakespeare-gpt-small", "model.vocab=10", "comes from the tokenizer"),
        ("tinyshakespeare-gpt-small", "model={name='gpt',preset='nano',init='x'}", "comes from model.init"),
        ("tinyshakespeare-gpt-small", "data.train=[]", "names no file"),
        ("glue-sst2-minilm", "model.widht=3", "did you mean 'width'"),
        ("glue-sst2-minilm", "training.metric=spearman", "does not fit data with labels"),
        ("glue-sst2-minilm", "data.labels=['a']", "two or more"),
        ("glue-stsb-minilm", "training.metric=f1", "needs two labels"),
        ("prompts-t5", "data.valid.sing=x", "names the task 'sing'"),
        ("phrasebook-word2vec", "model={name='word2vec',init='x'}", "learnt from scratch"),
    ],
)
def test_recipes_that_do_not_hold_together_are_refused(recipe, change, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe(recipe, [change])


def test_every_key_of_every_task_is_documented():
    page = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text(encoding="utf-8")
    sections = {
        "model",
        "data",
        "data.filters",
        "data.variants",
        "data.phrasebook",
        "data.scenes",
        "tokenizer",
        "training",
        "decoding",
    }
    sections |= {
        "augmentation",
        "words",
        "data.candidates",
        "data.houses",
        "data.regions",
        "audio",
        "data.join",
        "data.drawn",
        "data.walkers",
        "losses",
        "data.chains",
    }
    keys = {key for entry in TASKS.values() for key in known_keys(entry.recipe)} - sections
    assert sorted(key for key in keys if f"| `{key}` |" not in page) == []
