"""The training loop step by step: losses, non-finite numbers, averages and folders."""

import json
import math

import pytest
import sacrebleu
import torch
from torch import nn

from regard.checkpoints import complete_checkpoints, load_model, resolve, verify
from regard.data.batch import Batch, collate
from regard.errors import TrainingError, UsageError
from regard.training import loop
from regard.training.loop import Trainer, train
from regard.training.losses import Loss, cross_entropy
from regard.training.metrics_log import MetricsLog, read_metrics
from regard.training.publishing import weights_of
from regard.training.recipe.load import load_recipe
from regard.training.recipe.sections import BLEU, CHRF, LOSS
from regard.training.reporter import Heartbeat
from regard.training.run_folder import claim
from regard.training.safeguards import Signals

TINY = [
    "model.width=16", "model.heads=2", "model.encoder_depth=1", "model.decoder_depth=1", "model.ffn_width=32",
    "data.phrasebook.count=120", "data.phrasebook.valid_count=10", "data.phrasebook.test_count=4",
    "data.phrasebook.max_words=12", "tokenizer.size=200", "training.device=cpu", "training.batch_tokens=200",
    "training.steps=8", "training.lr=1e-2", "training.schedule=constant", "training.warmup=2",
    "training.validate_every=4", "training.validate_sentences=4", "training.checkpoint_every=4", "training.log_every=2",
    "decoding.beam=1", "decoding.max_length=12",
]  # fmt: skip
CPU = torch.device("cpu")


def tiny(*sets):
    return load_recipe("phrasebook", [*TINY, *sets])


def rows(out, kind):
    return [row for row in read_metrics(out / "metrics.jsonl") if row["kind"] == kind]


class Copying:
    """A stand-in for a task: a linear model that must copy its input; `poison` makes chosen batches non-finite."""

    summary, capturable, updates = "copies", False, False

    def __init__(self, poison=()):
        self.poison = set(poison)

    def build(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))

    def parameters(self, model):
        return {"model": list(model.parameters())}

    def rate(self, group):
        return 1.0

    def after_step(self, step, model, batch, optimizers):
        """Nothing."""

    def batches(self, place):
        for index in range(place.get("index", 0), 10**6):
            yield {"index": index + 1}, self.batch(index)

    def batch(self, index):
        generator = torch.Generator().manual_seed(index)
        lengths = torch.randint(1, 9, (4,), generator=generator).tolist()
        ids = [torch.randint(1, 12, (length,), generator=generator).numpy() for length in lengths]
        made = collate(ids, ids, pad=0, start=1)
        return Poisoned(made, index in self.poison)

    def phases(self, model, batch):
        logits = model(batch.inner.labels)
        total = cross_entropy(logits, batch.inner.labels, batch.inner.labels_mask, 0.1)
        yield "model", Loss(total * (math.inf if batch.poisoned else 1.0), batch.inner.labels_mask.sum())

    def validate(self, model, poll):
        return {"loss": float(model[1].weight.detach().norm())}

    def samples(self):
        return []

    def test(self, model, poll):
        return {}

    def save(self, folder):
        pass

    def finish(self, model, folder):
        pass


class Poisoned:
    def __init__(self, inner: Batch, poisoned: bool):
        self.inner, self.poisoned, self.tokens = inner, poisoned, inner.tokens

    def to(self, device, non_blocking=False):
        return self


@pytest.fixture
def trainer(tmp_path):
    """Creates trainers of stand-in tasks, each with its own folder and without checkpoints."""
    made = []

    def make(task, *sets):
        folder = tmp_path / f"run{len(made)}"
        folder.mkdir()
        recipe = tiny("training.validate_every=0", "training.checkpoint_every=0", *sets)
        run = Trainer(recipe, task, folder, CPU, Signals())
        run._save = lambda: None
        made.append(run)
        return run

    yield make
    for run in made:
        run.log.close()


def merged(batches):
    """The sentences of several batches in one."""
    pairs = [(batch.inner.labels, batch.inner.labels_mask) for batch in batches]
    ids = [row[kept].numpy() for labels, mask in pairs for row, kept in zip(labels, mask, strict=True)]
    return Poisoned(collate(ids, ids, pad=0, start=1), False)


