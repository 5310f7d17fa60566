"""The same random Marian weights in transformers and in Regard, and a fair way to time one against the other."""

from __future__ import annotations

import logging
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import transformers

from regard.checkpoints import load_model
from regard.models.transformer import Transformer

THREADS = 2
SHAPES = {
    "small": {"d_model": 256, "layers": 3, "heads": 4, "ffn": 1024, "vocab_size": 8000},
    "base": {"d_model": 512, "layers": 6, "heads": 8, "ffn": 2048, "vocab_size": 16000},
}
END = 0


def twins(name: str, dropout: float = 0.0) -> tuple[transformers.MarianMTModel, Transformer]:
    """A Marian model of transformers and what Regard loads from its folder."""
    shape = SHAPES[name]
    pad = shape["vocab_size"] - 1
    torch.manual_seed(1)
    config = transformers.MarianConfig(
        vocab_size=shape["vocab_size"], d_model=shape["d_model"], activation_function="swish", scale_embedding=True,
        encoder_layers=shape["layers"], decoder_layers=shape["layers"],
        encoder_attention_heads=shape["heads"], decoder_attention_heads=shape["heads"],
        encoder_ffn_dim=shape["ffn"], decoder_ffn_dim=shape["ffn"],
        pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=END, forced_eos_token_id=None,
        dropout=dropout, attention_dropout=0.0, activation_dropout=0.0,
    )  # fmt: skip
    theirs = transformers.MarianMTModel(config)
    for parameter in theirs.parameters():
        if parameter.requires_grad and parameter.ndim > 1:  # their own start is so small that all words are alike
            torch.nn.init.normal_(parameter, std=shape["d_model"] ** -0.5)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = load_model(Path(folder)).model
    assert isinstance(ours, Transformer)
    return theirs.eval(), ours


def sentences(model: Transformer, count: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random sources of `length` tokens down to half of it, and which of their tokens are real."""
    lengths = torch.linspace(length, length // 2, count).long() if count > 1 else torch.tensor([length])
    mask = torch.arange(length) < lengths[:, None]
    return torch.randint(1, model.config.source_vocab - 1, mask.shape).masked_fill(~mask, model.config.pad), mask


def interleaved(theirs: Callable[[], object], ours: Callable[[], object], seconds: float) -> tuple[float, float, float]:
    """Median seconds of each, and the median of the ratios of neighbouring runs, which noise disturbs least."""
    theirs(), ours()  # warm up
    times: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        times.append((_timed(theirs), _timed(ours)))
    ratio = median(their_time / our_time for their_time, our_time in times)
    return median(t for t, _ in times), median(o for _, o in times), ratio


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def prepare() -> None:
    """Fix the number of threads, silence their warnings, and say what is compared."""
    torch.set_num_threads(THREADS)
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{versions}; {THREADS} threads, float32\n")
