"""A training step that is predicted, beside one that is measured."""

import json

import pytest
import torch

from regard.checkpoints import save_model
from regard.cli.main import run
from regard.families.catalog import MODELS
from regard.plan.machine import OperationTimer, kind_of
from regard.plan.measure import measure_step
from regard.plan.measured_step import TASKS, _StepWork, measured_peak, synthetic_recipe
from regard.plan.plan import make_plan
from regard.training.recipe.sections import TrainingSection

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
    save_model(
        tmp_path / "model", "gpt", MODELS["gpt"].model(MODELS["gpt"].config(vocab=30, width=32, heads=4, depth=1))
    )
    assert run(["plan", str(tmp_path / "model"), "--measure"]) == 2
    assert "is a trained model" in capsys.readouterr().err


def test_accumulating_repeats_everything_but_the_update():
    once, often = (
        _StepWork.of(make_plan("transformer:tiny", batch=2, sets=[f"training.accumulate={count}"]), "cpu")
        for count in (1, 3)
    )
    assert once.touched == often.touched
    assert often.launches == 3 * once.launches
    assert often.operations == {operation: 3 * times for operation, times in once.operations.items()}


@pytest.mark.parametrize("name", ["vit", "lstm", "resnet"])
def test_every_operation_of_a_step_can_be_replayed(name):
    config = MODELS[name].config.parse({**MODELS[name].presets["tiny"], **({"vocab": 30} if name == "lstm" else {})})
    operations = measure_step(name, config, 2, 6, 6, TrainingSection()).operations
    timer = OperationTimer(torch.device("cpu"))
    for operation in operations:
        with torch.no_grad():
            timer._replay(operation)()
    kinds = {kind_of(operation) for operation in operations}
    assert {"vit": "attention", "lstm": "recurrent", "resnet": "convolution"}[name] in kinds and "product" in kinds


def test_launches_are_hidden_behind_a_gpu_that_computes():
    step = _StepWork({"work": 1}, 10, 0)
    timer = OperationTimer(torch.device("cpu"))
    timer.rounds, timer.launches, timer.updates = [{"work": 7.0}], [1.0], [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.plan.measured_step.kind_of", lambda operation: "product")
        assert step.seconds(timer).seconds == {"product": 7.0, "update": 0.0, "launch": 10.0}
        timer.device = torch.device("cuda")
        assert step.seconds(timer).seconds == {"product": 7.0, "update": 0.0, "launch": 3.0}
