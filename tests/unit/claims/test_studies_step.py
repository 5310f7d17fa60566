"""The formulas of a training step against torch: products, operations, memory traffic, live memory."""

import json
import math
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.checkpoints import save_model
from regard.cli.main import run
from regard.families.catalog import MODELS
from regard.families.translation.recipe import TranslationTrainingSection
from regard.studies.costs import training_step
from regard.studies.costs.machine_limits import WorkTimer
from regard.studies.costs.made_up_data import TASKS, synthetic_recipe
from regard.studies.costs.measured_step import measured_peak
from regard.studies.costs.models import COSTS
from regard.studies.costs.parts import Piece
from regard.studies.costs.plan import make_plan
from regard.training.losses import cross_entropy
from regard.training.recipe.sections import TrainingSection

B, S, T, V = 3, 16, 12, 300
TEXTS = {"source_vocab": V, "target_vocab": V, "width": 32}
MODELS_HERE = {
    "transformer": {**TEXTS, "heads": 4, "encoder_depth": 2, "decoder_depth": 2, "ffn_width": 64},
    "seq2seq": {**TEXTS, "embedding": 32, "cell": "gru"},
    "gpt": {"vocab": V, "width": 32, "heads": 4, "depth": 3, "max_length": 40},
    "vit": {"image_size": 20, "patch": 4, "width": 32, "heads": 4, "depth": 3, "ffn_width": 80, "classes": 7},
    "resnet": {**MODELS["resnet"].presets["tiny"], "classes": 7},
}
PRODUCTS = ("mm", "bmm", "convolution", "batch_norm", "scaled_dot")  # pieces of their own
UNTOUCHED = ("empty", "detach", "_unsafe_view", "gather", "scatter_add_", "new_full")  # nothing, or one number per row
TOUCHES = {"stream": 1, "update": 1, "curve": 2, "gelu": 5, "draw": 4}  # reads and writes per number, by kind of work


@pytest.fixture(params=MODELS_HERE)
def case(request):
    """A loss to compute, and the planned costs of its model."""
    torch.manual_seed(0)
    name = request.param
    config = MODELS[name].config(**MODELS_HERE[name])
    model, tokens = MODELS[name].model(config).train(), torch.randint(V, (B, S))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[0, -1] = name != "seq2seq"  # sentences of equal length use another kernel

    def loss():
        if name in ("vit", "resnet"):
            return model(torch.zeros(B, config.channels, config.image_size, config.image_size)).sum()
        inputs = (tokens[:, :T],) if name == "gpt" else (tokens, mask, tokens[:, :T])
        return cross_entropy(model(*inputs, factored=True), tokens[:, :T], mask[:, :T])

    return loss, COSTS[name](config, S, T)


class Traffic(TorchDispatchMode):
    """Counts the numbers that operations other than products read and write."""

    def __init__(self):
        super().__init__()
        self.numbers = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        name = operation.__name__.split(".")[0]
        if not operation.is_view and not any(word in name for word in (*PRODUCTS, *UNTOUCHED)):
            for tensor in tree_leaves((args, kwargs, result)):
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    stored = tensor.untyped_storage().nbytes() // tensor.element_size()
                    self.numbers[name] += min(tensor.numel(), stored)
        return result


def test_tensors_that_are_read_and_written_are_those_torch_moves(case):
    loss, costs = case
    with Traffic() as traffic:
        loss().backward()
    update = Piece("update", (costs.total.parameters,), False)
    planned = sum(
        TOUCHES[piece.kind] * times * piece.size[0]
        for piece, times in training_step.work(costs, B, TrainingSection()).items()
        if piece.kind in TOUCHES and piece != update
    )
    assert planned == pytest.approx(traffic.numbers.total(), rel=0.25)


