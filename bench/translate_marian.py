"""Translation speed: transformers' `generate` against Regard's `search`, the same weights, 32 tokens out.

python bench/translate_marian.py [--seconds PER_LINE] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import MarianMTModel

from regard.inference.search import SearchSettings, Vocabulary, search
from regard.models.transformer import Transformer
from twins import END, SHAPES, Times, interleaved, prepare, sentences, twins

LENGTH = 32
CASES = ((1, 1), (32, 1), (1, 5), (8, 5))  # sentences, beam


@dataclass(frozen=True)
class Line:
    """One comparison: what was translated, how fast, and how many answers are the same to the last token."""

    shape: str
    batch: int
    beam: int
    identical: int
    times: Times

    def __str__(self) -> str:
        times = f"{1000 * self.times.theirs:11.0f} ms{1000 * self.times.ours:7.0f} ms{self.times.ratio:8.2f}x"
        same = f"{self.identical}/{self.batch} identical"
        return f"{self.shape:7}{self.batch:6}{self.beam:6}{times}  {same}{self.times.warning}"


def main(seconds: float, file: Path | None) -> None:
    setting, lines = prepare(), []
    print(f"{'shape':7}{'batch':>6}{'beam':>6}{'transformers':>14}{'regard':>10}{'faster':>9}  tokens")
    for shape in SHAPES:
        models = twins(shape)
        for batch, beam in CASES:
            identical, times = compare(*models, batch, beam, seconds)
            lines.append(Line(shape, batch, beam, identical, times))
            print(lines[-1], flush=True)
    if file is not None:
        file.write_text(json.dumps({"setting": setting, "lines": [asdict(line) for line in lines]}, indent=2) + "\n")


def compare(theirs: MarianMTModel, ours: Transformer, batch: int, beam: int, seconds: float) -> tuple[int, Times]:
    """How many translations are identical, and the times of both."""
    source, mask = sentences(ours, batch, length=20)
    pad = ours.config.pad
    settings = SearchSettings(beam=beam, min_length=LENGTH, max_length=LENGTH)
    lengths = {"min_new_tokens": LENGTH, "max_new_tokens": LENGTH}

    def generate() -> list[list[int]]:
        answer = theirs.generate(
            input_ids=source, attention_mask=mask.long(), num_beams=beam, bad_words_ids=[[pad]], **lengths
        )
        return answer[:, 1:].tolist()

    def translate() -> list[list[int]]:
        answers = search(ours, source, mask, settings, Vocabulary(start=pad, end=END, pad=pad))
        return [best.tokens for best, *_ in answers]

    identical = sum(a == b for a, b in zip(generate(), translate(), strict=True))
    return identical, interleaved(generate, translate, seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each line")
    parser.add_argument("--json", type=Path, help="also write the setting and every line to this file")
    options = parser.parse_args()
    with torch.inference_mode():
        main(options.seconds, options.json)