def gradients(run, parts):
    """The gradients of one step over the same ragged sentences, cut into `parts` micro-batches."""
    batches = [Copying().batch(index) for index in range(8)]
    size = len(batches) // parts
    micro = [merged(batches[first : first + size]) for first in range(0, len(batches), size)]
    run.step(micro, sum(batch.tokens for batch in micro))
    return torch.cat([p.grad.flatten() for p in run.model.parameters()])


@pytest.mark.parametrize("parts", [2, 8])
def test_accumulated_gradients_are_those_of_one_large_batch(trainer, parts):
    whole, cut = (gradients(trainer(Copying(), "training.clip=0"), k) for k in (1, parts))
    assert (whole - cut).norm() / whole.norm() < 1e-6


def test_the_gradient_is_that_of_the_mean_over_all_tokens(trainer):
    task = Copying()
    run = trainer(task, "training.clip=0")
    batches = [task.batch(i) for i in range(3)]
    model = task.build()
    losses = [loss for batch in batches for _, loss in task.phases(model, batch)]
    (sum(loss.total for loss in losses) / sum(batch.tokens for batch in batches)).backward()
    run.step(batches, sum(batch.tokens for batch in batches))
    for ours, expected in zip(run.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad)


def test_clipping_bounds_the_norm(trainer):
    run = trainer(Copying(), "training.clip=0.01")
    run.step([Copying().batch(0)], 7)
    norm = torch.cat([p.grad.flatten() for p in run.model.parameters()]).norm()
    assert norm.item() == pytest.approx(0.01, rel=1e-3)


def test_a_bad_step_is_skipped_and_counted(trainer):
    run = trainer(Copying(poison={3, 4}), "training.on_nan=skip", "training.log_every=4")
    clean = trainer(Copying(), "training.on_nan=skip")
    run.fit()
    for index in (0, 1, 2, 5, 6, 7):  # the same batches and rates without the bad ones
        clean.progress.step = index
        clean.step([Copying().batch(index)], Copying().batch(index).tokens)
    assert [row["skipped"] for row in rows(run.out, "train")] == [1, 2]
    assert all(math.isfinite(row["loss"]) for row in rows(run.out, "train"))
    for ours, expected in zip(run.model.parameters(), clean.model.parameters(), strict=True):
        torch.testing.assert_close(ours, expected)


def test_skipping_everything_ends_the_run(trainer):
    run = trainer(Copying(poison=range(8)), "training.on_nan=skip")
    with pytest.raises(TrainingError, match="not one step"):
        run.fit()


def test_a_bad_step_ends_the_run_and_leaves_the_weights_from_before(trainer):
    run = trainer(Copying(poison={3}), "training.log_every=8")
    good = trainer(Copying())
    for index in range(3):
        good.step([Copying().batch(index)], Copying().batch(index).tokens)
    with pytest.raises(TrainingError, match="step 4:"):
        run.fit()
    for ours, expected in zip(run.model.parameters(), good.model.parameters(), strict=True):
        torch.testing.assert_close(ours, expected)


def test_the_first_bad_module_is_named_and_the_last_good_checkpoint_kept(tmp_path, monkeypatch):
    original = Trainer.step

    def step(self, batches, tokens):
        if self.progress.step == 5:
            self.model.encoder[0].register_forward_hook(lambda module, inputs, output: output * math.nan)
        original(self, batches, tokens)

    monkeypatch.setattr(Trainer, "step", step)
    with pytest.raises(TrainingError, match=r"step 6: .*encoder\.0 .*step-00000004"):
        train(tiny(), tmp_path / "run")
    kept = resolve(tmp_path / "run")
    assert kept.name == "step-00000004"
    verify(kept)


def test_phases_update_their_own_parameters(trainer):
    class Duel(Copying):
        seen = ()

        def parameters(self, model):
            return {"critic": list(model[0].parameters()), "generator": list(model[1].parameters())}

        def phases(self, model, batch):
            before = model[0].weight.detach().clone()
            _, loss = next(super().phases(model, batch))
            yield "critic", loss
            self.seen = (*self.seen, not torch.equal(before, model[0].weight))
            _, loss = next(super().phases(model, batch))
            yield "generator", loss

    task = Duel()
    run = trainer(task)
    start = [p.detach().clone() for p in run.model.parameters()]
    run.step([task.batch(0), task.batch(1)], 10)
    assert task.seen == (True, True)  # the critic was updated before the generator's losses were computed
    assert all(not torch.equal(a, b) for a, b in zip(start, run.model.parameters(), strict=True))


