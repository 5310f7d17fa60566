"""stories260K, a trained Llama of five layers with grouped heads; tests skip where it is missing."""

from pathlib import Path

import pytest

from regard.data.sources import data_root

SOURCE = Path(data_root()) / "stories260k"
TEXT = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."


def stories_folder() -> Path:
    """The folder of the model."""
    if not (SOURCE / "model.safetensors").is_file():
        pytest.skip("../shared/data/stories260k is not here")
    return SOURCE
