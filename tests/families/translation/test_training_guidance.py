"""Guided attention: the loss, the heads that it trains, its data, and its effect on alignment."""

import json

import numpy as np
import pytest
import torch

from regard.attention import record
from regard.checkpoints import load_model
from regard.data.text.pair_loader import PairLoader
from regard.data.text.pair_store import EncodedPair, PairStore
from regard.errors import ConfigError, UsageError
from regard.families.translation.evaluate import evaluate_pairs, held_out_pairs
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.families.translation.translator import Translator
from regard.look.forced_pass import guided_alignment
from regard.training.loop import train
from regard.training.losses import guidance
from regard.training.recipe.load import load_recipe

SETS = (
    "data.target=es", "data.phrasebook.count=1000", "data.phrasebook.valid_count=30", "data.phrasebook.test_count=2",
    "data.phrasebook.max_words=8", "model.width=64", "model.heads=2", "model.ffn_width=128", "model.encoder_depth=1",
    "model.decoder_depth=2", "model.dropout=0.0", "tokenizer.size=500", "training.steps=90", "training.warmup=20",
    "training.lr=4e-3", "training.batch_tokens=700", "training.validate_every=0", "training.checkpoint_every=0",
    "training.device=cpu", "decoding.beam=1",
)  # fmt: skip
SMALL = ("data.phrasebook.count=150", "model.width=16", "model.ffn_width=32", "training.batch_tokens=200")


def recipe(*sets):
    return load_recipe("phrasebook", [*SETS, *sets])


def test_guidance_is_the_cross_entropy_of_the_links():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 4, 5, generator=generator)
    links = torch.rand(2, 4, 5, generator=generator) < 0.4
    links[0, 1] = False  # a token without a link is ignored
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    links &= mask[:, None]
    expected = 0.0
    for b in range(2):
        for t in range(4):
            a = torch.softmax(scores[b, t][mask[b]], dim=0)
            linked = [s for s in range(5) if links[b, t, s]]
            expected -= sum(a[s].log().item() / len(linked) for s in linked)
    assert guidance(scores, links, mask).item() == pytest.approx(expected, rel=1e-5)


def test_guidance_reaches_the_guided_head_and_what_feeds_it_alone():
    config = TransformerConfig(
        source_vocab=20, target_vocab=20, width=16, heads=2, encoder_depth=1, decoder_depth=3, ffn_width=32, tie="none",
        dropout=0.0,
    )  # fmt: skip
    model = Transformer(config)
    guided = guided_alignment(model)
    assert (guided.layer, guided.head, guided.shift) == ("decoder.1.cross", 0, True)
    source, inputs = torch.randint(1, 20, (3, 6)), torch.randint(1, 20, (3, 5))
    mask = torch.ones_like(source, dtype=torch.bool)
    with record(model, guided.layer, scores=True, gradients=True) as looks:
        watched = model(source, mask, inputs)
    torch.testing.assert_close(watched, model(source, mask, inputs), rtol=0, atol=0)
    guidance(looks[guided.layer][:, 0], torch.rand(3, 5, 6) < 0.5, mask).backward()
    reached = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert not [name for name in reached if name.startswith(("decoder.2", "output"))]
    assert "decoder.1.cross.value.weight" not in reached and "decoder.1.cross.output.weight" not in reached
    assert {"encoder.0.attention.value.weight", "decoder.0.cross.value.weight", "source_embedding.weight"} <= reached
    for name in ("query", "key"):
        gradient = getattr(model.decoder[1].cross, name).weight.grad
        assert gradient[:8].abs().sum() > 0  # the first head
        assert gradient[8:].abs().sum() == 0


def test_recorded_weights_have_no_gradient_unless_it_is_asked_for():
    model = Transformer(
        TransformerConfig(source_vocab=9, target_vocab=9, width=8, heads=2, encoder_depth=1, decoder_depth=1)
    )
    source = torch.ones(1, 3, dtype=torch.long)
    with record(model, "*cross") as looks:
        model(source, source > 0, source)
    assert not looks["decoder.0.cross"].requires_grad


