"""Translation speed: transformers' `generate` against Regard's `search`, the same weights, 32 tokens out.

python bench/translate_marian.py [seconds per line]
"""

from __future__ import annotations

import sys

import torch
from transformers import MarianMTModel

from regard.inference.search import SearchSettings, Vocabulary, search
from regard.models.transformer import Transformer
from twins import END, SHAPES, interleaved, prepare, sentences, twins

LENGTH = 32
CASES = ((1, 1), (32, 1), (1, 5), (8, 5))  # sentences, beam


def main(seconds: float) -> None:
    prepare()
    print(f"{'shape':7}{'batch':>6}{'beam':>6}{'transformers':>14}{'regard':>10}{'faster':>9}  tokens")
    for shape in SHAPES:
        models = twins(shape)
        for batch, beam in CASES:
            print(f"{shape:7}{batch:6}{beam:6}{compare(*models, batch, beam, seconds)}", flush=True)


def compare(theirs: MarianMTModel, ours: Transformer, batch: int, beam: int, seconds: float) -> str:
    """The times of both, their ratio, and how many translations are the same to the last token."""
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

    same = sum(a == b for a, b in zip(generate(), translate(), strict=True))
    their_time, our_time, ratio = interleaved(generate, translate, seconds)
    return f"{1000 * their_time:11.0f} ms{1000 * our_time:7.0f} ms{ratio:8.2f}x  {same}/{batch} identical"


if __name__ == "__main__":
    with torch.inference_mode():
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
