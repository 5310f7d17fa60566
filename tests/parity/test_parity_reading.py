"""Recorded places and interventions against hooks on transformers' own models, with the same weights."""

import pytest
import torch

from regard.attention import record
from regard.attention.intervene import Patch, WithoutHead, intervene
from regard.attention.places import record_activations
from regard.checkpoints import load_model
from regard.claims.heads import head_table, text_loss
from regard.families.language.language_models import LanguageModel
from stories import TEXT, stories_folder

transformers = pytest.importorskip("transformers")
TOKENS = torch.tensor([[1, 403, 407, 261, 378, 432, 384, 286], [1, 336, 300, 410, 261, 378, 300, 420]])


@pytest.fixture(scope="module")
def both():
    """stories260K, with grouped heads, in both libraries."""
    folder = stories_folder()
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    return load_model(folder).model, theirs


@torch.inference_mode()
def test_streams_and_weights_are_those_of_transformers(both):
    ours, theirs = both
    expected = theirs(TOKENS, output_hidden_states=True, output_attentions=True)
    with record(ours) as looks, record_activations(ours, "decoder.*") as seen:
        logits = ours(TOKENS)
    torch.testing.assert_close(logits, expected.logits, atol=1e-4, rtol=1e-4)
    for layer in range(5):
        torch.testing.assert_close(seen[f"decoder.{layer}.input"], expected.hidden_states[layer], atol=1e-4, rtol=1e-4)
        weights = expected.attentions[layer]
        torch.testing.assert_close(looks[f"decoder.{layer}.attention"], weights, atol=1e-5, rtol=1e-4)
    last = ours.norm(seen["decoder.4.residual"])  # theirs is normalised
    torch.testing.assert_close(last, expected.hidden_states[5], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_hidden_activations_keys_and_values_are_those_of_transformers(both):
    ours, theirs = both
    seen_there = {}
    handles = []
    for number, layer in enumerate(theirs.model.layers):
        handles += [
            layer.mlp.down_proj.register_forward_pre_hook(
                lambda _, args, number=number: seen_there.update({f"{number}.hidden": args[0]})
            ),
            layer.mlp.act_fn.register_forward_hook(
                lambda _, args, output, number=number: seen_there.setdefault(f"{number}.gate", output)
            )
            if number == 0
            else layer.mlp.gate_proj.register_forward_hook(
                lambda _, args, output, number=number: seen_there.update(
                    {f"{number}.gate": torch.nn.functional.silu(output)}
                )
            ),
        ]
    cache = theirs(TOKENS, use_cache=True).past_key_values
    for handle in handles:
        handle.remove()
    with record_activations(ours, "decoder.*") as seen:
        ours(TOKENS)
    for number in range(5):
        for part in ("hidden", "gate"):
            mine = seen[f"decoder.{number}.feed_forward.{part}"]
            torch.testing.assert_close(mine, seen_there[f"{number}.{part}"], atol=1e-4, rtol=1e-4)
        keys, values = cache.layers[number].keys, cache.layers[number].values
        torch.testing.assert_close(seen[f"decoder.{number}.attention.values"], values, atol=1e-4, rtol=1e-4)
        # Rotary pairs may lie in another order within a head, so keys are compared by their products with queries.
        assert seen[f"decoder.{number}.attention.keys"].shape == keys.shape
        torch.testing.assert_close(seen[f"decoder.{number}.attention.keys"].norm(dim=-1), keys.norm(dim=-1))


def masked(theirs, layer, head, width=8):
    """A hook on the input of an output projection that zeroes a head: transformers' models have no such switch."""

    def hook(_, args):
        (joined,) = args
        joined = joined.clone()
        joined[..., head * width : (head + 1) * width] = 0.0
        return (joined,)

    return theirs.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(hook)


@torch.inference_mode()
def test_every_grouped_head_switched_off_gives_their_logits(both):
    ours, theirs = both
    for layer in range(5):
        for head in range(8):
            handle = masked(theirs, layer, head)
            expected = theirs(TOKENS).logits
            handle.remove()
            with intervene(ours, WithoutHead(f"decoder.{layer}.attention", head)):
                torch.testing.assert_close(ours(TOKENS), expected, atol=2e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_stream_patched_at_one_token_gives_their_logits(both):
    ours, theirs = both
    clean, other = TOKENS[:1], TOKENS[1:]
    with record_activations(ours, "decoder.2.residual") as seen:
        ours(clean)
    kept = theirs(clean, output_hidden_states=True).hidden_states[3]

    def hook(_, args, output):
        stream = output[0] if isinstance(output, tuple) else output
        stream = stream.clone()
        stream[:, 4] = kept[:, 4]
        return (stream, *output[1:]) if isinstance(output, tuple) else stream

    handle = theirs.model.layers[2].register_forward_hook(hook)
    expected = theirs(other).logits
    handle.remove()
    with intervene(ours, Patch("decoder.2.residual", seen["decoder.2.residual"], positions=[4])):
        torch.testing.assert_close(ours(other), expected, atol=2e-4, rtol=1e-4)


@torch.inference_mode()
def test_everything_patched_gives_the_clean_logits(both):
    ours, _ = both
    clean, other = TOKENS[:1], TOKENS[1:]
    with record_activations(ours) as seen:
        expected = ours(clean)
    assert (ours(other) - expected).abs().max() > 1
    for pattern in ("residual", "input", "heads", "hidden", ""):  # each kind alone that reaches the answer, and all
        changed = {name: value for name, value in seen.items() if name.endswith(pattern) and "gate" not in name}
        with intervene(ours, *Patch.every(changed)):
            found = ours(other)
        if pattern in ("residual", ""):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        else:
            assert (found - ours(other)).abs().max() > 0.1


def drawn(writer, length):
    """A text by the weights of a model as they are now."""
    tokens, random = torch.tensor([writer.opened("Once")]), torch.Generator().manual_seed(1)
    with torch.inference_mode():
        while tokens.shape[1] < length:
            shares = writer.model(tokens)[:, -1].softmax(dim=-1)
            tokens = torch.cat([tokens, torch.multinomial(shares, 1, generator=random)], dim=1)
    return writer.tokenizer.decode(tokens[0].tolist())


def test_a_head_that_was_planted_in_a_trained_model_is_ranked_first():
    writer = LanguageModel.load(stories_folder())
    before = head_table(writer, text_loss(writer, [TEXT])).ranked
    needless = min(before, key=lambda each: abs(each.effect))
    output, columns = writer.model.get_submodule(needless.layer).output, slice(needless.head * 8, needless.head * 8 + 8)
    with torch.no_grad():
        output.weight[:, columns] *= 10
    (first, *_) = head_table(writer, text_loss(writer, [drawn(writer, 200)])).ranked
    assert (first.layer, first.head) == (needless.layer, needless.head) != (before[0].layer, before[0].head)
