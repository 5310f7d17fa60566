"""Interventions against models whose weights were edited by hand, and that nothing is left of them afterwards."""

import copy

import pytest
import torch
from torch import nn

from regard.attention import ScoredAttention, record
from regard.attention.intervene import AddDirection, Apply, Patch, ReplaceWeights, WithoutHead, head_count, intervene
from regard.attention.places import places, record_activations
from regard.attention.record import attention_names
from regard.errors import UsageError
from regard.families.catalog import MODELS
from regard.families.language.gpt import LLAMA, Gpt, GptConfig
from regard.families.translation.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.layers.recurrent import Recurrent
from regard.search.search import search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.speculative import decoding_model
from regard.search.start import from_prompt, from_source
from unit.test_checkpoints import given_to, tensors, tiny

TEXT = {"vocab": 60, "width": 32, "heads": 4, "depth": 2, "ffn_width": 48, "max_length": 64}
PAIR = {"source_vocab": 60, "target_vocab": 60, "width": 32, "heads": 4, "ffn_width": 48}
DEPTH = {"encoder_depth": 2, "decoder_depth": 2}
TOKENS = torch.tensor([[7, 3, 9, 22, 41, 5], [8, 30, 2, 2, 19, 58]])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


def llama():
    """With weights large enough for attention to matter."""
    model = Gpt(GptConfig.parse({**LLAMA, **TEXT, "kv_heads": 2})).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    return model


def translator():
    return Transformer(TransformerConfig.parse(PAIR | DEPTH)).eval()


def edited(model, layer, head, mean=None):
    """A copy whose output matrix ignores a head, or adds what it makes of the head's mean."""
    model = copy.deepcopy(model)
    attention = model.get_submodule(layer)
    columns = slice(head * attention.head_width, (head + 1) * attention.head_width)
    with torch.no_grad():
        if mean is not None:
            attention.output.bias += attention.output.weight[:, columns] @ mean
        attention.output.weight[:, columns] = 0.0
    return model


def found(model, prompted, **settings):
    chosen = SearchSettings.parse({"min_length": 8, "max_length": 8, **settings})
    read = TOKENS, torch.ones_like(TOKENS, dtype=torch.bool), chosen
    start = from_prompt(model, *read) if prompted else from_source(model, *read, 1)
    return search(model, start, chosen, Vocabulary(start=1, end=2, pad=0))


@torch.inference_mode()
def test_a_head_switched_off_is_a_head_whose_output_is_ignored():
    model = llama()
    plain = model(TOKENS)
    for layer in range(2):
        for head in range(4):
            with intervene(model, WithoutHead(f"decoder.{layer}.attention", head)):
                off = model(TOKENS)
            torch.testing.assert_close(off, edited(model, f"decoder.{layer}.attention", head)(TOKENS))
            assert (off - plain).abs().max() > 1e-2
    assert torch.equal(model(TOKENS), plain)


@torch.inference_mode()
def test_a_head_by_its_mean_is_one_more_bias():
    model, mean, mask = translator(), torch.randn(8), torch.ones_like(TOKENS, dtype=torch.bool)
    with intervene(model, WithoutHead("decoder.1.cross", 2, mean)):
        off = model(TOKENS, mask, TOKENS)
    torch.testing.assert_close(off, edited(model, "decoder.1.cross", 2, mean)(TOKENS, mask, TOKENS))


@pytest.mark.parametrize("settings", [{}, {"beam": 3, "n_best": 3}, {"sample": True, "seed": 5}])
@pytest.mark.parametrize(("make", "layer"), [(llama, "decoder.1.attention"), (translator, "decoder.0.cross")])
@torch.inference_mode()
def test_the_fast_model_decodes_without_the_head_too(make, layer, settings):
    model = make()
    fast, prompted = decoding_model(model, "fp32", end=2), make is llama
    plain = found(fast, prompted, **settings)
    wanted = found(decoding_model(edited(model, layer, 1), "fp32", end=2), prompted, **settings)
    with intervene(model, WithoutHead(layer, 1)):
        off = found(fast, prompted, **settings)
    assert found(fast, prompted, **settings) == plain
    for ours, theirs in zip(off, wanted, strict=True):
        assert [each.tokens for each in ours] == [each.tokens for each in theirs]
        assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=1e-4)
    assert make is translator or [each[0].tokens for each in off] != [each[0].tokens for each in plain]


