"""Training of speech recognisers: losses, held-out speakers, texts that do not fit, and exact resumption."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional

from regard.cli.main import run
from regard.errors import ConfigError, DataError
from regard.families.speech.conformer import Conformer
from regard.families.speech.manifest import utterances
from regard.training.loop import train
from regard.training.losses import ctc
from regard.training.metrics_log import read_metrics
from regard.training.recipe.load import load_recipe, open_task
from tiny_speech import write_wav

SMALL = [
    "model.width=16", "model.heads=2", "model.depth=1", "model.ffn_width=24", "model.kernel=3", "data.drawn.count=24",
    "data.drawn.valid_count=6", "data.drawn.test_count=4", "data.drawn.longest=2", "training.batch=4",
    "training.steps=4", "training.warmup=1", "training.log_every=1", "training.validate_every=4",
    "training.checkpoint_every=2", "training.device=cpu", "training.schedule=constant",
]  # fmt: skip
JOINED = ["data.join.shortest=2", "data.join.longest=3", "data.join.count=12", "data.join.valid_count=4",
          "data.join.test_count=4"]  # fmt: skip


def recipe(*sets):
    return load_recipe("speech-conformer", [*SMALL, *sets]).resolved()


def opened(tmp_path, *sets):
    return open_task(recipe(*sets), tmp_path / "data", torch.device("cpu"), lambda: None)


def test_the_loss_is_torchs_own_of_every_recording():
    torch.manual_seed(0)
    frames, labels = torch.randn(2, 7, 5), torch.tensor([[1, 2, 2, 4], [3, 4, 0, 0]])
    total = ctc(frames, torch.tensor([7, 5]), labels, torch.tensor([3, 1]), 0)
    wanted = 0.0
    for row, (time, size) in enumerate([(7, 3), (5, 1)]):
        logs = frames[row, :time].log_softmax(-1)[:, None]
        wanted += functional.ctc_loss(
            logs, labels[row : row + 1, :size], torch.tensor([time]), torch.tensor([size]), reduction="sum"
        )
    assert total == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_both_losses_are_weighed(tmp_path, weight):
    task = opened(tmp_path, "model.decoder_depth=1", "model.dropout=0", f"training.ctc_weight={weight}",
                  "augmentation.band_masks=0", "augmentation.time_masks=0", "training.label_smoothing=0")  # fmt: skip
    torch.manual_seed(0)
    model, (_, batch) = task.build().eval(), next(task.batches({"epoch": 0, "index": 0}))
    found = task.loss(model, batch)
    from regard.families.speech.features import speech_features

    features, mask = speech_features(batch.samples, batch.lengths, task.corpus.audio)
    heard = model(features, mask, batch.inputs, batch.labels_mask)
    labelled = ctc(heard.frames, heard.mask.sum(1), batch.labels, batch.labels_mask.sum(1) - 1, 0)
    taught = -heard.taught.log_softmax(-1).gather(-1, batch.labels[..., None])[..., 0][batch.labels_mask].sum()
    assert found.total.item() == pytest.approx((weight * labelled + (1 - weight) * taught).item(), rel=1e-4)
    assert int(found.tokens) == batch.tokens


def test_training_goes_on_to_the_bit(tmp_path):
    sets = ["training.validate_every=0", "model.decoder_depth=1", *JOINED, "data.speeds=[0.9, 1.0]"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(recipe(*sets), whole)
    train(recipe(*sets, "training.steps=2"), parts)
    train(recipe(*sets), parts, resume=True)
    rows = [read_metrics(place / "metrics.jsonl") for place in (whole, parts)]
    losses = [[row["loss"] for row in each if row["kind"] == "train"] for each in rows]
    assert losses[0] == losses[1] and len(losses[0]) == 4
    assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()


def digits(folder, counts):
    """Recordings named as those of the Free Spoken Digit Dataset."""
    folder.mkdir()
    drawn = utterances(part="train", count=sum(counts.values()), seed=5, digits=(1, 1), rate=8000)
    names = [(name, number) for name, count in counts.items() for number in range(count)]
    for (name, number), each in zip(names, drawn, strict=True):
        write_wav(folder / f"{number % 10}_{name}_{number}.wav", each.samples, 8000)


@pytest.mark.parametrize("joined", [False, True])
def test_a_speaker_can_be_left_out(tmp_path, joined):
    digits(tmp_path / "r", {"ann": 20, "bob": 20, "eve": 10})
    sets = [f"data.train={tmp_path / 'r'}", "data.held_out_speaker=eve", *(JOINED if joined else [])]
    parts = opened(tmp_path, *sets).corpus.parts
    speakers = {part: {each.speaker for each in map(rows.utterance, range(len(rows)))} for part, rows in parts.items()}
    assert speakers == {"train": {"ann", "bob"}, "valid": {"ann", "bob"}, "test": {"eve"}}
    used = {part: set(rows.rows.tolist()) for part, rows in parts.items()}
    assert not used["train"] & used["valid"] and len(used["valid"]) == 4 and len(used["test"]) == 10
    with pytest.raises(DataError, match="nobody has this name; there are ann, bob, eve"):
        opened(tmp_path / "b", f"data.train={tmp_path / 'r'}", "data.held_out_speaker=zoe")


@pytest.mark.parametrize("kind", ["character", "word"])
def test_the_tokens_of_joined_recordings_are_those_of_their_text(tmp_path, kind):
    digits(tmp_path / "r", {"ann": 20})
    sets = [f"data.train={tmp_path / 'r'}", *JOINED, "tokenizer.size=300", "tokenizer.min_frequency=1"]
    corpus = opened(tmp_path, *sets, f"tokenizer.kind={kind}").corpus
    for rows in corpus.parts.values():
        for each in map(rows.utterance, range(len(rows))):
            assert " " in each.text and corpus.tokenizer.decode(each.ids) == each.text
    with pytest.raises(DataError, match=r"'zero' twice are not its own .* set tokenizer\.kind = 'word'"):
        opened(tmp_path / "pieces", *sets, "tokenizer.kind=bpe")  # a piece after a space is another one


def test_without_speakers_held_out_recordings_are_divided(tmp_path):
    digits(tmp_path / "r", {"ann": 20, "bob": 20})
    parts = opened(tmp_path, f"data.train={tmp_path / 'r'}").corpus.parts
    used = [set(rows.rows.tolist()) for rows in parts.values()]
    assert [len(each) for each in used] == [32, 4, 4] and len(set.union(*used)) == 40


def test_texts_that_do_not_fit_are_refused_by_name_or_left_out(tmp_path):
    write_wav(tmp_path / "short.wav", np.zeros(800, dtype=np.float32) + 0.1, 8000)  # 10 frames: 3 of the encoder
    write_wav(tmp_path / "long.wav", np.zeros(8000, dtype=np.float32) + 0.1, 8000)
    rows = [{"audio": "short.wav", "text": "one two three four"}, {"audio": "long.wav", "text": "one two two"}]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sets = [f"data.train={tmp_path / 'm.jsonl'}", "data.split=0", "training.validate_every=0"]
    with pytest.raises(DataError, match=r"short\.wav: its text needs 4 frames, but the model has 3 for it"):
        opened(tmp_path, *sets)
    corpus = opened(tmp_path, *sets, "data.skip_bad=true").corpus
    assert len(corpus.parts["train"]) == 1 and "1 left out, the first: short.wav" in corpus.summary
    # a decoder alone has no such limit
    assert len(opened(tmp_path / "b", *sets, "model.ctc=false", "model.decoder_depth=1").corpus.parts["train"]) == 2


def test_parts_of_recordings_and_bad_files(tmp_path):
    write_wav(tmp_path / "a.wav", np.full(16000, 0.1, dtype=np.float32), 8000)
    (tmp_path / "b.wav").write_bytes(b"nothing")
    rows = [
        {"audio": "a.wav", "text": "one", "start": 0.5, "end": 1.0},
        {"audio": "b.wav", "text": "two"},
        {"audio": "a.wav", "text": " "},
        {"audio": "a.wav", "text": "three", "start": 1.0, "end": 9.0},
    ]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sets = [f"data.train={tmp_path / 'm.jsonl'}", "data.split=0", "training.validate_every=0"]
    corpus = opened(tmp_path, *sets, "data.skip_bad=true").corpus
    assert [row.text for row in corpus.parts["train"].store.rows] == ["one"] and len(corpus.skipped) == 3
    assert len(corpus.parts["train"].utterance(0).samples) == 4000
    with pytest.raises(DataError, match=r"b\.wav is no audio.*data\.skip_bad"):
        opened(tmp_path / "b", *sets)
    with pytest.raises(DataError, match=r"0\.5 s long, but data\.longest is 0\.2 s"):
        opened(tmp_path / "c", *sets, "data.longest=0.2")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("audio.mels=20", "model.bands = 40"),
        ("data.speeds=[0.9]", "must contain 1"),
        ("data.held_out_speaker=x", "parts of its own"),
        ("training.validate_utterances=0", "validate_utterances above 0"),
        ("audio.log=whisper", "natural"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        load_recipe("speech-conformer", [change])


def test_the_built_in_speech_has_one_name_in_recipes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_recipe("speech-conformer", ["data.train=speech"]).data.train == "builtin:speech"
    (tmp_path / "speech").mkdir()
    assert load_recipe("speech-conformer", ["data.train=speech"]).data.train == "speech"  # a folder of that name


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A recogniser with a decoder of the built-in speech, trained for a few steps."""
    folder = tmp_path_factory.mktemp("speech") / "model"
    train(recipe("model.decoder_depth=1", "training.validate_utterances=4"), folder)
    return folder


