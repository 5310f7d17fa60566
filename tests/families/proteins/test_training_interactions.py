"""Pairs of proteins: how they are read, divided, scored and learnt; exact resume, and the commands on the result."""

import gzip
import json
import math
from itertools import islice, product

import numpy as np
import pytest
import torch

import regard
from regard.checkpoints import load_model
from regard.cli.main import run
from regard.errors import CheckpointError, ConfigError, DataError, UsageError
from regard.families.proteins.data import (
    TEST,
    TRAIN,
    InteractionBatches,
    InteractionSettings,
    ProteinPairs,
    divided,
    read_pairs,
)
from regard.families.proteins.pipeline import POOL
from regard.families.proteins.task import area_under_curve, binary_scores
from regard.families.proteins.view import residue_weights
from regard.look.inspection import GivenInput, inspect_input
from regard.look.report import from_json, to_json
from regard.look.save import save
from regard.training.loop import train
from regard.training.recipe.load import load_recipe, open_task

LETTERS = list("ARNDCQEGHILKMFPSTYV")
TINY = (
    "model.preset=tiny", "model.dropout=0.0", "training.device=cpu", "training.precision=fp32", "training.workers=0",
    "training.batch=16", "training.steps=6", "training.warmup=1", "training.validate_every=3", "data.longest=60",
    "training.checkpoint_every=3", "data.hidden=0.05",
)  # fmt: skip


def sequence(rng, marked):
    letters = "".join(rng.choice(LETTERS, int(rng.integers(20, 80))))
    return letters[:8] + "WWWW" + letters[8:] if marked else letters


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """24 proteins, of which half have a mark; two bind if both have it or neither has."""
    rng, folder = np.random.default_rng(3), tmp_path_factory.mktemp("yeast")
    proteins = {f"P{number:02d}": sequence(rng, number % 2 == 0) for number in range(24)}
    pairs = [(a, b) for a, b in product(proteins, proteins) if a < b]
    with gzip.open(folder / "sequences.tsv.gz", "wt") as out:
        out.writelines(f"{name}\t{text}\n" for name, text in proteins.items())
    with gzip.open(folder / "pairs.tsv.gz", "wt") as out:
        out.writelines(f"{a}\t{b}\t{int(int(a[1:]) % 2 == int(b[1:]) % 2)}\n" for a, b in pairs)
    return folder


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "model"
    sets = (*TINY, f"data.train={corpus / 'pairs.tsv.gz'}", "data.sequences=", "training.steps=8")
    train(load_recipe("yeast-interactions", sets), out)
    return out


def test_pairs_are_read_with_their_sequences(corpus):
    found = read_pairs(corpus / "pairs.tsv.gz")
    assert len(found) == 276 and len(found.names) == 24
    assert all(("WWWW" in found.sequences[number]) == (number % 2 == 0) for number in range(24))
    assert found.labels.tolist() == [int(a % 2 == b % 2) for a, b in found.pairs]


@pytest.mark.parametrize(
    ("pairs", "sequences", "told"),
    [
        ("A\tB\t2\n", "A\tACD\nB\tACD\n", "pairs.tsv, line 1: .* is not a pair"),
        ("A\tB\t1\nA\tC\t1\n", "A\tACD\nB\tACD\n", "pairs.tsv, line 2: there is no sequence of 'C'"),
        ("A\tB\t1\n", "A\tACD\nB\tAC1\n", "sequences.tsv, line 2, B: '1' at residue 3"),
        ("A\tB\t1\n", "A\tACD\nA\tACC\n", "A has two different sequences"),
        ("A\tB\t1\n", "A ACD\n", "line 1: 'A ACD' is not a protein"),
        ("\n", "A\tACD\n", "has no pair"),
    ],
)
def test_bad_tables_are_refused_with_their_line(tmp_path, pairs, sequences, told):
    (tmp_path / "pairs.tsv").write_text(pairs)
    (tmp_path / "sequences.tsv").write_text(sequences)
    with pytest.raises(DataError, match=told):
        read_pairs(tmp_path / "pairs.tsv")


