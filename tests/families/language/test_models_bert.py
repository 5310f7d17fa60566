"""BERT's shapes, options and heads; its outputs are compared with transformers in tests/parity."""

import pytest
import torch

from regard.attention import record
from regard.checkpoints.models import own_tensors
from regard.errors import ConfigError
from regard.families.language.bert import PRESETS, Bert, BertConfig

SMALL = BertConfig(vocab=23, width=16, heads=4, depth=3, ffn_width=24, max_length=12)
TOKENS = torch.randint(1, 23, (3, 7), generator=torch.Generator().manual_seed(0))
MASK = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]


def model(**changes):
    torch.manual_seed(5)
    return Bert(SMALL.replace(**changes)).eval()


@pytest.mark.parametrize(
    ("head", "shape"),
    [("none", None), ("masked", (3, 7, 23)), ("pretraining", (3, 7, 23)), ("classify", (3, 5)), ("tags", (3, 7, 5)),
     ("answer", (3, 7, 2))],
)  # fmt: skip
def test_every_head_answers_in_its_shape(head, shape):
    found = model(head=head, labels=5 if head in ("classify", "tags") else 2)(TOKENS, MASK)
    assert found.hidden.shape == (3, 7, 16) and found.pooled.shape == (3, 16)
    assert (None if found.logits is None else found.logits.shape) == shape
    assert (found.next_sentence is not None) == (head == "pretraining")


def test_padding_changes_nothing():
    encoder = model()
    together = encoder(TOKENS, MASK)
    for row, length in enumerate(MASK.sum(1).tolist()):
        alone = encoder(TOKENS[row : row + 1, :length], MASK[row : row + 1, :length])
        torch.testing.assert_close(together.hidden[row, :length], alone.hidden[0], atol=1e-6, rtol=0)
        torch.testing.assert_close(together.pooled[row], alone.pooled[0], atol=1e-6, rtol=0)


def test_every_token_sees_both_sides():
    encoder = model()
    changed = TOKENS.clone()
    changed[0, 3] += 1 if changed[0, 3] < 22 else -1
    moved = (encoder(TOKENS, MASK).hidden - encoder(changed, MASK).hidden).abs().amax(-1)
    assert (moved[0] > 0).all() and (moved[1:] == 0).all()


def test_segments_count_and_default_to_the_first():
    encoder = model()
    torch.testing.assert_close(
        encoder(TOKENS, MASK).hidden, encoder(TOKENS, MASK, torch.zeros_like(TOKENS)).hidden, atol=0, rtol=0
    )
    assert not torch.equal(encoder(TOKENS, MASK).hidden, encoder(TOKENS, MASK, torch.ones_like(TOKENS)).hidden)


def test_shared_layers_are_one_layer_that_can_be_looked_at_in_each_depth():
    shared, plain = model(shared_layers=True), model()
    count = {name: sum(p.numel() for p in each.encoder.parameters()) for name, each in (("s", shared), ("p", plain))}
    assert count["p"] == 3 * count["s"]
    assert not any(name.startswith("encoder.1") for name in own_tensors(shared))
    with record(shared) as looks:
        shared(TOKENS, MASK)
    assert [looks[f"encoder.{layer}.attention"].shape for layer in range(3)] == [(3, 4, 7, 7)] * 3
    assert not torch.equal(looks["encoder.0.attention"], looks["encoder.1.attention"])


def test_a_factorised_embedding_is_narrow_and_still_the_output():
    small = model(embedding_width=4, head="masked")
    assert small.embedding.weight.shape == (23, 4)
    hidden = small.encode(TOKENS, MASK)
    torch.testing.assert_close(small.predict(hidden[MASK]), small(TOKENS, MASK).logits[MASK], atol=1e-6, rtol=0)


def test_positions_of_roberta_begin_after_the_padding_token():
    plain, shifted = model(pad=1), model(pad=1, positions_after_pad=True)
    shifted.load_state_dict(plain.state_dict())
    with torch.no_grad():
        shifted.positions.table[2:] = plain.positions.table[:-2]
    torch.testing.assert_close(plain(TOKENS, MASK).hidden, shifted(TOKENS, MASK).hidden, atol=0, rtol=0)
    assert (plain.config.longest, shifted.config.longest) == (12, 10)


def test_it_learns_a_hidden_word():
    torch.manual_seed(0)
    small = Bert(SMALL.replace(head="masked", dropout=0.0, attention_dropout=0.0))
    optimiser = torch.optim.AdamW(small.parameters(), lr=1e-2)
    tokens = torch.randint(3, 23, (16, 6))
    hidden, answers = tokens.clone(), tokens[:, 2]
    hidden[:, 2] = 1
    whole = torch.ones_like(hidden, dtype=torch.bool)
    for _ in range(150):
        loss = torch.nn.functional.cross_entropy(small.predict(small.encode(hidden, whole)[:, 2]), answers)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.1


PUBLISHED = {  # vocabulary, and parameters of the bare encoder in its folder on the hub
    "tiny": (30522, 4_385_920), "mini": (30522, 11_170_560), "small": (30522, 28_763_648),
    "base": (30522, 109_482_240), "large": (30522, 335_141_888), "minilm": (30522, 22_713_216),
    "roberta": (50265, 124_645_632), "albert": (30000, 11_683_584),
    "distilbert": (30522, 66_362_880 + 590_592),  # with the layer before its classifier, which is our pooler
    "esm2-8m": (33, 7_409_081), "esm2-650m": (33, 649_400_981),  # transformers' EsmModel without a pooler
}  # fmt: skip


def test_presets_have_the_published_sizes():
    assert PUBLISHED.keys() == PRESETS.keys()
    for preset, (vocab, parameters) in PUBLISHED.items():
        with torch.device("meta"):
            model = Bert(BertConfig(vocab=vocab, **PRESETS[preset]))
        assert sum(parameter.numel() for parameter in model.parameters()) == parameters, preset


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"head": "classify", "pooler": False}, "pooler = true"),
        ({"labels": 3, "label_names": ("a", "b")}, "label_names: names 2 labels, but labels = 3"),
        ({"head": "answer", "labels": 3}, "always has 2 outputs"),
        ({"positions_after_pad": True, "pad": 11}, "leaves no position"),
    ],
)
def test_configs_that_do_not_hold_together_are_refused(changes, says):
    with pytest.raises(ConfigError, match=says):
        model(**changes)


def test_tokens_beyond_the_positions_and_guesses_without_a_head_are_refused():
    with pytest.raises(ValueError, match="only 12 were learned"):
        model()(torch.ones(1, 13, dtype=torch.long), torch.ones(1, 13, dtype=torch.bool))
    with pytest.raises(ConfigError, match="guesses no tokens"):
        model().predict(torch.zeros(2, 16))