def test_errors_and_blanks_are_measured(trained):
    rows = read_metrics(trained / "metrics.jsonl")
    for kind in ("valid", "test"):
        (row,) = (row for row in rows if row["kind"] == kind)
        assert {"loss", "wer", "sentence_errors", "blanks"} <= row.keys()
        assert 0 <= row["blanks"] <= 1 and 0 <= row["sentence_errors"] <= 1
    (samples,) = (row for row in rows if row["kind"] == "samples")
    assert samples["pairs"][0].keys() == {"source", "target", "output"}


def test_a_finished_run_can_be_used_and_started_from(trained, tmp_path):
    import regard

    recognizer = regard.load(trained)
    assert isinstance(recognizer.model, Conformer) and recognizer.rate == 8000
    task = open_task(
        load_recipe("speech-conformer", [*SMALL, f"model.init={trained}", "model.preset="]),
        tmp_path / "data", torch.device("cpu"), lambda: None,
    )  # fmt: skip
    for mine, own in zip(task.build().parameters(), recognizer.model.parameters(), strict=False):
        assert mine.shape == own.shape


def test_the_command_refuses_in_one_line(tmp_path, capsys):
    assert (
        run(["train", "speech-conformer", "--set", f"data.train={tmp_path / 'no.tsv'}", "-o", str(tmp_path / "o")]) == 1
    )
    assert "there is no file or folder" in capsys.readouterr().err