def test_a_group_learns_as_much_faster_as_its_task_says(trainer):
    class Hasty(Copying):
        def rate(self, group):
            return 4.0

    moved = []
    for task in (Copying(), Hasty()):
        run = trainer(task, "training.weight_decay=0")
        before = run.model[1].weight.detach().clone()
        run.step([task.batch(0)], task.batch(0).tokens)
        moved.append(run.model[1].weight.detach() - before)
    torch.testing.assert_close(moved[1], 4 * moved[0], atol=1e-6, rtol=1e-3)


def test_moving_average_is_what_is_measured_and_saved(trainer):
    run = trainer(Copying(), "training.ema=0.5")
    shadow = [p.detach().clone() for p in run.model.parameters()]
    for index in range(4):
        run.step([Copying().batch(index)], Copying().batch(index).tokens)
        decay = min(0.5, (2 + index) / (11 + index))
        shadow = [decay * s + (1 - decay) * p.detach() for s, p in zip(shadow, run.model.parameters(), strict=True)]
    raw = [p.detach().clone() for p in run.model.parameters()]
    with run.engine.published(run.average):
        for ours, expected in zip(run.model.parameters(), shadow, strict=True):
            torch.testing.assert_close(ours, expected)
    assert run.measure()["loss"] == pytest.approx(float(shadow[1].norm()))
    assert all(torch.equal(a, b) for a, b in zip(raw, run.model.parameters(), strict=True))


def test_patience_ends_a_run_that_no_longer_gains(trainer):
    class Worse(Copying):
        values = iter([3.0, 2.0, 2.5, 2.5, 9.0, 9.0])

        def validate(self, model, poll):
            return {"loss": next(self.values)}

    run = trainer(Worse(), "training.validate_every=1", "training.patience=2")
    run.fit()
    assert (run.progress.step, run.progress.best, run.progress.best_step) == (4, 2.0, 2)


def test_the_time_limit_ends_a_run(trainer):
    run = trainer(Copying(), "training.steps=100000", "training.time_limit=1e-5")
    run.fit()
    assert run.progress.step < 100000


def test_metrics_know_which_way_is_better():
    assert LOSS.better(1.0, 2.0) and not LOSS.better(2.0, 1.0)
    assert BLEU.better(2.0, 1.0) and not CHRF.better(1.0, 2.0)
    assert LOSS.better(1.0, None) and not LOSS.better(math.nan, None) and not BLEU.better(math.nan, 1.0)


@pytest.mark.parametrize("metric", ["loss", "bleu"])
def test_the_better_of_mean_and_best_is_published(tmp_path, metric):
    out = train(tiny("training.average=2", "training.keep=2", f"training.metric={metric}"), tmp_path / "run")
    verify(out)
    published = load_model(out).model.state_dict()
    average, valid = rows(out, "average")[-1][metric], [row[metric] for row in rows(out, "valid")]
    best = max(valid) if metric == "bleu" else min(valid)
    states = [weights_of(folder) for folder in complete_checkpoints(out)[:2]]
    expected = states[-1 if valid[0] == best else 0]
    if (average > best) if metric == "bleu" else (average < best):
        expected = {name: (states[0][name].double() + states[1][name].double()) / 2 for name in expected}
    for name, tensor in expected.items():
        torch.testing.assert_close(published[name], tensor.float(), rtol=0, atol=1e-7)
    assert rows(out, "test")
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "valid loss ↓" in card and "valid bleu ↑" in card


def test_only_the_newest_and_the_best_checkpoints_are_kept(tmp_path):
    out = train(tiny("training.checkpoint_every=1", "training.keep=2", "training.steps=6"), tmp_path / "run")
    best = min(rows(out, "valid"), key=lambda row: row["loss"])["step"]
    kept = {int(folder.name[5:]) for folder in (out / "checkpoints").iterdir()}
    assert kept == {5, 6, best}


@pytest.mark.parametrize(
    "change", ["training.r_drop=1.0", "training.precision=bf16", "training.precision=bf16-stream", "training.ema=0.9"]
)
def test_every_way_of_training_learns(tmp_path, change):
    recipe = tiny("training.steps=30", "training.log_every=10", "training.validate_every=0", change)
    out = train(recipe, tmp_path / "run")
    losses = [row["loss"] for row in rows(out, "train")]
    assert losses[-1] < 0.9 * losses[0]


