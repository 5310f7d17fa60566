"""Captured and replayed training steps, with a capture that repeats Python code: they equal the steps of the loop."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from regard.data.batch import ImageBatch
from regard.families.catalog import TASKS
from regard.families.language.modelling import StreamTask
from regard.training.cuda_graphs import MOST, WARM, CapturedUpdate
from regard.training.loop import Trainer
from regard.training.recipe.load import load_recipe, open_task
from regard.training.safeguards import Signals

CPU = torch.device("cpu")
COMMON = [
    "training.device=cpu", "training.steps=40", "training.warmup=4", "training.validate_every=0", "training.ema=0.9",
]  # fmt: skip
SCENES = ["data.scenes.count=40", "data.scenes.valid_count=4", "data.scenes.test_count=4", "training.batch=16"]
MODELS = {
    "scenes-vit": [
        (
            'model={name="vit",preset="tiny",image_size=16,patch=4,width=16,heads=2,depth=2,ffn_width=24,classes=6,'
            "dropout=0.1,drop_path=0.2}"
        ),
        *SCENES,
    ],
    "scenes-detector": [
        (
            'model={name="detector",preset="tiny",image_size=32,width=8,'
            "body_values={stem='large',stem_width=8,widths=[8,8,16],depths=[1,1,1],norm='group'},"
            "proposals={sizes=[[8],[12],[20]],ratios=[1],sampled=16,train_before=20,train_after=20,before=20,after=10},"
            "regions={width=16,sampled=8}}"
        ),
        *SCENES,
    ],
    "scenes-igpt": [
        'model={name="gpt",preset="igpt-tiny",width=16,heads=2,depth=2,max_length=256,dropout=0.1}',
        *SCENES,
    ],
    "scenes-captioner-hard": [
        (
            'model={name="captioner",attention="hard",image_size=16,embedding=8,width=16,dropout=0.1,body="resnet",'
            'body_values={stem="small",stem_width=8,block="basic",widths=[8,16],depths=[1,1]}}'
        ),
        *SCENES,
    ],
    "phrasebook": [
        (
            'model={name="transformer",preset="tiny",width=16,heads=2,encoder_depth=1,decoder_depth=1,ffn_width=24,'
            'dropout=0.1,tie="all"}'
        ),
        *("data.phrasebook.count=300", "data.phrasebook.valid_count=4", "data.phrasebook.test_count=4"),
        *("training.buckets=6", "training.batch_tokens=256"),
    ],
}


class Playback:
    """A stand-in for CUDA graphs: captured work is run again by Python, with the same tensors."""

    def __init__(self):
        self.warmed, self.captured = 0, 0

    def warm(self, work):
        self.warmed += 1
        work()

    def __call__(self, work):
        self.captured += 1
        return work


class Refusing(Playback):
    def __call__(self, work):
        raise RuntimeError("operation not permitted when stream is capturing")


def trainer_of(name, folder):
    recipe = load_recipe(name, [*MODELS[name], *COMMON]).resolved()
    task = open_task(recipe, folder / "data", CPU, lambda: None)
    torch.manual_seed(1)
    trainer = Trainer(recipe, task, folder, CPU, Signals())
    exact = trainer.updates.rate
    trainer.updates.rate = lambda group: float(np.float32(exact(group)))  # float32, as a graph reads it
    return trainer


def replaying(trainer, capture):
    updates = trainer.updates
    updates.captured = CapturedUpdate(
        lambda batch, tokens: updates.update([batch], tokens), CPU, capture, updates.measured
    )
    return trainer


def run(trainer, steps):
    batches = trainer.task.batches(trainer.progress.loader)
    for _ in range(steps):
        trainer.step(*trainer._take(batches))
    trainer.log.close()
    return {**dict(trainer.model.state_dict()), **{f"mean {name}": each for name, each in trainer.average.items()}}


def expected_work(task, steps):
    """The number of launched steps and of captured shapes: a shape is captured after it has occurred WARM times, and
    launched once more to be compared with."""
    batches = itertools.islice(task.batches({"epoch": 0, "index": 0}), steps)
    counts = Counter(batch.shape for _, batch in batches).values()
    assert len(counts) > 1 and max(counts) > WARM + 1  # otherwise the test would show little
    captured = sum(count > WARM for count in counts)
    return sum(min(count, WARM) for count in counts) + captured, captured


@pytest.mark.parametrize("name", sorted(MODELS))
def test_replayed_steps_are_the_steps_of_the_loop(tmp_path, name):
    """Two shapes (13 and 14 images; sentences of up to 8 and 16 tokens), dropout, learning-rate warm-up, a moving
    average."""
    plain = trainer_of(name, tmp_path / "plain")
    capture = Playback()
    replayed = replaying(trainer_of(name, tmp_path / "replayed"), capture)
    expected, found = run(plain, 20), run(replayed, 20)
    assert (capture.warmed, capture.captured) == expected_work(plain.task, 20)
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key
    torch.testing.assert_close(replayed.window.sums, plain.window.sums)


def test_a_capture_that_fails_costs_no_step(tmp_path):
    with pytest.warns(UserWarning, match="without CUDA graphs, whose capture failed: operation not permitted"):
        found = run(replaying(trainer_of("scenes-vit", tmp_path / "failing"), Refusing()), 20)
    expected = run(trainer_of("scenes-vit", tmp_path / "plain"), 20)
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


class Wrong(Playback):
    """The second graph replays its step with weights that are not the model's, as a defect of a compiler might."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def __call__(self, work):
        work, second = super().__call__(work), self.captured == 2

        def replay():
            weights = list(self.model.parameters())
            kept = [weight.detach().clone() for weight in weights]
            with torch.no_grad():
                for weight in weights:
                    weight.mul_(1 + second)
            work()
            with torch.no_grad():
                for weight, old in zip(weights, kept, strict=True):
                    weight.copy_(old)

        return replay if second else work


