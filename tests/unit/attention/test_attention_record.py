"""Recording part of a model, and running the model only that far."""

import torch

from regard.attention import record
from regard.families.translation.transformer import Transformer, TransformerConfig

SHAPE = {"source_vocab": 11, "target_vocab": 11, "width": 16, "heads": 2, "encoder_depth": 2, "decoder_depth": 2}


def run(model: Transformer) -> torch.Tensor:
    source = torch.tensor([[3, 4, 5, 6]])
    return model(source, torch.ones_like(source, dtype=torch.bool), torch.tensor([[1, 7, 8]]))


def test_a_model_stops_when_all_that_was_asked_for_is_seen():
    model = Transformer(TransformerConfig(**SHAPE, ffn_width=32)).eval()
    with record(model) as everything:
        run(model)
    ran = []
    model.decoder[0].register_forward_hook(lambda *_: ran.append("decoder.0"))
    model.decoder[1].register_forward_hook(lambda *_: ran.append("decoder.1"))
    with record(model, ["encoder.0.attention", "decoder.0.cross"], stop=True) as some:
        run(model)
        ran.append("the end of the pass")
    assert ran == [] and set(some) == {"encoder.0.attention", "decoder.0.cross"}
    assert all(torch.equal(some[name], everything[name]) for name in some)
    run(model)  # the hooks have been removed
    assert ran == ["decoder.0", "decoder.1"]
