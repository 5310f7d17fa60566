"""Recording queries, keys, values, streams, hidden activations and gates: what they are, and that nothing changes."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

from regard.attention import Attend, ScoredAttention, record
from regard.attention.places import places, record_activations
from regard.attention.record import attention_names
from regard.errors import UsageError
from regard.families.catalog import MODELS
from regard.families.folding.layers import Transition
from regard.families.language.gpt import LLAMA, Gpt, GptConfig
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.layers.blocks import FeedForward
from regard.layers.convolution import GatedConvolution, Highway
from regard.layers.recurrent import Recurrent
from regard.search.search import search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.speculative import decoding_model
from regard.search.start import from_prompt, from_source
from unit.test_checkpoints import given_to, tensors, tiny

TEXT = {"vocab": 60, "width": 32, "heads": 4, "depth": 2, "ffn_width": 48, "max_length": 64}
PAIR = {"source_vocab": 60, "target_vocab": 60, "width": 32, "heads": 4, "ffn_width": 48}
DEPTH = {"encoder_depth": 2, "decoder_depth": 2}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


def llama():
    return Gpt(GptConfig.parse({**LLAMA, **TEXT, "kv_heads": 2})).eval()


def translator():
    return Transformer(TransformerConfig.parse(PAIR | DEPTH)).eval()


def equal(ours, theirs):
    return all(
        one is other or torch.equal(one, other) for one, other in zip(tensors(ours), tensors(theirs), strict=True)
    )


class Options:
    """Spies on the calls of every attention: the options that the scores need beside queries and keys."""

    def __init__(self, model):
        self.seen = {}
        self.handles = [
            module.register_forward_hook(self._see(name.removesuffix("attend").rstrip(".")), with_kwargs=True)
            for name, module in model.named_modules()
            if isinstance(module, Attend)
        ]

    def _see(self, name):
        def hook(module, args, options, output):
            self.seen[name] = options

        return hook

    def __enter__(self):
        return self.seen

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()


def by_hand(q, k, *, mask=None, bias=None, causal=False, scale=None, dropout=0.0):
    """Attention weights query by query, from the definition."""
    weights = torch.zeros(*q.shape[:3], k.shape[2])
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        g = h // (q.shape[1] // k.shape[1])
        scores = (k[b, g] * q[b, h, i]).sum(-1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
        if bias is not None:
            scores = scores + bias.expand(*q.shape[:3], k.shape[2])[b, h, i]
        seen = torch.ones(k.shape[2], dtype=torch.bool)
        if mask is not None:
            seen &= mask.expand(len(q), q.shape[1], q.shape[2], k.shape[2])[b, h, i]
        if causal:
            seen &= torch.arange(k.shape[2]) <= i + k.shape[2] - q.shape[2]
        weights[b, h, i, seen] = torch.exp(scores[seen] - scores[seen].max())
        weights[b, h, i] /= weights[b, h, i].sum()
    return weights


def answer(model, given):
    torch.manual_seed(5)  # some models draw
    return model(*given)


def alone(looks):
    """The layers that were called once."""
    return {name for name in looks if len(looks._calls[name]) == 1}


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_recording_every_place_changes_no_bit_and_gives_what_attention_saw(name):
    model = tiny(name)
    given = given_to(model)
    before = answer(model, given)
    looking = record(model) if attention_names(model) else nullcontext({})
    with Options(model) as options, looking as looks, record_activations(model) as seen:
        during = answer(model, given)
    assert equal(before, during) and equal(before, answer(model, given))
    assert set(seen) <= set(places(model))
    assert bool(seen) == bool(places(model))
    for layer, wanted in options.items():
        q, k, v, heads = (seen.steps(f"{layer}.{part}")[-1] for part in ("queries", "keys", "values", "heads"))
        if layer not in alone(looks):
            continue  # another batch went through it before, and weights of both are joined
        shared = all(each is None or len(each) in (1, len(q)) for each in (wanted.get("mask"), wanted.get("bias")))
        if shared and q.shape[0] * q.shape[2] <= 128:  # of many windows the product below is enough
            torch.testing.assert_close(by_hand(q, k, **wanted), looks[layer], atol=1e-5, rtol=1e-4)
        shared = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        torch.testing.assert_close(looks[layer] @ shared, heads, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_of_every_model_has_its_places(name):
    """Around attention there is a stream (or the states of a recurrent network), and feed-forward networks are open."""
    model = tiny(name)
    known = set(places(model))
    for layer in attention_names(model):
        assert {f"{layer}.{part}" for part in ("queries", "keys", "values", "heads")} <= known
        path = layer.split(".")
        around = [".".join(path[:cut]) for cut in range(len(path), -1, -1)]
        streams = {f"{each}.residual".lstrip(".") for each in around} | {"decoder.states", "decoder.recurrent.states"}
        assert streams & known or layer == "pool"  # of a whole sequence, after all layers
    for path, module in model.named_modules():
        assert not isinstance(module, FeedForward | Transition) or f"{path}.hidden" in known
        assert not isinstance(module, Recurrent) or {f"{path}.states", f"{path}.gates"} <= known
        assert getattr(module, "gate", None) is None or f"{path}.gate" in known


@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if hasattr(entry.model, "start")])
@torch.inference_mode()
def test_every_decoder_is_recorded_step_by_step_without_a_change_of_a_bit(name):
    model = tiny(name)
    if getattr(model, "decoder", True) is None:  # a Conformer with CTC alone does not decode
        model = MODELS[name].model(model.config.replace(decoder_depth=1)).eval()
    sources = 1 if hasattr(model.config, "image_size") or hasattr(model.config, "bands") else 2
    given = given_to(model)[:sources]

    def decoded():
        state = model.start(*given)
        return torch.cat([model.step(torch.tensor([[token]]), state) for token in (1, 4, 7)], dim=1)

    plain = decoded()
    with record_activations(model) as seen:
        recorded = decoded()
    assert torch.equal(plain, recorded) and torch.equal(plain, decoded())
    ends = [place for place in seen if "decoder" in place and place.endswith(("residual", "states"))]
    assert ends and torch.cat(seen.steps(ends[-1])[-3:], dim=1).shape[1] == 3


@torch.inference_mode()
def test_streams_flow_from_block_to_block_and_gates_open_hidden_layers():
    model, tokens = llama(), torch.randint(60, (2, 7))
    with record_activations(model, ["decoder.*"]) as seen:
        logits = model(tokens)
    assert torch.equal(seen["decoder.0.input"], model.embedding(tokens))
    assert torch.equal(seen["decoder.0.residual"], seen["decoder.1.input"])
    torch.testing.assert_close(model.predict(model.norm(seen["decoder.1.residual"])), logits)
    block, after = model.decoder[1], seen["decoder.1.after_attention"]
    joined = seen["decoder.1.attention.heads"].transpose(1, 2).flatten(2)
    torch.testing.assert_close(after, seen["decoder.1.input"] + block.attention.output(joined))
    hidden, gate = seen["decoder.1.feed_forward.hidden"], seen["decoder.1.feed_forward.gate"]
    up = block.feed_forward.up(block.after_feed_forward.norm(after))
    torch.testing.assert_close(gate * up, hidden)
    torch.testing.assert_close(seen["decoder.1.residual"], after + block.feed_forward.down(hidden))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@torch.inference_mode()
def test_gates_of_recurrent_networks_are_those_of_their_equations(kind):
    network = Recurrent(kind, 5, 4, depth=2, bidirectional=True)
    x, mask = torch.randn(2, 6, 5), torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    holder = nn.ModuleDict({"rnn": network})
    with record_activations(holder) as seen:
        output, _ = network(x, mask=mask)
    gates = seen["rnn.gates"]
    assert torch.equal(seen["rnn.states"], output)
    assert gates.shape == (2, 6, 4, 3 if kind == "lstm" else 2, 4)
    for row, length in ((0, 6), (1, 4)):
        inputs = x[row, :length]
        for layer in range(2):
            outputs = []
            for direction in range(2):
                suffix = f"l{layer}" + ("_reverse" if direction else "")
                w_x, w_h, b_x, b_h = (
                    getattr(network.kernel, f"{name}_{suffix}")
                    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                )
                h = c = torch.zeros(4)
                states = torch.zeros(length, 4)
                for t in range(length) if direction == 0 else reversed(range(length)):
                    from_x, from_h = (w_x @ inputs[t] + b_x).chunk(4 if kind == "lstm" else 3), None
                    from_h = (w_h @ h + b_h).chunk(len(from_x))
                    opened = gates[row, t, 2 * layer + direction]
                    if kind == "lstm":
                        i, f, g, o = (one + other for one, other in zip(from_x, from_h, strict=True))
                        torch.testing.assert_close(opened, torch.stack([i, f, o]).sigmoid())
                        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                        h = o.sigmoid() * c.tanh()
                    else:
                        r, u = (from_x[0] + from_h[0]).sigmoid(), (from_x[1] + from_h[1]).sigmoid()
                        torch.testing.assert_close(opened, torch.stack([r, u]))
                        h = u * h + (1 - u) * (from_x[2] + r * from_h[2]).tanh()
                    states[t] = h
                outputs.append(states)
            inputs = torch.cat(outputs, dim=-1)


@torch.inference_mode()
def test_gates_of_other_layers():
    x = torch.randn(2, 8, 5)
    for module, gate in (
        (GatedConvolution(8, 3, 0.0), lambda m: m.convolution(x).chunk(2, dim=1)[1].sigmoid().transpose(1, 2)),
        (Highway(5), lambda m: m.gate(x).sigmoid()),
        (FeedForward(5, 6, "gelu", gated=True), lambda m: functional.gelu(m.gate(x))),
    ):
        with record_activations(module, "gate") as seen:
            module(x, None) if isinstance(module, GatedConvolution) else module(x)
        torch.testing.assert_close(seen["gate"], gate(module))
    assert "gate" not in places(FeedForward(5, 6))


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("make", [llama, translator])
@torch.inference_mode()
def test_a_search_is_recorded_step_by_step_and_finds_the_same(make, beam):
    model = make()
    fast = decoding_model(model, "fp32", end=2)
    settings = SearchSettings(beam=beam, n_best=beam, min_length=6, max_length=6)
    source = torch.randint(3, 60, (1, 5))

    def found():
        read = source, torch.ones_like(source, dtype=torch.bool), settings
        start = from_prompt(fast, *read) if make is llama else from_source(fast, *read, 1)
        return search(fast, start, settings, Vocabulary(start=1, end=2, pad=0))

    plain = found()
    with record_activations(model) as seen, record(model) as looks:
        recorded = found()
    assert plain == recorded == found()
    if beam > 1:  # the first step has one hypothesis, the others have as many as the beam
        *_, step = seen.steps("decoder.0.residual")
        assert len(step) == beam and step.shape[1] == 1
        *_, weights = looks.steps("decoder.0.cross" if make is translator else "decoder.0.attention")
        assert weights.numel() / weights.shape[1] / weights.shape[3] == beam
        for recorder, name in ((seen, "decoder.0.residual"), (looks, "decoder.0.attention")):
            with pytest.raises(UsageError, match=r"as in a beam search; take them one by one with steps\("):
                recorder[name]
        return
    tokens = torch.tensor([plain[0][0].tokens])
    with record_activations(model) as forced:
        if make is llama:
            model(torch.cat([source, tokens[:, :-1]], dim=1))
        else:
            model(
                source, torch.ones_like(source, dtype=torch.bool), torch.cat([torch.tensor([[1]]), tokens[:, :-1]], 1)
            )
    for name in forced:
        torch.testing.assert_close(seen[name], forced[name], atol=1e-4, rtol=1e-3)


@torch.inference_mode()
def test_steps_of_other_batches_are_given_one_by_one():
    model = llama()
    with record_activations(model, "decoder.0.residual") as seen:
        model(torch.randint(60, (2, 7)))
        model(torch.randint(60, (3, 7)))
    assert [len(call) for call in seen.steps("decoder.0.residual")] == [2, 3]
    with pytest.raises(
        UsageError, match=r"have the shapes \[2, 7, 32\], \[3, 7, 32\] .* steps\('decoder.0.residual'\)"
    ):
        seen["decoder.0.residual"]


def test_gradients_flow_through_recorded_values_if_they_are_asked_for():
    model = llama()
    with record_activations(model, "*.hidden", gradients=True) as kept, record_activations(model, "*.hidden") as seen:
        model(torch.randint(60, (1, 4)))
    kept["decoder.0.feed_forward.hidden"].sum().backward()
    assert model.decoder[0].feed_forward.up.weight.grad is not None
    assert not seen["decoder.0.feed_forward.hidden"].requires_grad


def test_an_unknown_place_is_named_with_those_that_are_near():
    with pytest.raises(
        UsageError, match=r"no place 'decoder\.0\.crosss\.queries' .* it has decoder\.0\.cross\.queries"
    ):
        places(translator(), "decoder.0.crosss.queries")
    with pytest.raises(UsageError, match="it has none"):
        places(nn.Linear(2, 2), "x")
    assert places(nn.Linear(2, 2)) == []


@torch.inference_mode()
def test_scored_attention_has_the_same_places():
    attention = nn.ModuleDict({"cross": ScoredAttention(4, 4)})
    query, memory = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    with record_activations(attention) as seen:
        context, _, _ = attention["cross"](query, memory)
    assert torch.equal(seen["cross.queries"], query) and torch.equal(seen["cross.values"], memory)
    assert torch.equal(seen["cross.heads"], context)
