"""Chains and alignments as batches, and coupling scores."""

import gzip
import json

import numpy as np
import pytest
import torch

from regard.data.proteins import GAP, MASK, Alignment, encode
from regard.errors import DataError
from regard.families.folding.data import (
    FoldBatches,
    FoldExample,
    ProteinInput,
    built_in_chain,
    coupling_scores,
    cropped,
    examples_of,
    load_examples,
    pad_inputs,
    row_weights,
    save_examples,
    spread,
    truth,
)
from regard.families.folding.structures import alignments_beside, find_alignments, find_chains, unusable


def aligned(chain, count=6, seed=0):
    """A chain with an alignment of random changes."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(encode(chain.sequence)[None], count, axis=0)
    changed = rng.random(rows.shape) < 0.3
    changed[0] = False
    rows[changed] = rng.integers(0, 22, changed.sum())
    return Alignment([str(n) for n in range(count)], rows.astype(np.int8), np.zeros(rows.shape, np.int32))


@pytest.fixture
def examples():
    chains = [built_in_chain(1, number, (20, 30)) for number in range(3)]
    return list(examples_of(chains, {chains[0].name: aligned(chains[0], 12)}, coupled=True))


def test_couplings_find_columns_that_change_together():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 20, (400, 12))
    rows[:, 9] = (rows[:, 2] + 7) % 20  # the letter of one column tells that of another
    rows[rng.random(400) < 0.3, 9] = 3
    scores = coupling_scores(rows)
    assert np.unravel_index(np.triu(scores, 1).argmax(), scores.shape) == (2, 9)
    np.testing.assert_allclose(scores, scores.T, atol=1e-5)
    assert not np.diag(scores).any()


def test_couplings_are_zero_where_there_is_nothing_to_learn():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 20, (50, 10))
    rows[1:, 4] = GAP
    scores = coupling_scores(rows)
    assert not scores[4].any() and scores[3].any()
    assert not coupling_scores(rows[:3]).any()


def test_rows_that_are_alike_share_their_weight():
    states = np.array([[1, 2, 3, 4, 5]] * 3 + [[6, 7, 8, 9, 10]])
    np.testing.assert_allclose(row_weights(np.eye(21)[states]), [1 / 3, 1 / 3, 1 / 3, 1])
    assert spread(10, 4).tolist() == [0, 3, 6, 9] and spread(2, 8).tolist() == [0, 1]


def test_examples_come_back_as_they_were_saved(examples, tmp_path):
    save_examples(tmp_path, "train", examples)
    for before, after in zip(examples, load_examples(tmp_path, "train"), strict=True):
        assert before.given.sequence == after.given.sequence and before.given.name == after.given.name
        for name in ("rows", "numbers", "couplings"):
            np.testing.assert_array_equal(getattr(before.given, name), getattr(after.given, name))
        np.testing.assert_array_equal(before.chain.atoms, after.chain.atoms)
        np.testing.assert_array_equal(before.chain.known, after.chain.known)


def test_batches_depend_on_their_place_alone_and_have_one_shape(examples):
    make = FoldBatches(examples, length=16, depth=4, hidden=0.3, most_recycles=2, seed=5)
    rows = np.array([2, 0])
    first, again, later = make(rows, (0, 1)), make(rows, (0, 1)), make(rows, (3, 0))
    for one, other in zip(first._values(), again._values(), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(first.rows, later.rows)
    assert first.sequence.shape == later.sequence.shape == (2, 16) and first.rows.shape == (2, 4, 16)
    assert first.rows_mask.tolist() == [[True, False, False, False], [True] * 4]
    assert len({len(make(rows, (epoch, 0)).recycles) for epoch in range(12)}) == 3


def test_hidden_letters_are_those_to_be_predicted(examples):
    batch = FoldBatches(examples, 16, 4, 0.5, 0, 5)(np.array([0, 1]), (0, 0))
    changed = batch.rows != batch.labels
    assert changed.any() and not (changed & ~batch.labels_mask).any()
    assert ((batch.rows == MASK) <= batch.labels_mask).all()
    there = batch.rows_mask[..., None] & batch.mask[:, None]
    assert not (batch.labels_mask & ~there).any()
    assert torch.equal(batch.labels[:, 0], batch.sequence)


def test_a_piece_is_the_part_of_the_chain_that_it_says(examples):
    whole, piece = examples[0], cropped(examples[0], 3, 11)
    assert piece.given.sequence == whole.given.sequence[3:11]
    np.testing.assert_array_equal(piece.given.couplings, whole.given.couplings[3:11, 3:11])
    np.testing.assert_array_equal(piece.chain.atoms, whole.chain.atoms[3:11])
    np.testing.assert_array_equal(piece.given.rows, whole.given.rows[:, 3:11])


def test_missing_atoms_are_masked_and_frames_stay_finite(examples):
    chain = examples[0].chain
    chain.known[4, 0], chain.atoms[4, 0] = False, 0
    chain.known[6, 3], chain.atoms[6, 3] = False, 0
    backbone, known, points, seen = truth([examples[0]], 32)
    assert not known[0, 4] and known[0, 5] and not known[0, len(chain) :].any()
    assert not seen[0, 6] and torch.isfinite(points).all()
    assert (torch.linalg.matrix_rank(backbone[0, 4]) == 3) and torch.isfinite(backbone).all()


def test_inputs_are_padded_with_rows_spread_over_the_alignment(examples):
    inputs = pad_inputs([each.given for each in examples], depth=3)
    assert inputs.rows.shape[1] == 3
    assert inputs.mask.sum(dim=1).tolist() == [len(each.given) for each in examples]
    assert inputs.rows_mask.tolist() == [[True] * 3, [True, False, False], [True, False, False]]
    size = len(examples[0].given)
    expected = torch.from_numpy(examples[0].given.rows[[0, 6, 11]].astype(np.int64))
    assert torch.equal(inputs.rows[0, :, :size], expected) or torch.equal(inputs.rows[0, 0, :size], expected[0])


def test_an_alignment_of_another_sequence_is_refused():
    chain = built_in_chain(1, 0, (20, 20))
    with pytest.raises(DataError, match="20 columns, but the sequence 5 residues"):
        ProteinInput.of("it", "AAAAA", aligned(chain))


def test_chains_without_a_structure_are_named():
    chain = built_in_chain(1, 0, (20, 20))
    assert "more than data.longest = 10" in unusable(chain, 10) and not unusable(chain, 20)
    chain.known[2:, 0] = False
    assert "has 2 residues with N, CA and C" in unusable(chain, 50)


def test_alignments_are_found_beside_chains(tmp_path):
    chain = built_in_chain(1, 0, (12, 12))
    family = {
        "family": "F", "chain": chain.name, "query": chain.sequence, "rows": [chain.sequence[::-1]],
        "column_to_residue": list(range(12)),
    }  # fmt: skip
    (tmp_path / "x_chains.npz").touch()
    assert alignments_beside(tmp_path / "x_chains.npz") == ""
    with gzip.open(tmp_path / "x_alignments.jsonl.gz", "wt") as file:
        file.write(json.dumps(family) + "\n")
    found = find_alignments(alignments_beside(tmp_path / "x_chains.npz"), [chain])
    assert found[chain.name].rows.shape == (2, 12)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / f"{chain.name}.a3m").write_text(f">q\n{chain.sequence}\n>r\n{chain.sequence[::-1]}\n")
    (found,) = find_alignments(alignments_beside(tmp_path / "folder"), [chain]).values()
    assert len(found) == 2
    with pytest.raises(DataError, match="has no structure"):
        find_chains(tmp_path / "folder")


def test_examples_are_of_their_chains(examples):
    assert all(isinstance(each, FoldExample) and each.given.name == each.chain.name for each in examples)
    assert len(examples[0].given.rows) == 12 and len(examples[1].given.rows) == 1
