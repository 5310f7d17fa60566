"""Faults of translating: batches against single sentences, damaged and enormous lines, no network.

REGARD_FAULT_COUNT scales the number of sentences (1000 is the full count).
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard.data.synthetic.phrasebook import phrases
from regard.families.translation.translator import Translator

COUNT = int(os.environ.get("REGARD_FAULT_COUNT", "24"))
REGARD = [sys.executable, "-m", "regard"]
OFFLINE = ["unshare", "--user", "--map-root-user", "--net"]
SMALL = (
    "data.phrasebook.count=20", "data.phrasebook.max_words=4", "data.phrasebook.valid_count=2",
    "data.phrasebook.test_count=1", "training.steps=2", "training.validate_every=0", "training.device=cpu",
    "tokenizer.size=100", "model.width=8", "model.heads=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def translator(translator_folder: Path) -> Translator:
    return regard.load(translator_folder)


def command(content: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*REGARD, *arguments], input=content, capture_output=True, env=environment)


# 6: a batch of 64 against single sentences


@pytest.mark.parametrize("beam", [1, 4])
def test_a_batch_says_what_its_sentences_say_alone(beam: int, translator: Translator) -> None:
    sources = [pair.source for pair in phrases("es", part="test", count=COUNT, seed=3, max_words=20)]
    together = translator.translate(sources, to="es", beam=beam)
    for source, answer in zip(sources, together, strict=True):
        assert translator.translate(source, to="es", beam=beam).tokens == answer.tokens, source


# 14: damaged lines, as a shell sends them


def test_damaged_lines_come_out_one_for_one_with_readable_warnings(translator_folder: Path) -> None:
    content = b"\xef\xbb\xbfwe eat\r\n\r\nbad \xff\xfe bytes\n\xed\xa0\x80 surrogate\nnul \0 here\n\n" + b"last"
    done = command(content, "translate", "-m", str(translator_folder), "--to", "es", "--beam", "1")
    assert done.returncode == 0
    assert done.stdout.count(b"\n") == 7
    said = [line for line in done.stderr.decode().splitlines() if "U+FFFD" in line]
    assert [line.split(":")[:2] for line in said] == [["regard", " warning"]] * 3
    assert "line 3: malformed UTF-8 or NUL at byte 17" in said[0]
    assert ".py" not in done.stderr.decode()


def test_a_line_of_ten_megabytes_and_a_million_tokens_is_refused_and_the_rest_translated(
    translator_folder: Path,
) -> None:
    lines = [b"we eat", b"x" * 10_000_000, b"we eat", b"bread " * 1_000_000, b"we eat", b""]
    done = command(b"\n".join(lines), "translate", "-m", str(translator_folder), "--to", "es")
    first, second, third, fourth, fifth = done.stdout.decode().splitlines()
    assert first == third == fifth != ""
    assert (second, fourth, done.returncode) == ("", "", 1)
    refused = [line for line in done.stderr.decode().splitlines() if "not translated" in line]
    assert len(refused) == 2
    for line, number in zip(refused, (2, 4), strict=True):
        assert f"line {number}" in line
        assert len(line) < 300


# 16: a long text of many sentences


def test_a_text_of_many_sentences_is_translated_whole(translator: Translator) -> None:
    sentences = [f"{pair.source}." for pair in phrases("es", part="test", count=COUNT * 4, seed=4, max_words=8)]
    sentences = [sentence[0].upper() + sentence[1:] for sentence in sentences]
    text = " ".join(sentences)
    answer = translator.translate(text, to="es", beam=1)
    assert len(answer.parts) > 1
    assert "".join("".join(source for source, _ in answer.parts).split()) == "".join(text.split())
    assert answer.target_words


# 22: no network at all


def no_network() -> bool:
    return (
        shutil.which("unshare") is not None and not subprocess.run([*OFFLINE, "true"], capture_output=True).returncode
    )


@pytest.mark.skipif(not no_network(), reason="this machine does not let us take the network away")
def test_every_verb_works_without_a_network_or_names_what_is_missing(translator_folder: Path, tmp_path: Path) -> None:
    model = ["-m", str(translator_folder), "--to", "es"]
    sets = [part for each in SMALL for part in ("--set", each)]
    verbs = (
        ["translate", "we eat", *model],
        ["look", "we eat", *model, "-o", str(tmp_path / "look.html")],
        ["evaluate", "phrasebook", *model, "--count", "2", "--max-words", "5"],
        ["compare", "sequences", "--lengths", "4", "--width", "8"],
        ["convert", str(translator_folder), str(tmp_path / "converted")],
        ["train", "phrasebook", "-o", str(tmp_path / "run"), *sets],
        ["plan", "transformer:tiny"],
        ["models"],
        ["doctor"],
        ["translate", "hi", "-m", "hf:owner/name"],
    )
    # One process for all of them, because starting one takes seconds.
    each = "import json, sys; from regard.cli.main import run; print(list(map(run, json.loads(sys.argv[1]))))"
    everything = [*OFFLINE, sys.executable, "-c", each, json.dumps(verbs)]
    done = subprocess.run(everything, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [0] * (len(verbs) - 1) + [1], done.stderr
    assert "cannot fetch owner/name" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
