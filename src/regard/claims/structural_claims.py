"""Claims about what attention and its neighbours are: equalities that random numbers decide in seconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from regard.attention.core import attention_weights
from regard.attention.multihead import MultiHeadAttention
from regard.attention.positions import Added, RelativeBias, SinusoidalPositions
from regard.claims.claims import ClaimOptions, Row, Verdict, judge
from regard.claims.steps import attention_steps, lecture_example
from regard.families.catalog import MODELS
from regard.layers.blocks import EncoderLayer, FeedForward
from regard.layers.recurrent import GRUCell, Recurrent
from regard.layers.vision import BackboneConfig, pyramid_sides

SAME = 1e-5  # differences of float32 sums in another order
SLIDE = (0.6, 0.2, 0.2)  # the first row of weights as a slide has it
GIB, FLOAT = 2**30, 4


def permutation(_: ClaimOptions) -> Verdict:
    """f(σ(x)) = σ(f(x)) without positions, and not with them."""
    torch.manual_seed(0)
    layer, positions = MultiHeadAttention(32, 4).requires_grad_(False), Added(SinusoidalPositions(32))
    x, order = torch.randn(2, 10, 32), torch.randperm(10)
    plain = _difference(layer(x[:, order]), layer(x)[:, order])
    placed = _difference(layer(positions(x[:, order])), layer(positions(x))[:, order])
    rows: list[Row] = [
        {"input": "tokens alone", "difference": plain},
        {"input": "with positions", "difference": placed},
    ]
    return judge(plain < SAME < placed, "outputs follow the order of the inputs until positions are added", rows)


def worked_example(_: ClaimOptions) -> Verdict:
    """The softmax of the lectures' 3 x 3 scores, with and without the causal mask."""
    free, masked = (attention_steps(lecture_example(step)).steps for step in (6, 7))
    rows: list[Row] = []
    for name, steps in (("scaled", free), ("masked", masked)):
        weights = next(step for step in steps if step.name == "Attention weights").matrices[0]
        rows += [{"scores": name, "row": at, **_cells(row)} for at, row in enumerate(weights, start=1)]
    first = tuple(round(rows[0][name], 1) for name in ("key 1", "key 2", "key 3"))
    words = f"the first row is {rows[0]['key 1']:.3f}, {rows[0]['key 2']:.3f}, {rows[0]['key 3']:.3f}; masked 1, 0, 0"
    return judge(first == SLIDE, words, rows)


