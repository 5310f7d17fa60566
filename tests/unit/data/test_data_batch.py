"""Batches against explicit padding, one sentence at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batch import Batch, collate

END = 2
sentence = st.lists(st.integers(3, 50), max_size=8).map(lambda ids: [*ids, END])
corpus = st.lists(st.tuples(sentence, sentence), min_size=1, max_size=6)


@pytest.mark.parametrize(("pad", "start"), [(0, 1), (0, 0), (60, 60)])
@given(pairs=corpus)
def test_collate_is_padding_sentence_by_sentence(pairs, pad, start):
    sources, targets = zip(*pairs, strict=True)
    batch = collate(sources, [np.array(target, dtype=np.uint16) for target in targets], pad=pad, start=start)
    widest_source, widest_target = max(map(len, sources)), max(map(len, targets))
    for row, (source, target) in enumerate(pairs):
        assert batch.source[row].tolist() == source + [pad] * (widest_source - len(source))
        assert batch.source_mask[row].tolist() == [i < len(source) for i in range(widest_source)]
        assert batch.labels[row].tolist() == target + [pad] * (widest_target - len(target))
        assert batch.labels_mask[row].tolist() == [i < len(target) for i in range(widest_target)]
        assert batch.inputs[row].tolist() == [start, *target[:-1]] + [pad] * (widest_target - len(target))
    assert batch.tokens == sum(map(len, targets))
    assert {tensor.dtype for tensor in (batch.source, batch.inputs, batch.labels)} == {torch.int64}


def test_a_batch_moves_as_a_whole():
    batch = collate([[5, 2]], [[6, 7, 2]], pad=0, start=1, links=[np.array([[0, 0], [1, 1]])])
    moved = batch.to("meta", non_blocking=True)
    assert isinstance(moved, Batch)
    assert {tensor.device.type for tensor in vars(moved).values()} == {"meta"}
    assert [tensor.shape for tensor in vars(moved).values()] == [tensor.shape for tensor in vars(batch).values()]
    assert collate([[5, 2]], [[6, 7, 2]], pad=0, start=1).to("meta").links is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU's driver can lock pages")
def test_pinned_batches_are_equal():
    batch = collate([[5, 2]], [[6, 7, 2]], pad=0, start=1, links=[np.array([[0, 0], [1, 1]])])
    pinned = batch.pin_memory()
    assert all(tensor.is_pinned() for tensor in vars(pinned).values())
    assert torch.equal(pinned.labels, batch.labels)
