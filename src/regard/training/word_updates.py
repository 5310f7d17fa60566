"""Gradient descent on word vectors, updated after every few words, as word2vec's own program updates them.

A batch of thousands of words is too long a step for plain gradient descent, and a step of an optimiser with moments
touches every word of the vocabulary. Here CHUNK words at a time change the vectors that they read, and no others:
compiled code (word_updates.cpp) on a CPU, torch elsewhere and without a C++ compiler, the same up to rounding. The
compiled code uses one thread, so its result depends on nothing but the batch; training.workers = 1 makes the batches
on a second core.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard import native
from regard.data.text.skipgram import WindowBatch
from regard.models.word2vec import Word2Vec
from regard.training.losses import negative_sampling

SOURCE = Path(__file__).with_name("word_updates.cpp")
CHUNK = 64  # words that read the same vectors: torch takes a chunk at once; few enough not to read outdated vectors
Pointer, Long = ctypes.c_void_p, ctypes.c_int64


class Words(ctypes.Structure):
    _fields_ = [
        ("centre", Pointer), ("around", Pointer), ("noise", Pointer), ("mask", Pointer), ("count", Long),
        ("places", Long), ("negatives", Long),
    ]  # fmt: skip


class Tables(ctypes.Structure):
    _fields_ = [("words", Pointer), ("around", Pointer), ("width", Long)]


@cache
def library() -> Any:
    """The compiled code; None if it is switched off or cannot be compiled."""
    found = native.load(SOURCE, (), "word vectors are learnt by torch, slower")
    if found is None:
        return None
    found.learn.argtypes = [Pointer, Pointer, Long, ctypes.c_int32, ctypes.c_float]
    found.learn.restype = ctypes.c_double
    return found


@torch.no_grad()
def update(model: Word2Vec, batch: WindowBatch, rate: float) -> Tensor:
    """Change the vectors by `rate` times the negative gradient of the loss, chunk by chunk; returns the summed loss."""
    if batch.words.is_cpu and library() is not None:
        return torch.tensor(_update_compiled(model, batch, rate))
    total = batch.words.new_zeros((), dtype=torch.float32)
    for chunk in zip(
        *(each.split(CHUNK) for each in (batch.words, batch.around, batch.mask, batch.noise)), strict=True
    ):
        total += _update_chunk(model, WindowBatch(*chunk), rate)
    return total


def _update_compiled(model: Word2Vec, batch: WindowBatch, rate: float) -> float:
    around, noise = batch.around, batch.noise
    ids = [each.int().contiguous() for each in (batch.words, around, noise)]
    mask, weights = batch.mask.contiguous(), (model.words.weight, model.around.weight)
    assert all(weight.is_contiguous() and weight.dtype == torch.float32 for weight in weights)
    words = Words(*(each.data_ptr() for each in (*ids, mask)), len(around), around.shape[1], noise.shape[1])
    tables = Tables(*(weight.data_ptr() for weight in weights), model.config.width)
    loss: float = library().learn(ctypes.byref(words), ctypes.byref(tables), CHUNK, model.config.kind == "cbow", rate)
    return loss


def _update_chunk(model: Word2Vec, batch: WindowBatch, rate: float) -> Tensor:
    """The same by torch, for all words of a chunk at once."""
    looked = model.lookups(batch.words, batch.around, batch.mask, batch.noise)
    known, rows = model.known(looked), model.around.weight[looked.targets]
    scores, true, weights = torch.bmm(rows, known[..., None])[..., 0], looked.true, looked.weights
    labels = torch.zeros_like(scores)
    labels[:, :true] = 1
    steps = rate * weights * (labels - torch.sigmoid(scores))
    change = torch.bmm(steps[:, None], rows)
    _add_rows(model.around.weight, looked.targets, steps[..., None] * known[:, None])
    _add_rows(model.words.weight, looked.inputs, looked.shares[..., None] * change)
    return negative_sampling(scores[:, :true], weights[:, :true], scores[:, true:], weights[:, true:])


def _add_rows(table: Float[Tensor, "V D"], rows: Int[Tensor, "B P"], values: Float[Tensor, "B P D"]) -> None:
    table.index_add_(0, rows.flatten(), values.flatten(0, 1))
