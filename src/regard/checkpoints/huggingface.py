"""Export to Hugging Face folders, by applying the name tables in reverse."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from regard.checkpoints.folder import write_folder
from regard.checkpoints.models import CONFIG, bare, own_tensors, write_json
from regard.checkpoints.tables import NOT_EXPORTED, TABLES, NameTable, read_table
from regard.checkpoints.weights import WEIGHTS, write_tensors
from regard.config import Config
from regard.errors import CheckpointError


def model_card(
    name: str,
    config: Config,
    *,
    use: str,
    title: str = "",
    data: str = "",
    metrics: Mapping[str, Any] | None = None,
    more: str = "",
) -> str:
    """A short README.md for a model folder.

    `use` is the line of Python that runs the loaded model, `data` says in words what the model was trained on, and
    `metrics` what it reached. `more` follows the table of metrics.
    """
    rows = [f"| {metric} | {_number(value)} |" for metric, value in (metrics or {}).items()]
    table = "\n".join(["| Metric | Value |", "|---|---|", *rows]) if rows else "Not measured."
    results = f"{table}\n\n{more}" if more else table
    settings = json.dumps(config.model_dump(mode="json"), indent=2)
    return f"""# {title or f"A {name} model"}

A `{name}` model trained with Regard.

## Use

```python
import regard

model = regard.load("path/to/this/folder")
{use}
```

## Training data

{data or "Not stated."}

## Results

{results}

## Configuration

```json
{settings}
```

## Licence

To be chosen by whoever publishes this model; mind the licence of the training data.
"""


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def export_model(
    name: str,
    model: nn.Module,
    folder: Path,
    *,
    values: Mapping[str, Any] | None = None,
    extras: Callable[[Path], None] | None = None,
) -> None:
    """Write a model, `name` in the catalog, so that transformers loads it.

    `values` are further entries of config.json, mostly token ids; `extras` adds further files (tokenizer).
    """
    config = bare(model).config
    assert isinstance(config, Config)
    export_tensors(name, config, own_tensors(model), folder, values=values, extras=extras)


def export_tensors(
    name: str,
    config: Config,
    ours: Mapping[str, Tensor],
    folder: Path,
    *,
    values: Mapping[str, Any] | None = None,
    extras: Callable[[Path], None] | None = None,
) -> None:
    """Like `export_model`, for the tensors of a model with this config."""
    table = table_for(name, config)
    theirs = {**table.config.to_theirs(config.model_dump(mode="json")), **(values or {})}
    tensors = table.to_theirs(ours, config)

    def write(temporary: Path) -> None:
        write_json(temporary / CONFIG, theirs)
        write_tensors(temporary / WEIGHTS, tensors)
        if extras is not None:
            extras(temporary)

    write_folder(folder, write, needs=sum(tensor.nbytes for tensor in tensors.values()), sealed=False)


def table_for(name: str, config: Config) -> NameTable:
    """The first table that supports a model with this config. If none does, the error gives every reason."""
    refusals: dict[str, list[str]] = {}  # the types of each reason
    for model_type in TABLES:
        table = read_table(model_type)
        if table.model != name:
            continue
        try:
            table.config.to_theirs(config.model_dump())
            return table
        except CheckpointError as error:
            refusals.setdefault(str(error).removeprefix(f"{NOT_EXPORTED}: "), []).append(model_type)
    if not refusals:
        raise CheckpointError(f"a {name} model has no form in Hugging Face's library; keep it in Regard's")
    reasons = (f"as {', '.join(types)}, {reason}" for reason, types in refusals.items())
    raise CheckpointError(f"{NOT_EXPORTED}: {'; '.join(reasons)}")