def test_links_travel_with_the_pairs_the_same_with_workers(tmp_path):
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 9, size=(40, 2)).tolist()
    pairs = [EncodedPair([*[row + 3] * (s - 1), 2], [*[row + 3] * (t - 1), 2]) for row, (s, t) in enumerate(sizes)]
    links = [np.stack([rng.integers(s, size=4), rng.integers(t, size=4)], axis=1) for s, t in sizes]
    store = PairStore.write(tmp_path / "store", pairs, vocabulary=50)
    assert not store.has_links
    store = store.add_links(links)
    alone, helped = (
        PairLoader(store, pad=0, start=1, batch_tokens=40, seed=1, workers=workers).batches() for workers in (0, 2)
    )
    for (*_, batch), (*_, same) in zip((next(alone) for _ in range(12)), helped, strict=False):
        torch.testing.assert_close(batch.links, same.links)
        for source, matrix in zip(batch.source, batch.links, strict=True):
            wanted = {(t, s) for s, t in links[int(source[0]) - 3].tolist()}
            assert {tuple(cell) for cell in matrix.nonzero().tolist()} == wanted


def test_a_guided_model_aligns_better_and_says_which_head_does(tmp_path):
    rates, few = {}, ("data.phrasebook.count=1000", "data.phrasebook.max_words=6", "training.steps=110")
    for guide in (0.0, 0.5):
        folder = train(recipe(f"training.guide={guide}", *few, "data.phrasebook.valid_count=10"), tmp_path / str(guide))
        translator = Translator.load(folder)
        scores, _ = evaluate_pairs(translator, held_out_pairs(translator, "phrasebook", count=40, max_words=6))
        rates[guide] = scores["alignment_error_rate"]
    noted = json.loads((tmp_path / "0.5" / "alignment.json").read_text())
    assert (noted["layer"], noted["head"], noted["shift"]) == ("decoder.0.cross", 0, True)
    assert rates[0.5] < min(0.25, rates[0.0] - 0.1)


@pytest.mark.parametrize("more", ["model.name=transformer", "training.r_drop=1.0"])
def test_a_guided_run_resumes_exactly(tmp_path, more):
    sets = (*SMALL, more, "training.guide=0.3", "model.dropout=0.1", "training.checkpoint_every=4")
    whole = train(recipe(*sets, "training.steps=8", "training.schedule=constant"), tmp_path / "whole")
    train(recipe(*sets, "training.steps=4", "training.schedule=constant"), tmp_path / "cut")
    cut = train(recipe(*sets, "training.steps=8", "training.schedule=constant"), tmp_path / "cut", resume=True)
    for one, other in zip(load_model(whole).model.parameters(), load_model(cut).model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_attention_of_an_rnn_is_guided_where_it_predicts(tmp_path):
    sets = ("model.name=seq2seq", "model.embedding=16", "model.width=16", "training.guide=0.5", "training.steps=2")
    names = ("model.heads", "model.ffn_width", "model.encoder_depth", "model.decoder_depth")
    kept = [each for each in (*SETS, *SMALL) if not each.startswith((*names, "model.width"))]
    folder = train(load_recipe("phrasebook-rnn", [*kept, *sets]), tmp_path / "run")
    assert json.loads((folder / "alignment.json").read_text()) | {"threshold": 0} == {
        "layer": "cross", "shift": False, "head": 0, "threshold": 0
    }  # fmt: skip


def test_what_cannot_be_guided_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="one segmentation"):
        recipe("training.guide=0.1", "tokenizer.dropout=0.1", "tokenizer.kind=bpe")
    with pytest.raises(ConfigError, match="compiled"):
        recipe("training.guide=0.1", "training.compile=true")
    train(recipe(*SMALL, "training.steps=1"), tmp_path / "run")
    with pytest.raises(UsageError, match="never aligned"):
        train(recipe(*SMALL, "training.steps=2", "training.guide=0.1"), tmp_path / "run", resume=True)
