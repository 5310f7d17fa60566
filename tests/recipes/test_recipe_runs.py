"""Small complete runs: they are reproducible, resume bit for bit, learn, and start with known losses."""

import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from regard.checkpoints import load_model, newest_complete, verify
from regard.training.loop import Trainer, train
from regard.training.metrics_log import read_metrics
from regard.training.recipe.load import load_recipe
from regard.training.safeguards import SignalError
from regard.training.updates import Updates

FAULTS = int(os.environ.get("REGARD_FAULT_COUNT", "1"))
TINY = [
    "data.target=es", "data.phrasebook.count=200", "data.phrasebook.valid_count=4", "data.phrasebook.test_count=4",
    "data.phrasebook.max_words=10", "tokenizer.size=200", "training.device=cpu", "training.batch_tokens=200",
    "training.steps=12", "training.lr=1e-2", "training.schedule=noam", "training.warmup=10",
    "training.validate_every=6", "training.validate_sentences=4", "training.checkpoint_every=100",
    "training.log_every=5", "training.label_smoothing=0.1", "tokenizer.kind=bpe", "tokenizer.min_frequency=2",
    "decoding.beam=2", "decoding.max_length=12", "tokenizer.mark_case=false",
]  # fmt: skip
MODELS = {
    "transformer": [
        'model={name="transformer",width=16,heads=2,encoder_depth=1,decoder_depth=1,ffn_width=32,dropout=0.3,tie="all"}'
    ],
    "seq2seq": ['model={name="seq2seq",preset="tiny",embedding=8,width=16,dropout=0.3,tie="all"}'],
}  # fmt: skip
TIMES = ("tokens_per_second", "seconds", "waiting")


def tiny(model, *sets):
    return load_recipe("phrasebook", [*TINY, *MODELS[model], *sets])


def told(out):
    """Everything that a run logged except timings."""
    return [{k: v for k, v in row.items() if k not in TIMES} for row in read_metrics(out / "metrics.jsonl")]


def state(out):
    return load_file(newest_complete(out) / "train_state" / "state.safetensors")


def assert_same_state(first, second):
    a, b = state(first), state(second)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def interrupt_at(monkeypatch, step, signum=signal.SIGTERM):
    """Deliver a signal during one step."""
    original = Updates.backward

    def backward(self, *arguments):
        if self.progress.step == step:
            os.kill(os.getpid(), signum)
        return original(self, *arguments)

    monkeypatch.setattr(Updates, "backward", backward)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """The folders of runs that nothing disturbed; each is made once."""
    made = {}

    def make(model, *sets):
        if (model, sets) not in made:
            made[model, sets] = train(tiny(model, *sets), tmp_path_factory.mktemp("whole") / "run")
        return made[model, sets]

    return make


@pytest.fixture
def whole(whole_run):
    return whole_run("transformer")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cut", [1, 5, 6, 7, 11][: max(2, FAULTS)])
def test_a_run_that_was_cut_ends_like_one_that_was_not(tmp_path, monkeypatch, whole_run, model, cut):
    sets = ("training.accumulate=2", "training.ema=0.9")
    recipe, whole = tiny(model, *sets), whole_run(model, *sets)
    with monkeypatch.context() as patch:
        interrupt_at(patch, cut)
        with pytest.raises(SignalError) as caught:
            train(recipe, tmp_path / "cut")
    assert caught.value.exit_code == 143
    assert newest_complete(tmp_path / "cut").name == f"step-{cut:08d}"
    train(recipe, tmp_path / "cut", resume=True)
    assert_same_state(whole, tmp_path / "cut")
    assert told(whole) == told(tmp_path / "cut")
    weights, cut_weights = (load_file(out / "model.safetensors") for out in (whole, tmp_path / "cut"))
    assert all(torch.equal(weights[name], cut_weights[name]) for name in weights)