def lively(model):
    """Weights under which every head matters, where outputs begin at zero too."""
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        parameter.data += 0.5 if parameter.dim() == 0 else 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_every_head_of_every_model_can_be_switched_off_and_on_again(name):
    model = lively(tiny(name))
    given = given_to(model)

    def answer():
        torch.manual_seed(5)  # some models draw
        found = tensors(model(*given))
        critic = getattr(model, "critic", None)  # of a SAGAN, called in training alone
        return [each for each in [*found, critic and critic(found[0], given[1])] if each is not None]

    plain = answer()
    for layer in attention_names(model):
        head = head_count(model, layer) - 1
        with intervene(model, WithoutHead(layer, head)), record_activations(model, f"{layer}.heads") as seen:
            off = answer()
        scored = isinstance(model.get_submodule(layer), ScoredAttention)
        assert not any((call if scored else call[:, head]).any() for call in seen.steps(f"{layer}.heads"))
        assert any((one - other).abs().max() > 1e-4 for one, other in zip(plain, off, strict=True) if one.numel())
    assert all(map(torch.equal, plain, answer()))


@torch.inference_mode()
def test_every_stream_patched_gives_the_answer_of_the_other_input():
    model, other = llama(), TOKENS.flip(1)
    with record_activations(model) as clean:
        answer = model(TOKENS)
    changed = {name: value for name, value in clean.items() if not name.endswith("gate")}
    with intervene(model, *Patch.every(changed)):
        torch.testing.assert_close(model(other), answer, atol=1e-5, rtol=0)
    streams = {name: value for name, value in clean.items() if name.endswith("1.residual")}
    with intervene(model, *Patch.every(streams)):
        assert torch.equal(model(other), answer)
    assert not torch.allclose(model(other), answer, atol=1e-2)


@torch.inference_mode()
def test_queries_keys_and_values_of_grouped_heads_are_patched_each_for_itself():
    model, other = llama(), TOKENS.flip(1)
    with record_activations(model, "decoder.0.attention.*") as clean:
        model(TOKENS)
    for part, head, heads in (("queries", 3, 4), ("keys", 1, 2), ("values", 0, 2), ("heads", 2, 4)):
        name = f"decoder.0.attention.{part}"
        with record_activations(model, name) as before:
            model(other)
        with (
            intervene(model, Patch(name, clean[name], head=head, positions=[1, -1])),
            record_activations(model, name) as seen,
        ):
            model(other)
        for each in range(heads):
            for token in range(6):
                source = clean if each == head and token in (1, 5) else before
                assert torch.equal(seen[name][:, each, token], source[name][:, each, token])


@torch.inference_mode()
def test_a_direction_is_added_where_it_is_asked_for():
    model, direction = llama(), torch.randn(32)
    with record_activations(model, "decoder.1.residual") as seen:
        model(TOKENS)
    shifted = seen["decoder.1.residual"].clone()
    shifted[:, 2:4] += 3 * direction
    with intervene(model, AddDirection("decoder.1.residual", direction, 3.0, positions=[2, 3])):
        torch.testing.assert_close(model(TOKENS), model.predict(model.norm(shifted)))
    with (
        intervene(model, Apply("decoder.0.feed_forward.hidden", torch.zeros_like)),
        record_activations(model, ["decoder.0.residual", "decoder.0.after_attention"]) as flat,
    ):
        model(TOKENS)
    assert torch.equal(flat["decoder.0.residual"], flat["decoder.0.after_attention"])  # it has no biases


@torch.inference_mode()
def test_directions_and_maps_of_images():
    model = tiny("resnet")
    (image,) = given_to(model)
    with record_activations(model, "stages.2.blocks.0.residual") as seen:
        model(image)
    direction = torch.randn(64)
    with intervene(model, AddDirection("stages.2.blocks.0.residual", direction)):
        shifted = model(image)
    pooled = (seen["stages.2.blocks.0.residual"] + direction).mean(dim=(1, 2))
    torch.testing.assert_close(shifted, model.output(pooled))


@torch.inference_mode()
def test_weights_are_replaced_by_uniform_ones_those_of_another_input_and_a_drawn_row():
    model, layer = llama(), "decoder.0.attention"
    with record(model, layer) as looks, record_activations(model, f"{layer}.*") as seen:
        plain = model(TOKENS)
    values = seen[f"{layer}.values"].repeat_interleave(2, dim=1)
    with intervene(model, ReplaceWeights(layer, 3)), record_activations(model, f"{layer}.heads") as uniform:
        model(TOKENS)
    means = values[:, 3].cumsum(dim=1) / torch.arange(1, 7)[:, None]
    torch.testing.assert_close(uniform[f"{layer}.heads"][:, 3], means)
    assert torch.equal(uniform[f"{layer}.heads"][:, :3], seen[f"{layer}.heads"][:, :3])
    with intervene(model, *(ReplaceWeights(layer, head, looks[layer][:, head]) for head in range(4))):
        torch.testing.assert_close(model(TOKENS), plain, atol=1e-4, rtol=1e-4)
    with (
        intervene(model, ReplaceWeights(layer, 1, {4: [0.0, 2.0, 0.0, 6.0]})),
        record_activations(model, f"{layer}.heads") as drawn,
    ):
        model(TOKENS)
    row = drawn[f"{layer}.heads"][:, 1]
    torch.testing.assert_close(row[:, 4], 0.25 * values[:, 1, 1] + 0.75 * values[:, 1, 3])
    torch.testing.assert_close(row[:, :4], seen[f"{layer}.heads"][:, 1, :4])
    with intervene(model, ReplaceWeights(layer, None)), record_activations(model, f"{layer}.heads") as every:
        model(TOKENS)
    torch.testing.assert_close(every[f"{layer}.heads"], values.cumsum(dim=2) / torch.arange(1, 7)[:, None])


