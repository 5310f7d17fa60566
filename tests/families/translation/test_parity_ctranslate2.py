"""Translators exported to CTranslate2: its engine generates the same tokens as Regard."""

from pathlib import Path

import pytest
import torch

import regard
from regard.cli.main import run
from regard.data.synthetic.phrasebook import phrases
from regard.errors import CheckpointError
from regard.families.translation.ctranslate2 import export_ctranslate2
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.search.search import search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.start import from_source

ctranslate2 = pytest.importorskip("ctranslate2")

START, END, UNKNOWN = 1, 2, 3
SIZES = {"source_vocab": 23, "target_vocab": 31, "width": 16, "heads": 4, "ffn_width": 24, "max_length": 48}


def engine(folder: Path):
    return ctranslate2.Translator(str(folder), compute_type="float32", inter_threads=1, intra_threads=1)


def test_a_trained_translator_says_the_same(translator_folder: Path, tmp_path: Path) -> None:
    assert run(["convert", str(translator_folder), str(tmp_path / "out"), "--to", "ctranslate2"]) == 0
    ours, theirs = regard.load(translator_folder), engine(tmp_path / "out")
    sentences = [pair.source for pair in phrases("es", part="test", count=40, seed=1, max_words=6)]
    tokenizer = ours.tokenizer
    pieces = [tokenizer.source.pieces(row[:-1]) for row in tokenizer.source_ids(sentences, "es")]  # no end token

    expected = [answer.tokens for answer in ours.translate(sentences, to="es", beam=1, max_length=30)]
    assert [a.hypotheses[0] for a in theirs.translate_batch(pieces, beam_size=1, max_decoding_length=30)] == expected

    # The two engines end a beam search by different rules, so both generate 12 tokens. CTranslate2 removes suppressed
    # tokens before the softmax.
    side = tokenizer.target
    ruled_out = dict.fromkeys((side.start, side.end, side.pad), -1e9)
    answers = ours.translate(sentences, to="es", beam=5, max_length=12, logit_bias=ruled_out)
    found = theirs.translate_batch(
        pieces, beam_size=5, min_decoding_length=12, max_decoding_length=12, return_scores=True
    )
    assert [a.hypotheses[0] for a in found] == [answer.tokens for answer in answers]
    assert [a.scores[0] for a in found] == pytest.approx([answer.score for answer in answers], abs=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "pre", "activation": "gelu", "positions": "learned", "tie": "none", "output_bias": True},
        {"encoder_depth": 1, "decoder_depth": 3, "activation": "swish", "positions": "sinusoidal"},
        {"scale_embedding": False, "positions": "linear", "pad": 4},
    ],
)
def test_every_kind_it_has_layers_for(changes: dict[str, object], tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = Transformer(TransformerConfig.parse({**SIZES, "encoder_depth": 2, "decoder_depth": 2, **changes})).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    names = [f"t{number}" for number in range(31)]
    export_ctranslate2(model, tmp_path / "out", source=names, target=names, start=START, end=END, unknown=UNKNOWN)
    source = torch.randint(5, 23, (6, 9))
    source[:, -1] = END
    settings = SearchSettings(beam=3, min_length=10, max_length=10)
    vocabulary = Vocabulary(START, END, model.config.pad)
    mask = torch.ones_like(source, dtype=torch.bool)
    expected = [
        best.tokens
        for best, *_ in search(model, from_source(model, source, mask, settings, START), settings, vocabulary)
    ]
    rows = [[f"t{number}" for number in row[:-1]] for row in source.tolist()]
    found = engine(tmp_path / "out").translate_batch(rows, beam_size=3, min_decoding_length=10, max_decoding_length=10)
    assert [[int(piece[1:]) for piece in answer.hypotheses[0]] for answer in found] == expected


def test_what_it_has_no_layer_for_is_refused(tmp_path: Path) -> None:
    model = Transformer(TransformerConfig.parse({**SIZES, "positions": "rotary"}))
    with pytest.raises(CheckpointError, match="positions = 'rotary'"):
        export_ctranslate2(model, tmp_path / "out", source=(), target=(), start=START, end=END, unknown=UNKNOWN)
    assert not (tmp_path / "out").exists()


def test_tokens_without_a_name_of_their_own_get_one(tmp_path: Path) -> None:
    model = Transformer(TransformerConfig.parse({**SIZES, "encoder_depth": 1, "decoder_depth": 1}))
    names = ["<pad>", "<s>", "</s>", "<unk>", "a", "a"]
    export_ctranslate2(model, tmp_path / "out", source=names, target=names, start=START, end=END, unknown=UNKNOWN)
    (found,) = engine(tmp_path / "out").translate_batch([["a"]], beam_size=1, max_decoding_length=3)
    assert set(found.hypotheses[0]) <= {*names, *(f"<token-{number}>" for number in range(5, 31))}
