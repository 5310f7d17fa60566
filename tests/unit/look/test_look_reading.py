"""The neuron view adds up to the recorded score, and the logit lens ends in the model's own logits."""

import pytest
import torch
from torch import nn

from regard.attention import ScoredAttention, record
from regard.errors import UsageError
from regard.families.language.gpt import LLAMA, Gpt, GptConfig
from regard.families.language.t5 import T5, T5Config
from regard.look.neurons import neurons
from regard.look.predictions import logit_lens
from unit.test_checkpoints import given_to, tiny

TOKENS = torch.tensor([[7, 3, 9, 22, 41, 5]])
TEXT = {"vocab": 60, "width": 32, "heads": 4, "depth": 3, "ffn_width": 48, "max_length": 64}


def llama():
    torch.manual_seed(3)
    return Gpt(GptConfig.parse({**LLAMA, **TEXT, "kv_heads": 2})).eval()


@torch.inference_mode()
def test_dimensions_add_up_to_the_score_with_grouped_heads_and_with_biases():
    model = llama()
    t5 = T5(T5Config.parse({"source_vocab": 60, "target_vocab": 60, "width": 32, "heads": 4, "ffn_width": 48,
                            "encoder_depth": 1, "decoder_depth": 1})).eval()  # fmt: skip
    mask = torch.ones_like(TOKENS, dtype=torch.bool)
    for each, run, layer in (
        (model, lambda: model(TOKENS), "decoder.1.attention"),
        (t5, lambda: t5(TOKENS, mask, TOKENS), "encoder.0.attention"),
        (t5, lambda: t5(TOKENS, mask, TOKENS), "decoder.0.cross"),
    ):
        with record(each, layer, scores=True) as scores:
            run()
        for head, query, key in ((0, 5, 0), (1, 2, 2), (3, 4, 1)):
            found = neurons(each, layer, head, query, key, run)
            assert found.score == pytest.approx(scores[layer][0, head, query, key].item(), abs=1e-4)
            torch.testing.assert_close(found.parts, found.query * found.key)
            shown = found.to_json()
            assert sum(shown["parts"]) * shown["scale"] + shown["bias"] == pytest.approx(shown["score"], abs=1e-3)
    with pytest.raises(UsageError, match="4 heads, 6 queries and 6 keys here; head 4"):
        neurons(model, "decoder.1.attention", 4, 0, 0, lambda: model(TOKENS))
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("score", ["additive", "general", "scaled_dot"])
@torch.inference_mode()
def test_dimensions_of_recurrent_attention_add_up_too(score):
    torch.manual_seed(1)
    model = nn.ModuleDict({"cross": ScoredAttention(6, 6, score=score)})
    memory, queries = torch.randn(1, 5, 6), torch.randn(1, 3, 6)

    def run():
        for step in range(3):
            model["cross"](queries[:, step : step + 1], memory, model["cross"].project(memory))

    with record(model, scores=True) as scores:
        run()
    found = neurons(model, "cross", 0, 2, 4, run)
    assert found.score == pytest.approx(scores["cross"][0, 0, 2, 4].item(), abs=1e-5)


@torch.inference_mode()
def test_the_lens_of_the_last_layer_is_the_answer_and_earlier_ones_are_shorter_models():
    model = llama()
    lens = logit_lens(model, lambda: model(TOKENS))
    assert list(lens) == ["decoder.0", "decoder.1", "decoder.2"]
    torch.testing.assert_close(lens["decoder.2"], model(TOKENS))
    whole, model.decoder = model.decoder, nn.ModuleList(model.decoder[:2])  # the model cut off after two layers
    torch.testing.assert_close(lens["decoder.1"], model(TOKENS))
    model.decoder = whole
    for name in ("transformer", "t5", "vit"):
        other = tiny(name)
        given = given_to(other)
        *_, last = logit_lens(other, lambda other=other, given=given: other(*given)).values()
        torch.testing.assert_close(last, other(*given))
    with pytest.raises(UsageError, match="no unembedding"):
        logit_lens(tiny("resnet"), lambda: None)
