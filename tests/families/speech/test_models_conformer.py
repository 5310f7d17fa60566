"""Conformers: sizes of the paper, padding that does not leak, and decoding that equals teacher forcing."""

import pytest
import torch
from torch import nn

from regard.attention import record
from regard.attention.positions import DistanceTable, RelativePositions, sinusoidal
from regard.errors import ConfigError
from regard.families.speech.conformer import (
    PRESETS,
    Conformer,
    ConformerConfig,
    ConvolutionModule,
    FrameBatchNorm,
    subsampled,
)

LSTM = {"small": 320, "medium": 640, "large": 640}  # width of the paper's decoder
PAPER = {"small": 10.3e6, "medium": 30.7e6, "large": 118.8e6}


def tiny(**changes):
    torch.manual_seed(0)
    return Conformer(ConformerConfig.parse({"vocab": 12, **PRESETS["tiny-attention"], **changes}))


@pytest.mark.parametrize("preset", PAPER)
def test_the_presets_have_the_sizes_of_the_paper(preset):
    with torch.device("meta"):
        model = Conformer(ConformerConfig.parse({"vocab": 1024, **PRESETS[preset]}))
    width = LSTM[preset]
    transducer = 4 * width * (2 * width + 2) + 1024 * width  # one LSTM, and the embeddings of 1,024 word pieces
    count = sum(p.numel() for p in model.parameters()) + transducer
    assert count == pytest.approx(PAPER[preset], rel=0.04)


def test_distances_are_sinusoids_of_both_signs():
    table = DistanceTable(6, length=4)
    rows = table(3)  # distances 3, 2, 1, 0, -1, -2
    after = sinusoidal(4, 6)
    assert torch.equal(rows[:4], after.flip(0))
    assert torch.allclose(rows[4, 0::2], -after[1, 0::2]) and torch.allclose(rows[4, 1::2], after[1, 1::2])
    assert torch.allclose(table(9)[6:12], rows)  # it has grown


def test_the_bias_of_a_distance_is_the_formula_term_by_term():
    torch.manual_seed(1)
    heads, size, length = 2, 3, 5
    positions = RelativePositions(heads * size, heads, DistanceTable(heads * size))
    nn.init.normal_(positions.bias)
    q, table = torch.randn(2, heads, length, size), DistanceTable(heads * size)(length)
    found = positions(q, length)
    for h in range(heads):
        for i in range(length):
            for j in range(length):
                place = positions.project(table[length - (i - j)]).view(heads, size)[h]
                wanted = ((q[:, h, i] + positions.bias[h, 0]) * place).sum(-1) / size**0.5
                assert torch.allclose(found[:, h, i, j], wanted, atol=1e-5)
    with pytest.raises(ValueError, match="self-attention"):
        positions(q, length + 1)


@pytest.mark.parametrize("training", [False, True])
def test_padding_reaches_no_real_frame(training):
    """Each recording alone gives what it gives in a batch; in training, statistics are those of real frames."""
    model = tiny(dropout=0.0).train(training)
    lengths, longest = [37, 61, 8], 61
    features = torch.randn(3, longest, 40)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    if training:  # the same frames, with other values at padding
        other = torch.where(mask[..., None], features, 100.0)
        first, second = model(features, mask), model(other, mask)
        assert torch.allclose(first.frames[first.mask], second.frames[second.mask], atol=1e-5)
        return
    nn.init.normal_(model.encoder[0].convolution.norm.running_mean)
    inputs = torch.randint(3, 12, (3, 4))
    together = model(features, mask, inputs)
    for row, length in enumerate(lengths):
        alone = model(features[row : row + 1, :length], None, inputs[row : row + 1])
        frames = subsampled(length)
        assert int(together.mask[row].sum()) == frames == alone.frames.shape[1]
        assert torch.allclose(together.frames[row, :frames], alone.frames[0], atol=1e-5)
        assert torch.allclose(together.taught[row], alone.taught[0], atol=1e-5)


def test_a_batch_norm_without_padding_is_torchs_own():
    torch.manual_seed(2)
    ours, theirs = FrameBatchNorm(5), nn.BatchNorm1d(5)
    x = torch.randn(3, 7, 5)
    for _ in range(2):
        assert torch.allclose(ours(x, None), theirs(x.transpose(1, 2)).transpose(1, 2), atol=1e-6)
    assert torch.allclose(ours.running_var, theirs.running_var) and torch.allclose(
        ours.running_mean, theirs.running_mean
    )
    assert torch.allclose(ours.eval()(x, None), theirs.eval()(x.transpose(1, 2)).transpose(1, 2), atol=1e-6)


def test_a_batch_norm_measures_real_frames_only():
    norm, x = FrameBatchNorm(2), torch.randn(2, 6, 2)
    mask = torch.tensor([[True] * 6, [True] * 2 + [False] * 4])
    found = norm(x, mask)[mask]
    assert torch.allclose(found.mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(norm.running_mean, 0.1 * x[mask].mean(0), atol=1e-6)


def test_the_convolution_reads_its_kernel_and_no_more():
    torch.manual_seed(3)
    module = ConvolutionModule(4, 5).eval()
    x = torch.randn(1, 12, 4, requires_grad=True)
    module(x, None)[0, 6].sum().backward()
    assert x.grad[0].abs().sum(-1).nonzero().flatten().tolist() == [4, 5, 6, 7, 8]


def test_steps_give_what_teacher_forcing_gives():
    model = tiny().eval()
    features, tokens = torch.randn(2, 30, 40), torch.randint(3, 12, (2, 5))
    mask = torch.arange(30) < torch.tensor([30, 17])[:, None]
    taught = model(features, mask, tokens).taught
    state = model.start(features, mask)
    for place in range(tokens.shape[1]):
        logits = model.step(tokens[:, place : place + 1], state)[:, 0]
        assert torch.allclose(logits, taught[:, place], atol=1e-5)


def test_its_attention_can_be_recorded():
    model = tiny().eval()
    with record(model) as looks:
        model(torch.randn(1, 24, 40), None, torch.tensor([[0, 3]]))
    assert looks["encoder.1.attention"].shape == (1, 4, 6, 6) and looks["decoder.decoder.0.cross"].shape == (1, 4, 2, 6)
    assert torch.allclose(looks["encoder.0.attention"].sum(-1), torch.ones(1, 4, 6))


def test_a_model_that_could_say_nothing_is_refused():
    with pytest.raises(ConfigError, match="decoder_depth"):
        ConformerConfig.parse({"vocab": 8, "ctc": False})
    with pytest.raises(ConfigError, match="kernel"):
        ConformerConfig.parse({"vocab": 8, "kernel": 32})
