"""Three ways of processing a sequence, and scores by length."""

from dataclasses import asdict
from pathlib import Path

import pytest

import regard
from regard.claims.measurements import scores_by_length, three_ways
from regard.errors import UsageError


def test_steps_and_layers_follow_from_the_architecture() -> None:
    rows = {(row["way"], row["length"]): row for row in map(asdict, three_ways([5, 9], width=8, batch=1))}
    assert len(rows) == 8
    written = "self-attention, written out"
    assert rows[written, 9]["megabytes"] > rows["self-attention", 9]["megabytes"]
    assert rows["recurrence (LSTM)", 9]["sequential_steps"] == 9
    assert rows["self-attention", 9]["sequential_steps"] == rows["self-attention", 9]["layers_to_connect"] == 1
    # a kernel of 3 reaches one token further on each side per layer: a distance of 8 takes 4 + 4
    assert rows["convolution (kernel 3)", 9]["layers_to_connect"] == 4
    assert all(row["seconds"] > 0 and row["megabytes"] > 0 for row in rows.values())


@pytest.mark.parametrize(("width", "lengths"), [(6, [4]), (0, [4]), (8, [0])])
def test_sizes_that_cannot_be_are_refused(width: int, lengths: list[int]) -> None:
    with pytest.raises(UsageError, match="multiple of 4"):
        three_ways(lengths, width=width)


def test_one_row_of_scores_for_every_bin(translator_folder: Path) -> None:
    rows = scores_by_length(regard.load(translator_folder), [(2, 3), (4, 5)], count=3)
    assert [set(row) >= {"bleu", "chrf", "exact"} for row in rows] == [True, True]
