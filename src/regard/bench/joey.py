"""JoeyNMT as an engine: our weights under its names, trained by `joey_step.py` in a Python environment of its own.

JoeyNMT needs other versions of many libraries, so it cannot share our environment.
"""

from __future__ import annotations

import json
import subprocess
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.attention.positions import Added
from regard.data.batch import Batch
from regard.errors import UsageError
from regard.families.translation.transformer import Transformer

SCRIPT = Path(__file__).with_name("joey_step.py")
LONGEST = 5000  # positions of JoeyNMT's table
NAMES = {  # parts of a layer: our names and theirs
    "encoder": {
        "attention": "src_src_att", "after_attention.norm": "layer_norm",
        "feed_forward.up": "feed_forward.pwff_layer.0", "feed_forward.down": "feed_forward.pwff_layer.3",
        "after_feed_forward.norm": "feed_forward.layer_norm",
    },
    "decoder": {
        "attention": "trg_trg_att", "after_attention.norm": "x_layer_norm",
        "cross": "src_trg_att", "after_cross.norm": "dec_layer_norm",
        "feed_forward.up": "feed_forward.pwff_layer.0", "feed_forward.down": "feed_forward.pwff_layer.3",
        "after_feed_forward.norm": "feed_forward.layer_norm",
    },
}  # fmt: skip
PROJECTIONS = {"query": "q_layer", "key": "k_layer", "value": "v_layer", "output": "output_layer"}


class Joey:
    """A process that trains one step on one batch each time it is asked to."""

    def __init__(
        self, python: str, model: Transformer, batch: Batch, folder: Path, lr: float, *, same_dropout: bool
    ) -> None:
        if not python:
            raise UsageError("name the Python of an environment that has it, with --joeynmt-python")
        weights = folder / "joeynmt.pt"
        torch.save(dict(renamed(model)), weights)
        config = model.config
        sizes = ("width", "heads", "ffn_width", "encoder_depth", "decoder_depth", "dropout", "activation", "pad")
        task = {
            **{name: getattr(config, name) for name in sizes},
            "vocabulary": config.target_vocab, "weights": str(weights), "threads": torch.get_num_threads(), "lr": lr,
            "same_dropout": same_dropout,
            **{name: getattr(batch, name).tolist() for name in ("source", "inputs", "labels")},
        }  # fmt: skip
        try:
            self.process = subprocess.Popen(
                [python, str(SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError as error:
            raise UsageError(f"cannot start {python}: {error.strerror}; give the path of a Python") from None
        weakref.finalize(self, _end, self.process)
        self.used = 0.0  # CPU seconds of the process
        self.loss: float = self._asked(json.dumps(task))["loss"]

    def step(self) -> None:
        """Train one step."""
        self._asked("step")

    def _asked(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):  # a process that ended may have written why
            print(line, file=self.process.stdin, flush=True)
        said = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(said) if said else {"problem": "its Python ended at once; has it torch?"}
        if "problem" in answer:
            raise UsageError(answer["problem"])
        self.used = answer["used"]
        return answer


def _end(process: subprocess.Popen[str]) -> None:
    """Close the pipes of the process, which then ends."""
    with suppress(BrokenPipeError):
        process.communicate()


def renamed(model: Transformer) -> Iterator[tuple[str, Tensor]]:
    """The weights of a Transformer (post-norm, one embedding for all) under JoeyNMT's names, with our positions."""
    ours = model.state_dict()
    embedding = ours["source_embedding.weight"]
    for name in ("src_embed.lut", "trg_embed.lut", "decoder.output_layer"):
        yield f"{name}.weight", embedding
    for side, place in (("encoder", model.source_place), ("decoder", model.target_place)):
        assert isinstance(place, Added)
        yield f"{side}.pe.pe", place.positions(LONGEST)[None]
    for name, tensor in ours.items():
        side, _, rest = name.partition(".")
        if side in NAMES:
            number, _, part = rest.partition(".")
            yield f"{side}.layers.{number}.{_part(NAMES[side], part)}", tensor


def _part(names: dict[str, str], part: str) -> str:
    module, _, kind = part.rpartition(".")  # kind: weight or bias
    if module in names:
        return f"{names[module]}.{kind}"
    attention, _, projection = module.rpartition(".")
    return f"{names[attention]}.{PROJECTIONS[projection]}.{kind}"