def masked_by_a_large_number(_: ClaimOptions) -> Verdict:
    """A bias of -1e9 above the diagonal gives the weights of -∞."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 4, 16, 8)
    bias = torch.full((1, 1, 16, 16), -1e9).triu(1)
    difference = _difference(attention_weights(q, k, bias=bias), attention_weights(q, k, causal=True))
    return judge(difference == 0, f"the largest difference is {difference:g}", [{"difference": difference}])


def similarity_search(_: ClaimOptions) -> Verdict:
    """Whether the key that a query weighs most is the nearest input vector."""
    torch.manual_seed(0)
    rows: list[Row] = []
    x = functional.normalize(torch.randn(1, 256, 64), dim=-1)
    away = torch.eye(256, dtype=torch.bool)
    nearest = (x @ x.transpose(1, 2)).masked_fill(away, -1).argmax(-1)
    for name, layer in (("W_Q = W_K = I", None), ("W_Q, W_K as initialised", MultiHeadAttention(64, 1))):
        q, k = (x[:, None], x[:, None]) if layer is None else layer.project(x)[:2]
        most = attention_weights(q, k, mask=~away[None, None]).argmax(-1)[:, 0]
        rows.append({"projections": name, "heaviest key is the nearest": float((most == nearest).float().mean())})
    words = "a search for the nearest vector is the special case W_Q = W_K = I; learned projections ask other questions"
    return judge(rows[1]["heaviest key is the nearest"] > 0.5, words, rows)


def memory_of_layers(_: ClaimOptions) -> Verdict:
    """Whether decoder layer i reads encoder layer i, or all of them read the last."""
    torch.manual_seed(0)
    entry = MODELS["transformer"]
    model = entry.model(entry.config.parse({**entry.presets["tiny"], "source_vocab": 9, "target_vocab": 9})).eval()
    written, read = list[Tensor](), list[Tensor]()
    for name, module in model.named_modules():
        if isinstance(module, EncoderLayer):
            module.register_forward_hook(lambda _, args, output: written.append(output))
        elif name.endswith("cross.key"):
            module.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    source, target = torch.randint(1, 9, (1, 5)), torch.randint(1, 9, (1, 4))
    with torch.no_grad():
        model(source, source != 0, target)
    found = [next(at for at, output in enumerate(written) if torch.equal(output, memory)) for memory in read]
    rows: list[Row] = [{"decoder layer": at, "reads encoder layer": layer} for at, layer in enumerate(found)]
    by_layer = all(row["decoder layer"] == row["reads encoder layer"] for row in rows)
    return judge(by_layer, f"all {len(rows)} decoder layers read the last encoder layer", rows)


def patch_is_convolution(_: ClaimOptions) -> Verdict:
    """The projection of p x p patches is a convolution with kernel and stride p."""
    torch.manual_seed(0)
    project, images = nn.Linear(3 * 16 * 16, 32), torch.randn(2, 3, 64, 64)
    patches = functional.unfold(images, 16, stride=16).transpose(1, 2)
    convolved = functional.conv2d(images, project.weight.view(32, 3, 16, 16), project.bias, stride=16)
    difference = _difference(project(patches), convolved.flatten(2).transpose(1, 2))
    return judge(difference < SAME, f"the largest difference is {difference:.1e}", [{"difference": difference}])


def feed_forward_is_convolution(_: ClaimOptions) -> Verdict:
    """The feed-forward network is two convolutions of kernel 1."""
    torch.manual_seed(0)
    network, x = FeedForward(16, 64), torch.randn(2, 10, 16)
    hidden = functional.conv1d(x.transpose(1, 2), network.up.weight[..., None], network.up.bias).relu()
    convolved = functional.conv1d(hidden, network.down.weight[..., None], network.down.bias).transpose(1, 2)
    difference = _difference(network(x), convolved)
    return judge(difference < SAME, f"the largest difference is {difference:.1e}", [{"difference": difference}])


def gru_unrolled(_: ClaimOptions) -> Verdict:
    """A GRU's state is a weighted sum of all candidates before it, with weights that sum to 1 with that of h_0."""
    torch.manual_seed(0)
    width, steps = 8, 12
    cell = GRUCell(*(torch.randn(3 * width, width) / 2 for _ in range(2)), *(torch.randn(3 * width) for _ in range(2)))
    state, kept, candidates = torch.randn(1, width), [], []
    first = state
    for x in torch.randn(steps, 1, width):
        (after,) = cell(x, (state,))
        gate = _gate(cell, x, state)
        kept.append(gate)
        candidates.append((after - gate * state) / (1 - gate))
        state = after
    kept_products = [torch.stack(kept[at:]).prod(dim=0) for at in range(steps)] + [torch.ones(1, width)]
    weights = [kept_products[0]] + [kept_products[at + 1] * (1 - kept[at]) for at in range(steps)]
    total = (torch.stack(weights) * torch.stack([first, *candidates])).sum(dim=0)
    difference, summed = _difference(total, state), _difference(torch.stack(weights).sum(dim=0), torch.ones(1, width))
    rows: list[Row] = [{"state against the sum": difference, "weights against 1": summed}]
    return judge(max(difference, summed) < SAME, "the unrolled GRU is attention whose weights depend on gates", rows)


