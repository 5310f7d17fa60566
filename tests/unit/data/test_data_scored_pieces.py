"""Tokenizers of pieces with scores (tokens.json): merges by brute force, bytes of unknown characters, round trips."""

import itertools
import json
import random

import pytest

from regard.data.tokenizers.text import TextTokenizer

LETTERS = " abcd"


@pytest.fixture(scope="module")
def scores():
    """Single characters, and longer pieces whose scores are random; every piece is made of two others."""
    rng, found = random.Random(0), dict.fromkeys(LETTERS, -100.0)
    while len(found) < 40:
        joined = rng.choice(list(found)) + rng.choice(list(found))
        if len(joined) <= 6:
            found.setdefault(joined, rng.uniform(-50, 0))
    return found


@pytest.fixture(scope="module")
def tokenizer(scores, tmp_path_factory):
    marks = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{byte:02X}>" for byte in range(256))]
    folder = tmp_path_factory.mktemp("scored")
    table = [[mark, 0.0] for mark in marks] + [[piece, score] for piece, score in scores.items()]
    (folder / "tokens.json").write_text(json.dumps(table))
    return TextTokenizer.load(folder)


def merged(text, scores):
    """SentencePiece's rule: join the neighbours whose result has the best score, the first of equals, until none do."""
    pieces = list(f" {text}")
    while True:
        pairs = [(scores[a + b], -at) for at, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in scores]
        if not pairs:
            return pieces
        at = -max(pairs)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


def test_texts_are_cut_as_by_brute_force(tokenizer, scores):
    rng = random.Random(1)
    for _ in range(200):
        text = "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 20)))
        (found,) = tokenizer.encode([text])
        assert tokenizer.pieces(found.ids) == ["<s>", *merged(text, scores)]
        assert tokenizer.decode(found.ids) == text


def test_characters_of_no_piece_become_bytes(tokenizer):
    (found,) = tokenizer.encode(["é"])
    assert tokenizer.pieces(found.ids) == ["<s>", " ", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(found.ids) == "é" and tokenizer.start == 1 and tokenizer.end == 2
