"""The model card: what a stranger needs to know before using a model folder."""

import json
from collections.abc import Mapping
from typing import Any

from regard.config import Config


def model_card(
    name: str, config: Config, *, title: str = "", data: str = "", metrics: Mapping[str, Any] | None = None
) -> str:
    """A short README.md; `data` says in words what the model was trained on, `metrics` what it reached."""
    rows = [f"| {metric} | {_number(value)} |" for metric, value in (metrics or {}).items()]
    table = "\n".join(["| Metric | Value |", "|---|---|", *rows]) if rows else "Not measured."
    settings = json.dumps(config.model_dump(mode="json"), indent=2)
    return f"""# {title or f"A {name} model"}

A `{name}` model trained with Regard.

## Use

```python
import regard

model = regard.load("path/to/this/folder")
{_use(name, config)}
```

## Training data

{data or "Not stated."}

## Results

{table}

## Configuration

```json
{settings}
```

## Licence

To be chosen by whoever publishes this model; mind the licence of the training data.
"""


def _use(name: str, config: Config) -> str:
    """How such a model is asked, in a line."""
    match name, getattr(config, "head", "none"):
        case "gpt", _ if getattr(config, "unpredicted", 0):
            return 'pictures = model.paint("picture.png", count=4)  # bytes [4 C H W]; the upper half stays'
        case "gpt" | "lstm", _:
            return 'print(model.generate("Once upon a time").text)'
        case "word2vec", _:
            return 'print(model.neighbours("bread"))'
        case "t5", _:
            return 'print(model.generate("Translate EN-ES: we are eating bread").text)'
        case "resnet" | "vit" | "swin" | "mvit", _:
            return 'print(model.classify("picture.png")[0])'
        case "segmenter", _:
            return 'print(model.segment("picture.png")[0].shares)'
        case "sagan", _:
            return "pictures = model.make(model.labels, seed=1)  # bytes [N C H W], one of each class"
        case "bert", "masked" | "pretraining":
            return 'print(model.fill("we are [MASK] bread"))'
        case "bert" | "elmo", "classify":
            return 'print(model.classify("we are eating bread"))'
        case "bert" | "elmo", _:
            return 'print(model.embed("we are eating bread"))'
    return 'print(model.translate("we are eating bread").text)'


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
