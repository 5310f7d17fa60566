"""The attention workbench of the page: the steps of an attention layer with the reader's own numbers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import torch
from fastapi import APIRouter
from pydantic import BaseModel, Field
from torch import Tensor

from regard.claims.steps import TYPE, AttentionLayer, Similarity, attention_steps, lecture_example
from regard.errors import UsageError
from regard.serve.http.responses import StrictRequest, keyed_router

MATRICES = ("inputs", "queries", "query_weights", "key_weights", "value_weights", "output_weights")
LARGEST = 12  # rows and columns that a reader can still follow
Number = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
Row = Annotated[list[Number], Field(min_length=1, max_length=LARGEST)]
Matrix = Annotated[list[Row], Field(min_length=1, max_length=LARGEST)]


class LayerNumbers(StrictRequest):
    """An attention layer as rows of numbers; what is null is left out of the layer."""

    inputs: Matrix
    queries: Matrix | None = None
    query_weights: Matrix | None = None
    key_weights: Matrix | None = None
    value_weights: Matrix | None = None
    output_weights: Matrix | None = None
    similarity: Similarity = "dot"
    scaled: bool = False
    causal: bool = False
    heads: Annotated[int, Field(ge=1, le=LARGEST)] = 1
    order: list[int] = Field(default=[])


class StepNumbers(BaseModel):
    """A step: a matrix for each head. A cell that is masked, minus infinity, is null."""

    name: str
    formula: str
    matrices: list[list[list[float | None]]]


class WorkbenchAnswer(BaseModel):
    """Every step of the layer, and how far the fused kernel and the reordered inputs are from it."""

    steps: list[StepNumbers]
    fused_difference: float | None
    order_difference: float | None


def workbench_router() -> APIRouter:
    router = keyed_router("/api/workbench")

    @router.get("/examples/{step}")
    def example(step: int) -> LayerNumbers:
        """The lectures' example after one of its eight steps."""
        values = asdict(lecture_example(step))
        rows = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in values.items()}
        return LayerNumbers.model_validate(rows)

    @router.post("")
    def compute(layer: LayerNumbers) -> WorkbenchAnswer:
        """Every number of an attention layer."""
        found = attention_steps(_layer(layer))
        steps = [StepNumbers(name=s.name, formula=s.formula, matrices=_finite(s.matrices)) for s in found.steps]
        return WorkbenchAnswer(
            steps=steps, fused_difference=found.fused_difference, order_difference=found.order_difference
        )

    return router


def _layer(numbers: LayerNumbers) -> AttentionLayer:
    values = dict(numbers)
    matrices = {name: _tensor(name, rows) for name in MATRICES if (rows := values[name]) is not None}
    return AttentionLayer(**{**values, **matrices})


def _tensor(name: str, rows: list[list[float]]) -> Tensor:
    if len({len(row) for row in rows}) > 1:
        raise UsageError(f"the rows of {name} have {sorted({len(row) for row in rows})} numbers; give each the same")
    return torch.tensor(rows, dtype=TYPE)


def _finite(matrices: Tensor) -> list[list[list[float | None]]]:
    """Rows of numbers; JSON has no infinity."""
    return [[[None if x == -torch.inf else x for x in row] for row in each] for each in matrices.tolist()]