def test_where_bf16_would_crawl_training_goes_on_in_fp32(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("regard.training.updates.multiplies_bf16", lambda device: False)
    asked = train(tiny("training.precision=bf16"), tmp_path / "bf16")
    assert capsys.readouterr().err.count("this CPU has no bf16 arithmetic") == 1
    plain = train(tiny("training.precision=fp32"), tmp_path / "fp32")
    assert [row["loss"] for row in rows(asked, "train")] == [row["loss"] for row in rows(plain, "train")]


def test_long_work_without_steps_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("regard.training.reporter.QUIET", 0.0)
    train(tiny("training.steps=1", "training.validate_every=1"), tmp_path / "run")
    told = capsys.readouterr().err.splitlines()
    first = {work: told.index(f"{work}, 0:00 so far") for work in ("preparing the data", "validating", "testing")}
    assert first["preparing the data"] < first["validating"] < first["testing"]


def test_a_heartbeat_is_told_once_in_a_while_and_lets_signals_through(monkeypatch):
    clock, said, polls = iter((0.0, 29.0, 31.0, 60.0, 92.0)), [], []
    monkeypatch.setattr("regard.training.reporter.time.monotonic", lambda: next(clock))
    beat = Heartbeat("validating", lambda: polls.append(1), said.append)
    for _ in range(4):
        beat()
    assert (said, len(polls)) == (["validating, 0:31 so far", "validating, 1:32 so far"], 4)


def test_a_folder_serves_one_run_at_a_time(tmp_path):
    with claim(tmp_path, tiny(), resume=False), pytest.raises(UsageError, match="in use by another run"):
        train(tiny(), tmp_path)
    (tmp_path / "something").write_text("")
    with pytest.raises(UsageError, match="not empty"):
        train(tiny(), tmp_path)
    with pytest.raises(UsageError, match="cannot write into"):
        train(tiny(), tmp_path / "something")


def test_each_validation_shows_some_of_the_translations_it_measured(tmp_path):
    out = train(tiny(), tmp_path / "run")
    samples, valid = rows(out, "samples"), rows(out, "valid")
    assert [row["step"] for row in samples] == [row["step"] for row in valid] == [4, 8]
    first, second = ([pair["source"] for pair in row["pairs"]] for row in samples)
    assert first == second and all(first)
    for shown, measured in zip(samples, valid, strict=True):  # few enough that all of them are shown
        outputs, targets = ([pair[side] for pair in shown["pairs"]] for side in ("output", "target"))
        assert sacrebleu.corpus_chrf(outputs, [targets]).score == pytest.approx(measured["chrf"])


def test_the_end_tells_the_speed_of_the_whole_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loop, "MEASURED_STEP", 2)
    train(tiny(), tmp_path)
    (row,) = rows(tmp_path, "run")
    last = rows(tmp_path, "train")[-1]
    assert 0 < row["seconds_to_step_2"] < row["seconds"] and row["seconds"] > last["seconds"]
    assert row["tokens_per_second"] == pytest.approx(last["tokens"] / row["seconds"])
    assert f"{last['step']} steps in 0:" in capsys.readouterr().err


def test_resume_refuses_another_model_or_other_data(tmp_path):
    train(tiny("training.steps=2"), tmp_path / "run")
    with pytest.raises(UsageError, match="another model"):
        train(tiny("model.ffn_width=64"), tmp_path / "run", resume=True)
    with pytest.raises(UsageError, match="another seed"):
        train(tiny("seed=9"), tmp_path / "run", resume=True)


def test_cuda_without_a_gpu_is_explained(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UsageError, match="no GPU"):
        train(tiny("training.device=cuda"), tmp_path / "run")


def test_metrics_after_the_checkpoint_are_dropped_on_resume(tmp_path):
    log = MetricsLog(tmp_path, step=0)
    for step in range(1, 6):
        log.write(step, "train", {"loss": 1.0 / step})
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "ki')  # truncated by a crash
    log = MetricsLog(tmp_path, step=3)
    log.write(4, "train", {"loss": 0.5})
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in lines] == [(1, 1.0), (2, 0.5), (3, 1.0 / 3), (4, 0.5)]