@pytest.mark.parametrize("name", ["scenes-vit", "scenes-captioner-hard"])
def test_a_graph_that_computes_something_else_is_found_and_not_used(tmp_path, name):
    trainer = trainer_of(name, tmp_path / "wrong")
    with pytest.warns(UserWarning, match="but for shapes that were captured before, since a captured step is wrong"):
        found = run(replaying(trainer, Wrong(trainer.model)), 20)
    assert len(trainer.updates.captured.replays) == 1
    expected = run(trainer_of(name, tmp_path / "plain"), 20)
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


def test_a_step_that_is_not_finite_is_noticed_when_it_is_replayed(tmp_path):
    trainer = replaying(trainer_of("scenes-vit", tmp_path / "run"), Playback())
    run(trainer, 12)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    batches, tokens = trainer._take(trainer.task.batches(trainer.progress.loader))
    batches[0].draws.fill_(float("nan"))
    trainer.step(batches, tokens)
    assert trainer.window.stopped.item() == 1
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())


def test_only_so_many_shapes_are_captured():
    seen, capture = [], Playback()
    repeated = CapturedUpdate(
        lambda batch, tokens: seen.append((len(batch.rows), float(tokens))), CPU, capture, lambda work: (0.0, 0.0)
    )
    for _ in range(WARM + 2):
        for size in range(1, MOST + 4):
            repeated(ImageBatch(torch.arange(size), torch.zeros(size, 2), None), 10 * size)
    assert capture.captured == MOST
    assert seen == [(size, 10.0 * size) for _ in range(WARM + 2) for size in range(1, MOST + 4)]


@pytest.mark.parametrize(
    ("name", "overrides", "captured"),
    [
        ("scenes-vit", [], True),
        ("scenes-igpt", [], True),
        ("scenes-captioner", [], True),
        ("fsdd-strings-ctc", [], False),
        ("fsdd-strings-ctc", ["training.graphs=true"], True),
        ("phrasebook", ["training.buckets=0"], False),
        ("phrasebook", [], True),
        ("phrasebook", ["training.guide=0.05"], False),
        ("tinyshakespeare-lstm", [], False),
    ],
)
def test_which_steps_are_captured(name, overrides, captured):
    recipe = load_recipe(name, overrides)
    task = StreamTask if recipe.model.name == "lstm" else TASKS[recipe.task].task
    assert (task.capturable and recipe.training.shapes_recur) == captured


def test_a_batch_takes_the_place_of_another():
    place = ImageBatch(torch.arange(3), torch.zeros(3, 2), None)
    address = place.rows.data_ptr()
    other = ImageBatch(torch.tensor([7, 8, 9]), torch.ones(3, 2), None)
    assert place.shape == other.shape != ImageBatch(torch.arange(2), torch.zeros(2, 2), None).shape
    place.copy_from(other)
    assert place.rows.tolist() == [7, 8, 9] and place.draws.sum() == 6 and place.rows.data_ptr() == address