def test_pairs_without_a_sequence_can_be_left_out_and_named(tmp_path):
    (tmp_path / "pairs.tsv").write_text("A\tB\t1\nA\tC\t1\n")
    (tmp_path / "sequences.fasta").write_text(">A one\nACD\n>B two\nacu\n")
    problems = []
    found = read_pairs(tmp_path / "pairs.tsv", problems=problems)
    assert len(found) == 1 and found.sequences == ["ACD", "ACC"] and "line 2" in problems[0]
    with pytest.raises(DataError, match="has no sequences beside"):
        read_pairs(tmp_path.parent / "pairs.tsv")


def random_pairs(seed, proteins=60, count=400):
    rng = np.random.default_rng(seed)
    texts = ["".join(rng.choice(LETTERS, 12)) for _ in range(proteins)]
    texts[1] = texts[0]  # one sequence under two names
    pairs = rng.integers(proteins, size=(count, 2))
    return ProteinPairs([f"P{n}" for n in range(proteins)], texts, pairs, rng.integers(2, size=count))


@pytest.mark.parametrize("seed", range(3))
def test_parts_do_not_overlap(seed):
    found = random_pairs(seed)
    turned = ProteinPairs(found.names, found.sequences, found.pairs[:, ::-1], found.labels)
    by_pairs = divided(found, "pairs", 0.1, 0.2)
    assert (by_pairs == divided(turned, "pairs", 0.1, 0.2)).all()
    assert 0.1 < (by_pairs == TEST).mean() < 0.3 and (by_pairs == TRAIN).mean() > 0.6
    by_proteins = divided(found, "proteins", 0.1, 0.2)
    known = {found.sequences[number] for number in found.pairs[by_proteins == TRAIN].flatten()}
    for pair in found.pairs[by_proteins != TRAIN]:
        assert not {found.sequences[number] for number in pair} <= known
    settings = InteractionSettings.of(found.some(np.flatnonzero(by_proteins == TRAIN)), "proteins", 0.1, 0.2)
    expected = [len([n for n in pair if found.sequences[n] not in known]) for pair in found.pairs]
    assert settings.unseen(found).tolist() == expected


def test_degrees_by_hand():
    pairs, labels = np.array([[0, 1], [0, 1], [0, 2]]), np.array([1, 1, 0])
    found = ProteinPairs(["a", "b", "c"], ["AAA", "CCC", "DDD"], pairs, labels)
    settings = InteractionSettings.of(found, "pairs", 0.1, 0.1)
    a, b, c = math.log(3 / 2), math.log(3), math.log(1 / 2)
    np.testing.assert_allclose(settings.degree_scores(found), [a + b, a + b, a + c])
    other = ProteinPairs(["x", "a"], ["EEE", "AAA"], np.array([[0, 1]]), np.array([1]))
    np.testing.assert_allclose(settings.degree_scores(other), [a])


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_counting(seed):
    rng = np.random.default_rng(seed)
    scores, labels = rng.integers(-3, 4, 60).astype(float), rng.integers(2, size=60)
    found = binary_scores(scores, labels)
    yes, no = scores[labels == 1], scores[labels == 0]
    wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a in yes for b in no]
    assert found["auc"] == pytest.approx(np.mean(wins))
    tp, fp, fn = (yes > 0).sum(), (no > 0).sum(), (yes <= 0).sum()
    assert found["precision"] == pytest.approx(tp / (tp + fp)) and found["recall"] == pytest.approx(tp / (tp + fn))
    assert found["f1"] == pytest.approx(2 * tp / (2 * tp + fp + fn))
    assert found["accuracy"] == pytest.approx(((scores > 0) == labels).mean())
    assert area_under_curve(scores, np.ones(60)) == 0.5


def test_scores_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(5)
    scores, labels = rng.normal(size=200).round(1), rng.integers(2, size=200)
    names = ("accuracy", "precision", "recall", "f1")
    theirs = {name: getattr(metrics, f"{name}_score")(labels, scores > 0) for name in names}
    theirs["auc"] = metrics.roc_auc_score(labels, scores)
    assert binary_scores(scores, labels) == pytest.approx(theirs)


