"""T5: cached steps, padding, relative positions, and the two versions."""

import pytest
import torch

from regard.attention import record
from regard.errors import ConfigError
from regard.families.language.t5 import PRESETS, T5, T5Config
from regard.look.forced_pass import kind_of


def tiny(**changes) -> T5:
    torch.manual_seed(0)
    sizes = {"source_vocab": 13, "target_vocab": 13, "width": 16, "heads": 4, "head_width": 4, "ffn_width": 24}
    depths = {"encoder_depth": 2, "decoder_depth": 3}
    return T5(T5Config(**{**sizes, **depths, "buckets": 8, "max_distance": 10, **changes})).eval()


def batch(rows=3, source=14, target=9):
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(source) < torch.tensor([source, 2, 7][:rows])[:, None]
    return (
        torch.randint(13, (rows, source), generator=generator),
        mask,
        torch.randint(13, (rows, target), generator=generator),
    )


def test_only_distances_matter_to_the_encoder():
    """Without content, the attention of a token depends on distances only, not on absolute positions."""
    model = tiny()
    same = torch.full((1, 30), 5)
    with record(model, "encoder.0.attention", scores=True) as looks:
        model.encode(same, torch.ones(1, 30, dtype=torch.bool))
    scores = looks["encoder.0.attention"][0]
    torch.testing.assert_close(scores[:, 1:, 1:], scores[:, :-1, :-1])
    torch.testing.assert_close(scores[:, 0, 10:], scores[:, 0, 10:11].expand(-1, 20))  # all equal beyond max_distance


def test_layers_have_the_names_of_the_transformer():
    model, args = tiny(), batch()
    before = model(*args)
    with record(model) as looks:
        assert torch.equal(model(*args), before)
    assert {kind_of(name) for name in looks} == {"self", "causal", "cross"}
    assert len(looks) == 2 + 2 * 3
    torch.testing.assert_close(looks["decoder.2.cross"].sum(-1), torch.ones(3, 4, 9))
    assert (looks["decoder.2.cross"][1, :, :, 2:] == 0).all()


def test_one_vocabulary_serves_both_sides():
    with pytest.raises(ConfigError, match="13 and 14"):
        tiny(target_vocab=14)


@pytest.mark.parametrize(
    ("preset", "millions"), [("small", 60.5), ("base", 222.9), ("v1.1-small", 77.0), ("v1.1-base", 247.6)]
)
def test_presets_have_the_published_sizes(preset, millions):
    with torch.device("meta"):
        model = T5(T5Config(source_vocab=32128, target_vocab=32128, **PRESETS[preset]))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)