@torch.inference_mode()
def test_rows_are_counted_in_a_search_as_in_one_pass():
    """A row drawn for a query acts when that query comes, whether tokens come one by one or all at once."""
    tokens = TOKENS[:1]
    for model, layer, row in (
        (llama(), "decoder.0.attention", {3: [0.0, 1.0]}),
        (translator(), "decoder.1.cross", {2: [0.0, 0.0, 1.0]}),
        (
            Seq2Seq(Seq2SeqConfig(source_vocab=60, target_vocab=60, width=16, embedding=16)).eval(),
            "cross",
            {2: [0.0, 1.0]},
        ),
    ):
        with intervene(model, ReplaceWeights(layer, 0, row)):
            if isinstance(model, Gpt):
                whole, state, begin = model(tokens), model.start(tokens[:, :1], torch.ones(1, 1, dtype=torch.bool)), 0
            else:
                mask = torch.ones_like(tokens, dtype=torch.bool)
                whole, state, begin = model(tokens, mask, tokens), model.start(tokens, mask), 0
            steps = torch.cat([model.step(tokens[:, at : at + 1], state) for at in range(begin, 6)], dim=1)
        torch.testing.assert_close(steps, whole, atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_interventions_nest_and_end_whatever_happens():
    model = llama()
    plain = model(TOKENS)
    one, two = WithoutHead("decoder.0.attention", 0), WithoutHead("decoder.1.attention", 3)
    with intervene(model, one, two):
        both = model(TOKENS)
    with intervene(model, one):
        first = model(TOKENS)
        with intervene(model, two):
            assert torch.equal(model(TOKENS), both)
        assert torch.equal(model(TOKENS), first)
    with pytest.raises(ZeroDivisionError), intervene(model, one):
        raise ZeroDivisionError
    with pytest.raises(UsageError), intervene(model, one, WithoutHead("decoder.7.attention", 0)):
        pass
    assert torch.equal(model(TOKENS), plain)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            WithoutHead("decoder.0.atention", 0),
            r"no place 'decoder\.0\.atention\.heads\*' .*decoder\.0\.attention\.heads",
        ),
        (WithoutHead("decoder.0.attention", 4), r"decoder\.0\.attention\.heads has heads 0 to 3; head 4 was asked for"),
        (Patch("decoder.0.attention.keys", torch.zeros(2, 2, 6, 8), head=2), "has heads 0 to 1; head 2"),
        (Patch("decoder.0.residual", torch.zeros(2, 5, 32)), r"has the shape \[2, 6, 32\] here, and \[2, 5, 32\]"),
        (Patch("decoder.0.residual", torch.zeros(32), positions=[6]), r"has 6 positions; \[6\] were asked for"),
        (AddDirection("decoder.0.feed_forward.gate", torch.zeros(48)), "cannot be changed"),
        (ReplaceWeights("decoder.0.attention", 0, torch.ones(4, 4)), r"weights of \[4, 4\] were given for 6 queries"),
        (ReplaceWeights("decoder.0.attention", 0, {1: [0.0]}), "row of query 1 has 1 weights"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_does_not_fit_is_said_in_words(change, says):
    model = llama()
    with pytest.raises(UsageError, match=says), intervene(model, change):
        model(TOKENS)


def test_heads_are_named_as_on_the_command_line():
    model = translator()
    (one,) = WithoutHead.parse(model, "decoder.1.cross:3")
    assert (one.layer, one.head, str(one)) == ("decoder.1.cross", 3, "decoder.1.cross:3")
    assert len(WithoutHead.parse(model, "decoder.*.cross:*")) == 8
    for text, says in (
        ("decoder.1.cross", "write LAYER:HEAD, such as encoder.0.attention:0"),
        ("decoder.1.cross:x", "write LAYER:HEAD"),
        ("decoder.1.cross:4", r"decoder\.1\.cross has heads 0 to 3; head 4"),
        ("decoder.2.cross:0", r"no attention layer matches 'decoder\.2\.cross'; this model has: encoder\.0\.attention"),
    ):
        with pytest.raises(UsageError, match=says):
            WithoutHead.parse(model, text)
    with pytest.raises(UsageError, match="no attention"):
        WithoutHead.parse(Recurrent("lstm", 2, 2), "cross:0")
    assert places(model, "decoder.1.cross.*") == [
        f"decoder.1.cross.{part}" for part in ("queries", "keys", "values", "heads")
    ]