def test_training_reads_windows_and_hides_residues(corpus):
    found = read_pairs(corpus / "pairs.tsv.gz")
    make = InteractionBatches(found, longest=16, hidden=0.3, seed=4)
    batch = make(np.arange(8), (2, 1))
    assert batch.first_mask.sum(1).max() == 16 and batch.first.shape[1] % 64 == 0
    hidden = (batch.first == 20)[batch.first_mask].float().mean()
    assert 0.1 < hidden < 0.5
    assert torch.equal(batch.first, make(np.arange(8), (2, 1)).first)
    assert not torch.equal(batch.first, make(np.arange(8), (2, 2)).first)
    whole = InteractionBatches(found)(np.array([3]), (0, 0))
    assert int(whole.first_mask.sum()) == len(found.sequences[found.pairs[3, 0]])


def test_a_mark_is_learnt(corpus, tmp_path):
    """Pairs bind if both proteins have a mark or neither has, which no degree tells; with the task's own loss."""
    sets = [*TINY, f"data.train={corpus / 'pairs.tsv.gz'}", "data.sequences=", "data.longest=0", "data.hidden=0"]
    task = open_task(load_recipe("yeast-interactions", sets), tmp_path / "data", torch.device("cpu"), lambda: None)
    torch.manual_seed(1)
    model, losses = task.build(), []
    optimiser = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _, batch in islice(task.batches({"epoch": 0, "index": 0}), 60):
        loss = task.loss(model, batch)
        (loss.total / loss.tokens).backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.total.detach() / loss.tokens))
    assert np.median(losses[-10:]) < 0.5 * np.median(losses[:10])


def test_a_stopped_run_goes_on_to_the_same_bits(corpus, tmp_path):
    sets = [*TINY, f"data.train={corpus / 'pairs.tsv.gz'}", "data.sequences=", "training.schedule=constant",
            "model.dropout=0.1"]  # fmt: skip
    train(load_recipe("yeast-interactions", sets), tmp_path / "whole")
    train(load_recipe("yeast-interactions", [*sets, "training.steps=3"]), tmp_path / "cut")
    train(load_recipe("yeast-interactions", sets), tmp_path / "cut", resume=True)
    resumed = load_model(tmp_path / "cut").model.state_dict()
    for name, tensor in load_model(tmp_path / "whole").model.state_dict().items():
        assert torch.equal(resumed[name], tensor), name


def test_pairs_together_are_answered_as_alone_and_turned_round(trained):
    predictor, rng = regard.load(trained), np.random.default_rng(1)
    first, second = ([sequence(rng, n % 3 == 0) for n in range(9)] for _ in range(2))
    first[4] = "".join(rng.choice(LETTERS, 5000))
    together = [each.probability for each in predictor.interact(first, second)]
    alone = [predictor.interact(a, b)[0].probability for a, b in zip(first, second, strict=True)]
    turned = [each.probability for each in predictor.interact(second, first)]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(together, turned, atol=1e-6)
    assert len({round(each, 6) for each in together}) > 1


def test_odd_sequences_are_read_and_told_or_refused(trained):
    predictor = regard.load(trained)
    (odd,) = predictor.interact("acdUXB", "MKL")
    (plain,) = predictor.interact("ACDCXD", "MKL")
    assert odd.probability == plain.probability and "first: 3 in lower case" in odd.told
    with pytest.raises(DataError, match="the second protein: '7' at residue 2"):
        predictor.interact("MKL", "M7L")
    with pytest.raises(DataError, match="has 9,000 residues; this model reads at most 8,192"):
        predictor.interact("A" * 9000, "MKL")
    with pytest.raises(UsageError, match="2 proteins came with 1 others"):
        predictor.interact(["MKL", "MKV"], ["MKL"])


