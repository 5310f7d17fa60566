"""What looking costs when nobody looks: generation before a recorder was ever used, and after one was used and removed.

python bench/recording.py [--seconds PER_LINE] [--json FILE]

Two copies of a model with the same weights generate text in turn: one was never recorded, the other was recorded once
completely (attention weights and every place: queries, keys, streams, hidden activations) and once changed by an
intervention. Their answers must be equal to the last bit. The time with an active recorder is printed for information.
The CPU time of one thread is measured, because other processes disturb it least.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from regard.attention import record
from regard.attention.intervene import WithoutHead, intervene
from regard.attention.places import record_activations
from regard.families.language.gpt import PRESETS as GPTS
from regard.families.language.gpt import Gpt, GptConfig
from regard.families.translation.transformer import PRESETS as TRANSFORMERS
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.plan.machine import describe
from regard.search.search import Hypothesis, search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.start import from_prompt, from_source
from turns import Times, interleaved

LENGTH, PROMPT, VOCAB, PAD, END = 64, 32, 8000, 1, 0
Write = Callable[[nn.Module], list[list[Hypothesis]]]


@dataclass(frozen=True)
class Line:
    """One model: the times of the never recorded copy, of the previously recorded copy, and with recording on."""

    model: str
    batch: int
    beam: int
    identical: bool
    off: Times
    on: Times

    def __str__(self) -> str:
        times = f"{1000 * self.off.first:9.1f} ms{1000 * self.off.second:9.1f} ms{1 / self.off.ratio:9.3f}x"
        same = "identical" if self.identical else "DIFFERENT"
        recorded = f"{1000 * self.on.second:9.1f} ms{1 / self.on.ratio:7.2f}x"
        return f"{self.model:18}{self.batch:6}{self.beam:6}{times}{recorded}  {same}{self.off.warning}"


def main(seconds: float, file: Path | None) -> None:
    torch.set_num_threads(1)
    setting, lines = describe(threads=1), []
    print("; ".join(f"{name} {value}" for name, value in setting.items()), end="\n\n")
    columns = f"{'never used':>12}{'removed':>12}{'ratio':>10}{'recording':>12}{'ratio':>8}"
    print(f"{'model':18}{'batch':>6}{'beam':>6}{columns}  answers")
    for name, model, options in (("gpt tiny", _gpt(), {"first": True}), ("transformer small", _translator(), {})):
        for batch, beam in ((1, 1), (8, 4)):
            lines.append(measure(name, model, batch, beam, seconds, **options))
            print(lines[-1], flush=True)
    if file is not None:
        file.write_text(json.dumps({"setting": setting, "lines": [asdict(line) for line in lines]}, indent=2) + "\n")


def measure(name: str, never: nn.Module, batch: int, beam: int, seconds: float, *, first: bool = False) -> Line:
    """Time both copies in turn on the same input, then one of them with and without its recorder."""
    source = torch.randint(2, VOCAB, (batch, PROMPT), generator=torch.Generator().manual_seed(batch))
    settings = SearchSettings(beam=beam, n_best=beam, min_length=LENGTH, max_length=LENGTH)

    def write(model: nn.Module) -> list[list[Hypothesis]]:
        read = source, torch.ones_like(source, dtype=torch.bool), settings
        start = from_prompt(model, *read) if first else from_source(model, *read, PAD)
        return search(model, start, settings, Vocabulary(PAD, END, PAD))

    def recorded(model: nn.Module) -> list[list[Hypothesis]]:
        with record(model), record_activations(model):
            return write(model)

    used = copy.deepcopy(never)
    with intervene(used, WithoutHead("decoder.0.attention", 0)):
        write(used)
    identical = recorded(used) == write(never) == write(used)  # tokens and scores, bit for bit
    off = interleaved(lambda: write(never), lambda: write(used), seconds, time.thread_time)
    on = interleaved(lambda: write(never), lambda: recorded(used), seconds / 2, time.thread_time)
    return Line(name, batch, beam, identical, off, on)


def _gpt() -> nn.Module:
    torch.manual_seed(1)
    return Gpt(GptConfig.parse({**GPTS["tiny"], "vocab": VOCAB})).eval()


def _translator() -> nn.Module:
    torch.manual_seed(1)
    sizes = {**TRANSFORMERS["small"], "source_vocab": VOCAB, "target_vocab": VOCAB, "pad": PAD}
    return Transformer(TransformerConfig.parse(sizes)).eval()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each line")
    parser.add_argument("--json", type=Path, help="also write the setting and every line to this file")
    options = parser.parse_args()
    main(options.seconds, options.json)
