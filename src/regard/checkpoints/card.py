"""The model card: a README.md that tells a new user what a model folder is and how to run it."""

import json
from collections.abc import Mapping
from typing import Any

from regard.config import Config


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