def test_the_verb_pairs_all_with_all(trained, tmp_path, capsys):
    (tmp_path / "a.fasta").write_text(">one\nMKLVWWWW\n>two\nMSTAGKVIK\n")
    assert run(["interact", str(tmp_path / "a.fasta"), "mkvU", "-m", str(trained)]) == 0
    told = capsys.readouterr()
    lines = [line.split("\t") for line in told.out.splitlines()]
    assert [line[1:] for line in lines] == [["one", "mkvU"], ["two", "mkvU"]]
    expected = regard.load(trained).interact(["MKLVWWWW", "MSTAGKVIK"], ["MKVC", "MKVC"])
    assert [float(line[0]) for line in lines] == pytest.approx([each.probability for each in expected], abs=1e-4)
    assert "mkvU: 3 in lower case" in told.err and "selenocysteine" in told.err
    assert run(["interact", "MKL", "MKV", "-m", str(trained), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"first", "second", "probability", "binds"}
    assert run(["interact", "MKL", "-m", str(trained)]) == 2
    assert run(["interact", "MK9", "MKV", "-m", str(trained)]) == 1
    assert "'9' at residue 3" in capsys.readouterr().err


def test_lines_of_stdin_are_answered_line_by_line(trained, capsys, monkeypatch):
    class Given:
        buffer = __import__("io").BytesIO(b"MKL\tMKV\nMKL\n")

        @staticmethod
        def isatty():
            return False

    monkeypatch.setattr("sys.stdin", Given)
    assert run(["interact", "-m", str(trained)]) == 1
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 2 and "pair 2 is refused: 1 columns were given" in told.err


def test_evaluation_stands_beside_degrees_and_leaves_out_training_pairs(trained, corpus, capsys, tmp_path):
    assert run(["evaluate", str(corpus / "pairs.tsv.gz"), "-m", str(trained), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    counts = [int(title.split(": ")[1].split()[0]) for title in scores if ", " not in title.split(":")[0]]
    parts = divided(read_pairs(corpus / "pairs.tsv.gz"), "pairs", 0.1, 0.1)
    assert counts == [int((parts == 1).sum()), int((parts == TEST).sum())]
    for group in scores.values():
        assert set(group) == {"this model", "degree of the proteins", "most frequent label"}
    other = tmp_path / "others.tsv"  # its sequences are those of the model's recipe
    other.write_text("P00\tP02\t1\nP01\tnobody\t0\n")
    (tmp_path / "named").symlink_to(trained)
    assert run(["evaluate", str(other), "-m", str(trained), "--json"]) == 1
    told = capsys.readouterr()
    assert list(json.loads(told.out)) == ["all: 1 pairs"] and "no sequence of 'nobody'" in told.err


def test_attention_is_drawn_for_both_proteins(trained, tmp_path):
    predictor = regard.load(trained)
    (tmp_path / "two.fasta").write_text(">one\n" + "MKLV" * 10 + "\n>two\nMSTAGKVIKACDEFGHI\n")
    found = inspect_input(predictor, GivenInput(tmp_path / "two.fasta", "two.fasta"))
    names = [panel.name for panel in found.report.panels]
    assert names[:2] == ["links.0.cross.first", "links.0.cross.second"] and "pool.first" in names
    cross = found.report.panels[0]
    assert cross.queries.labels() == ["M1-V16", "M17-V32", "M33-V40"] and cross.keys.labels() == ["M1-H16", "I17-I17"]
    for panel in found.report.panels:
        np.testing.assert_allclose(panel.weights.sum(-1), 1, atol=1e-5)
    seen = predictor.attention("MKLV" * 10, "MSTAGKVIKACDEFGHI")
    for weights, sequence in zip(residue_weights(seen), seen.sequences, strict=True):
        assert len(weights) == len(sequence) and weights.sum() == pytest.approx(1, abs=1e-5)
    assert found.answer["proteins"][0]["weights"] == residue_weights(seen)[0].round(6).tolist()
    assert seen.weights[POOL][0].shape == (2, 1, 3)
    from_json(to_json(found.report))
    for suffix in ("png", "svg", "html", "json"):
        save(found.report, tmp_path / f"look.{suffix}")
    sent = inspect_input(predictor, GivenInput(b"MKLVMKLV", "a", "MSTAG"))
    assert sent.answer["probability"] == pytest.approx(predictor.interact("MKLVMKLV", "MSTAG")[0].probability)
    with pytest.raises(UsageError, match="1 protein came; give two proteins"):
        inspect_input(predictor, GivenInput(b"MKLVMKLV", "a"))


def test_recipes_and_folders_that_do_not_fit_are_refused(trained, tmp_path):
    with pytest.raises(ConfigError, match="leave nothing to train on"):
        load_recipe("yeast-interactions", ["data.held_out=0.5", "data.tested=0.5"])
    with pytest.raises(ConfigError, match="begins with random weights"):
        load_recipe("yeast-interactions", ["model={name='interactor',init='x'}"])
    with pytest.raises(CheckpointError, match=r"has no interactions\.json"):
        InteractionSettings.load(tmp_path)