def test_operations_are_those_autograd_remembers(case):
    loss, costs = case
    seen, waiting = set(), [loss().grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [after for after, _ in node.next_functions]
    assert costs.total.work[Piece("call")] == pytest.approx(len(seen), rel=0.2)


def test_products_and_attention_make_up_all_flops(case):
    _, costs = case
    counted = 0
    for piece, times in costs.total.work.items():
        match piece:
            case Piece("product", size):
                counted += times * 2 * math.prod(size)
            case Piece("convolution", (_, side, inputs, outputs, kernel, groups, _)):
                counted += times * 2 * side**2 * inputs * outputs * kernel**2 // groups
            case Piece("attention" | "written", (sequences, heads, queries, keys, width)):
                counted += times * 4 * sequences * heads * queries * keys * width
    read = 2 * S * T * 32 if "attention" in costs.parts else 0  # weights by memory, which `stream` reads
    assert counted + read == costs.total.flops


CHANGES = {
    "transformer": ["training.r_drop=3.0"],
    "seq2seq": ["model.cell=lstm"],
    "gpt": ["training.accumulate=3"],
    "bert": ["model.attention_dropout=0.0"],
    "resnet": ["training.ema=0.9", "model.classes=9"],
}
PRESETS = {"gpt": "nano", "resnet": "small"}


# Models without a task are blocks of others: nothing trains them alone.
TRAINED = [name for name, entry in MODELS.items() if entry.tasks and entry.tasks[0] in TASKS and name != "elmo"]


@pytest.mark.parametrize("name", TRAINED)
def test_memory_at_its_fullest_is_that_of_all_tensors_alive(name, tmp_path):
    """The real loop, task, loader and optimiser; elmo reads characters, and its vocabulary is never small."""
    what, sets = f"{name}:{PRESETS.get(name, 'tiny')}", CHANGES.get(name, [])
    pictures = MODELS[name].tasks[0] == "images"
    sets = sets if pictures else [*sets, "tokenizer.size=500"]
    planned = make_plan(what, sets=sets, batch=8, source_length=20, target_length=18)
    recipe = synthetic_recipe(what, planned.config, sets, tmp_path, batch=8, source=20, target=18)
    plan, peak = measured_peak(recipe)
    if not pictures:
        lengths = {"bert": (20, 20), "gpt": (18, 18), "lstm": (18, 18)}.get(name, (20, 18))
        assert plan.batch in (8, 9)
        assert (plan.source_length, plan.target_length) == pytest.approx(lengths, abs=2)
    assert sum(plan.memory.values()) == pytest.approx(peak, rel=0.15)


def test_a_rehearsal_tells_memory_and_time(capsys):
    shape = ["--set", "tokenizer.size=100", "--batch", "4", "--target-length", "16"]
    assert run(["plan", "gpt:nano", *shape, "--measure", "--rounds", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["peak"]["ratio"] == pytest.approx(1, rel=0.15)
    assert told["step"]["measured"] > 0 and told["step"]["predicted"] > 0
    assert told["resident"] > told["peak"]["measured"]


def test_what_cannot_be_rehearsed_is_refused(tmp_path, capsys):
    assert run(["plan", "sagan:tiny", "--measure"]) == 2
    assert "name a recipe" in capsys.readouterr().err
    save_model(tmp_path / "model", "gpt", MODELS["gpt"].model(MODELS["gpt"].config(**MODELS_HERE["gpt"])))
    assert run(["plan", str(tmp_path / "model"), "--measure"]) == 2
    assert "is a trained model" in capsys.readouterr().err


def test_accumulating_repeats_everything_but_the_update():
    costs = make_plan("transformer:tiny").costs
    once, often = (training_step.work(costs, 2, TrainingSection(accumulate=count)) for count in (1, 3))
    update = Piece("update", (costs.total.parameters,), False)
    assert once.keys() == often.keys() and once[update] == often[update] == 10
    assert all(often[piece] == 3 * once[piece] for piece in once if piece != update)
    assert training_step.work(costs, 2, TrainingSection(ema=0.9))[update] == 13


def test_r_drop_is_two_passes():
    costs = make_plan("transformer:tiny").costs
    twice, four = (training_step.work(costs, batch, training) for batch, training in (
        (2, TranslationTrainingSection(r_drop=1.0, label_smoothing=0.0)),
        (4, TranslationTrainingSection(label_smoothing=0.0)),
    ))  # fmt: skip
    products = [{piece: n for piece, n in work.items() if piece.kind == "product"} for work in (twice, four)]
    assert products[0] == products[1]


def test_calls_are_hidden_behind_a_gpu_that_computes():
    pieces = {Piece("call"): 10, Piece("product", (4, 4, 4), False): 1}
    each = {Piece("call"): 1.0, Piece("product", (4, 4, 4), False): 7.0}
    assert training_step.seconds(pieces, each, overlapping=False) == {"call": 10.0, "product": 7.0}
    assert training_step.seconds(pieces, each, overlapping=True) == {"call": 3.0, "product": 7.0}


def test_every_kind_of_work_can_be_measured():
    pieces = [
        Piece("product", (8, 4, 6)), Piece("convolution", (2, 5, 4, 6, 3, 1, 2)),
        Piece("convolution", (1, 4, 4, 4, 2, 2, 1)), Piece("batch_norm", (2, 3, 4)),
        Piece("attention", (2, 2, 5, 7, 4)), Piece("written", (2, 2, 5, 7, 4)), Piece("lstm", (2, 3, 4, 5)),
        Piece("stream", (1000,)), Piece("curve", (1000,)), Piece("gelu", (1000,)), Piece("draw", (1000,)),
        Piece("update", (1000,)), Piece("call"),
    ]  # fmt: skip
    limits = WorkTimer(torch.device("cpu"))
    for _ in range(2):
        limits.measure(pieces)
    assert len(limits.rounds) == 2 and all(limits.seconds(piece) >= 0 for piece in pieces)
    assert limits.seconds(pieces[0]) > 0
    assert Piece("product", (2, 3, 4)).of_batch(5) == Piece("product", (10, 3, 4), False)
    assert Piece("stream", (7,), False).of_batch(5) == Piece("stream", (7,), False)