def gradients_reach_attention(_: ClaimOptions) -> Verdict:
    """A loss on the output alone gives gradients to the projections of queries and keys."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(16, 2)
    layer(torch.randn(1, 6, 16)).square().sum().backward()
    rows: list[Row] = [
        {"weights": name, "gradient": float(parameter.grad.norm())}
        for name, parameter in layer.named_parameters()
        if parameter.grad is not None and name in ("query.weight", "key.weight", "value.weight")
    ]
    holds = len(rows) == 3 and all(row["gradient"] > 0 for row in rows)
    return judge(holds, "the weights of attention learn without being told where to look", rows)


def memory_of_pixels(_: ClaimOptions) -> Verdict:
    """R⁴ entries for an R x R image: iGPT's 768 GiB, and a ViT's megabytes."""
    whole = {side: side**4 * FLOAT * 48 * 16 / GIB for side in (128, 16, 14)}
    rows: list[Row] = [
        {"tokens": f"{side} x {side}", "entries a matrix": side**4, "GiB of 48 layers, 16 heads": size}
        for side, size in whole.items()
    ]
    return judge(whole[128] == 768, "128⁴ · 4 bytes · 48 · 16 = 768 GiB", rows)


def crossing(_: ClaimOptions) -> Verdict:
    """Where self-attention (n²d) costs as much as recurrence (nd²): operations, with and without projections."""
    width, few = 64, 8
    layer, recurrent = MultiHeadAttention(width, 1), Recurrent("lstm", width, width, fused=False)
    x = torch.randn(1, few, width)
    # torch counts no operations of its fused kernel, so what is counted of attention are its projections.
    projections, recurrence = _flops(partial(layer, x)) // few, _flops(partial(recurrent, x)) // few
    rows: list[Row] = []
    for length in (32, 64, 128, 256, 512):
        between = 2 * 2 * length * length * width  # q kᵀ and the weighted sum, a multiplication and an addition each
        rows.append({
            "n": length, "d": width, "between tokens": between,
            "attention": between + length * projections, "LSTM": length * recurrence,
        })  # fmt: skip
    cheaper = max(row["n"] for row in rows if row["attention"] <= row["LSTM"])
    words = (
        "n²d and nd² meet at n = d, but constants decide: with its projections attention costs no more than an LSTM of "
        f"the same width up to n = {cheaper} = {cheaper / width:g} d"
    )
    return Verdict("depends", words, rows)


def one_weighted_sum(_: ClaimOptions) -> Verdict:
    """What is left of two places that are looked at with equal weights, in one sum and in two heads."""
    torch.manual_seed(0)
    words = torch.randn(12, 16)  # the values of twelve words
    pairs = [(a, b) for a in range(len(words)) for b in range(len(words)) if a != b]
    values = torch.stack([words[list(pair)] for pair in pairs])[:, None]  # [pairs, 1 head, 2 places, D]
    half = torch.full((len(pairs), 1, 1, 2), 0.5)
    one = (half @ values).flatten(1)
    each = torch.eye(2).expand(len(pairs), -1, -1)[:, :, None]  # two heads, each looks at a place of its own
    two = (each @ values.expand(-1, 2, -1, -1)).flatten(1)
    rows: list[Row] = [
        {"heads": heads, "pairs of words told apart": len({tuple(row) for row in sums.tolist()}), "of": len(pairs)}
        for heads, sums in ((1, one), (2, two))
    ]
    told = [row["pairs of words told apart"] for row in rows]
    text = f"one sum tells {told[0]} of {len(pairs)} pairs apart, two heads {told[1]}: which word was where is lost"
    return judge(told[0] < told[1] == len(pairs), text, rows)


def content_or_location(_: ClaimOptions) -> Verdict:
    """Scores of queries and keys look for a content wherever it is; a bias by distance looks at a place."""
    torch.manual_seed(0)
    q, k, order = torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8), torch.randperm(6)
    none, bias = torch.zeros_like(q), RelativeBias(2, 8, 16, both_sides=True).requires_grad_(False)
    bias.table.copy_(torch.randn_like(bias.table))
    rows: list[Row] = []
    for name, query, scores in (("content", q, None), ("location", none, bias(6, 6)), ("both", q, bias(6, 6))):
        plain, moved = (attention_weights(query, keys, bias=scores) for keys in (k, k[:, :, order]))
        rows.append({
            "attention by": name,
            "weights follow the words": _difference(moved, plain[..., order]) < SAME,
            "weights stay in place": _difference(moved, plain) < SAME,
        })  # fmt: skip
    found = [(row["weights follow the words"], row["weights stay in place"]) for row in rows]
    words = "moved words take their weights along with scores of content, and leave them behind with scores of place"
    return judge(found == [(True, False), (False, True), (False, False)], words, rows)


def hierarchical(_: ClaimOptions) -> Verdict:
    """The maps of ConvNets and Swins halve from stage to stage and get wider; those of a ViT stay as they are."""
    rows: list[Row] = []
    for title, name, preset in (("ResNet-50", "resnet", "50"), ("Swin-T", "swin", "t"), ("ViT-B/16", "vit", "b-16")):
        entry = MODELS[name]
        config = entry.config.parse({**entry.presets[preset], "image_size": 224, "classes": 10})
        assert isinstance(config, BackboneConfig)
        rows.append({"model": title, "sides": config.map_sides(), "widths": config.map_widths()})
    halving = [list(pyramid_sides(224 // 4, 4)) == row["sides"] for row in rows]
    words = "; ".join(f"{row['model']} {row['sides']}" for row in rows)
    return judge(halving == [True, True, False] and rows[2]["sides"] == [14], f"sides of the maps: {words}", rows)


def layer_norm_deviation(_: ClaimOptions) -> Verdict:
    """Layer norm with a deviation of sums, as a slide has it, and of means."""
    torch.manual_seed(0)
    x = torch.randn(4, 64)
    away = x - x.mean(dim=1, keepdim=True)
    expected = functional.layer_norm(x, (64,), eps=0.0)
    rows: list[Row] = [
        {"σ": name, "difference": _difference(away / deviation, expected)}
        for name, deviation in (
            ("√Σ(x - μ)²", away.square().sum(dim=1, keepdim=True).sqrt()),
            ("√(Σ(x - μ)² / D)", away.square().mean(dim=1, keepdim=True).sqrt()),
        )
    ]
    slide, right = (row["difference"] for row in rows)
    assert right < SAME
    return judge(slide < SAME, f"without 1/D the result is √D = {64**0.5:g} times too small", rows)


def _gate(cell: GRUCell, x: Tensor, state: Tensor) -> Tensor:
    """The GRU's update gate: the share of the old state that is kept."""
    width = state.shape[1]
    return torch.sigmoid((cell.project(x) + cell.recall(state))[:, width : 2 * width])


def _flops(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    return counter.get_total_flops()


def _cells(row: Tensor) -> Row:
    return {f"key {number}": float(value) for number, value in enumerate(row, start=1)}


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max())
