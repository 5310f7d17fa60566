"""`regard generate`: one output line per input line, JSON, streams, and refused input."""

import io
import json
import math
import sys

import pytest
import torch

from regard.checkpoints import export_model
from regard.cli.main import run
from regard.families.language.gpt import Gpt, GptConfig
from regard.families.language.language_models import LanguageModel

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of single bytes: its answers contain line breaks and incomplete characters."""
    torch.manual_seed(0)
    model = Gpt(GptConfig(vocab=257, width=16, heads=2, depth=1, max_length=40))
    torch.nn.init.normal_(model.positions.table, std=0.5)

    def extras(place):
        alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {letter: number for number, letter in enumerate(["<|endoftext|>", *alphabet])}
        library = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
        library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = tokenizers.decoders.ByteLevel()
        library.save(str(place / "tokenizer.json"))
        (place / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}')

    place = tmp_path_factory.mktemp("cli") / "bytes"
    export_model("gpt", model, place, extras=extras)
    return place


def lines_in(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_one_line_comes_out_for_each_line(folder, monkeypatch, capsys):
    lines_in(monkeypatch, "one\ntwo\n\nfour\n")
    assert run(["generate", "-m", str(folder), "--max-tokens", "20", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 4
    expected = LanguageModel.load(folder).generate(["one", "two", "", "four"], max_tokens=20, seed=3)
    written = [line.replace("\\\\", "\0").replace("\\n", "\n").replace("\\r", "\r").replace("\0", "\\")
               for line in out.split("\n")[:4]]  # fmt: skip
    assert written == [each.text for each in expected]


def test_json_holds_everything(folder, capsys):
    assert run(["generate", "one", "-m", str(folder), "--json", "-n", "2", "--best-of", "3", "--max-tokens", "5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prompt"] == "one" and found["reason"] in ("stop", "length")
    assert len(found["alternatives"]) == 1 and found["score"] >= found["alternatives"][0]["score"]


def test_several_answers_have_scores(folder, capsys):
    assert run(["generate", "one", "-m", str(folder), "--beam", "3", "-n", "3", "--max-tokens", "4"]) == 0
    scores = [float(line.split("\t")[0]) for line in capsys.readouterr().out.splitlines() if "\t" in line]
    assert len(scores) >= 1 and scores == sorted(scores, reverse=True)


def test_a_stream_says_the_same(folder, capsys):
    options = ["-m", str(folder), "--temperature", "0.9", "--max-tokens", "25", "--stop", "z"]
    assert run(["generate", "one", *options]) == 0
    whole = capsys.readouterr().out
    assert run(["generate", "one", *options, "--stream"]) == 0
    assert capsys.readouterr().out == whole


def test_a_prompt_that_is_too_long_is_an_empty_line_and_a_message(folder, monkeypatch, capsys):
    lines_in(monkeypatch, f"one\n{'x' * 99}\nthree\n")
    assert run(["generate", "-m", str(folder), "--max-tokens", "3", "--temperature", "0"]) == 1
    captured = capsys.readouterr()
    assert captured.out.split("\n")[1] == "" and captured.out.count("\n") == 3
    assert "line 2 is refused" in captured.err and "99 tokens" in captured.err


def test_penalties_and_biases_are_the_models(folder, capsys):
    options = [
        "--presence-penalty",
        "1.5",
        "--frequency-penalty",
        "0.5",
        "--logit-bias",
        "9=2",
        "--logit-bias",
        "0=-100",
    ]
    command = ["generate", "one", "-m", str(folder), "--temperature", "0", "--max-tokens", "12"]
    assert run([*command, *options]) == 0
    changes = {"presence_penalty": 1.5, "frequency_penalty": 0.5, "logit_bias": {9: 2.0, 0: -100.0}}
    expected = LanguageModel.load(folder).generate("one", temperature=0.0, max_tokens=12, **changes)
    assert capsys.readouterr().out == expected.text + "\n"
    assert run([*command, "--logit-bias", "nine"]) == 2
    assert "expected TOKEN=VALUE" in capsys.readouterr().err


def test_mistakes_are_one_line(folder, translator_folder, capsys):
    assert run(["generate", "one", "-m", str(folder), "--stream", "--json"]) == 2
    assert run(["generate", "one", "-m", str(folder), "--beam", "2", "--temperature", "1"]) == 2
    assert run(["generate", "one", "-m", str(translator_folder)]) == 2
    assert "is a Transformer, which does not write texts or make images; try translate" in capsys.readouterr().err


@pytest.mark.parametrize("stride", [None, 7])
def test_the_perplexity_of_a_file_is_that_of_predicting_each_token_alone(folder, tmp_path, capsys, stride):
    text = "It was a bright day in April,\nand the clocks… were striking thirteen.\n"
    (tmp_path / "text.txt").write_text(text, "utf-8")
    chosen = [] if stride is None else ["--stride", str(stride)]
    command = ["evaluate", "-m", str(folder), "--text", str(tmp_path / "text.txt"), *chosen]
    assert run([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    lm = LanguageModel.load(folder)
    ids, window, step, total = [0, *lm.tokenizer.encode([text])[0].ids], 40, stride or 20, 0.0
    for place in range(1, len(ids)):  # the first window that contains a token predicts it
        first = max(0, -(-(place + 1 - window) // step)) * step
        total += lm.model(torch.tensor([ids[first:place]]))[0, -1].log_softmax(-1)[ids[place]].item()
    assert found["tokens"] == found["bytes"] == len(text.encode()) and found["words"] == 13
    assert math.log(found["perplexity"]) == pytest.approx(-total / len(text.encode()), abs=1e-4)
    assert math.log(found["perplexity_per_word"]) == pytest.approx(-total / 13, abs=1e-3)
    assert found["bits_per_byte"] == pytest.approx(math.log2(found["perplexity_per_byte"]))
    assert run(command) == 0
    assert capsys.readouterr().out.startswith("perplexity ")


def test_perplexity_refuses_what_has_none(folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("some text", "utf-8")
    text = ["--text", str(tmp_path / "text.txt")]
    assert run(["evaluate", *text]) == 2
    assert "-m" in capsys.readouterr().err
    assert run(["evaluate", "phrasebook", "--stride", "3"]) == 2
    assert "--text" in capsys.readouterr().err
    assert run(["evaluate", "-m", str(folder), "--text", str(tmp_path / "nowhere.txt")]) == 1
    assert "no such file" in capsys.readouterr().err
    assert run(["evaluate", "-m", str(folder), *text, "--stride", "40"]) == 2
    assert "below the window" in capsys.readouterr().err