@pytest.mark.parametrize("moment", ["_log", "_take"])
def test_a_signal_between_two_steps_is_never_answered_without_saving(tmp_path, monkeypatch, moment):
    original = getattr(Trainer, moment)

    def interrupted(self, *arguments):
        if self.progress.step == 5:
            os.kill(os.getpid(), signal.SIGINT)
            if moment == "_take":
                raise RuntimeError("a worker exited unexpectedly")
        return original(self, *arguments)

    monkeypatch.setattr(Trainer, moment, interrupted)
    with pytest.raises(SignalError, match="saved"):
        train(tiny("transformer"), tmp_path / "run")
    assert newest_complete(tmp_path / "run").name in ("step-00000005", "step-00000006")


def test_a_finished_run_can_be_made_longer(tmp_path, whole):
    train(tiny("transformer", "training.steps=7"), tmp_path / "longer")
    train(tiny("transformer"), tmp_path / "longer", resume=True)
    assert_same_state(whole, tmp_path / "longer")
    verify(tmp_path / "longer")


def test_a_cut_in_validation_validates_again(tmp_path, monkeypatch, whole):
    recipe = tiny("transformer")
    original = Trainer.measure

    def measure(self):
        os.kill(os.getpid(), signal.SIGINT)
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "measure", measure)
        with pytest.raises(SignalError) as caught:
            train(recipe, tmp_path / "cut")
    assert caught.value.exit_code == 130
    train(recipe, tmp_path / "cut", resume=True)
    assert told(whole) == told(tmp_path / "cut")


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_the_same_seed_gives_the_same_log_whatever_the_workers(tmp_path, whole, workers):
    train(tiny("transformer", f"training.workers={workers}"), tmp_path / "second")
    assert told(whole) == told(tmp_path / "second")


def test_another_seed_gives_another_log(tmp_path, whole):
    assert tiny("transformer").seed != 2
    train(tiny("transformer", "seed=2"), tmp_path / "run")
    assert told(whole) != told(tmp_path / "run")


@pytest.mark.parametrize("model", MODELS)
def test_a_handful_of_sentences_is_learnt_by_heart(tmp_path, model):
    wide = {
        "transformer": ["model.width=64", "model.ffn_width=128"],
        "seq2seq": ["model.embedding=64", "model.width=64"],
    }
    recipe = tiny(
        model, *wide[model], "model.dropout=0.0", "data.phrasebook.count=16", "data.phrasebook.max_words=6",
        "training.steps=150", "training.label_smoothing=0", "training.validate_every=0", "training.log_every=25",
        "training.weight_decay=0",
    )  # fmt: skip
    out = train(recipe, tmp_path / "run")
    assert [row["loss"] for row in told(out) if row["kind"] == "train"][-1] < 0.05


def test_the_first_losses_are_the_known_ones(tmp_path):
    nouns = [("cat", "gato"), ("dog", "perro"), ("king", "rey"), ("book", "libro"), ("river", "río")]
    lines = [f"the {a} sees the {b}\tel {c} ve el {d}\n" for a, c in nouns for b, d in nouns]
    (tmp_path / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    corpus = [f"data.{part}={tmp_path / 'pairs.tsv'}" for part in ("train", "valid")]
    recipe = tiny("transformer", *corpus, "data.test=''", "tokenizer.kind=word", "model.dropout=0.0")
    out = train(recipe, tmp_path / "run")
    losses = [row["loss"] for row in told(out) if row["kind"] in ("train", "valid")]
    assert losses == pytest.approx([3.52992, 2.56170, 2.49435, 2.06318, 1.74906], rel=1e-3)


def test_the_published_folder_is_complete(whole):
    out = whole
    verify(out)
    assert not (out / "final").exists()
    loaded = load_model(out)
    assert loaded.folder == out
    again = load_recipe(out / "recipe.toml")
    assert again == tiny("transformer").resolved()
    assert list((out / "tensorboard").glob("events.out.*"))
