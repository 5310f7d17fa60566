"""The same random Marian weights in transformers and in Regard, and a fair way to time one against the other."""

from __future__ import annotations

import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
import transformers

from regard.checkpoints import load_model
from regard.models.transformer import Transformer

THREADS, ROUNDS = 2, 5
Clock = Callable[[], float]
BUSY = 0.2  # processors; from here on a line is marked as disturbed
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


@dataclass(frozen=True)
class Times:
    """Median seconds of both, the median ratio of neighbouring runs, and how many processors others kept busy."""

    theirs: float
    ours: float
    ratio: float
    others: float

    @property
    def warning(self) -> str:
        return "" if self.others < BUSY else f"  (others kept {self.others:.1f} processors busy)"


def interleaved(
    theirs: Callable[[], object], ours: Callable[[], object], seconds: float, clock: Clock = time.perf_counter
) -> Times:
    """Run both in turn until the time is up; noise that comes and goes disturbs the ratio of neighbours least."""
    theirs(), ours()  # warm up
    times: list[tuple[float, float]] = []
    begin, busy = time.perf_counter(), _others_seconds()
    while len(times) < ROUNDS or time.perf_counter() < begin + seconds:
        times.append((_timed(theirs, clock), _timed(ours, clock)))
    others = (_others_seconds() - busy) / (time.perf_counter() - begin)
    ratio = median(their_time / our_time for their_time, our_time in times)
    return Times(median(t for t, _ in times), median(o for _, o in times), ratio, others)


def _timed(work: Callable[[], object], clock: Clock) -> float:
    begin = clock()
    work()
    return clock() - begin


def _others_seconds() -> float:
    """Processor seconds that everything but this process has used so far; 0 where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, interrupts, soft, stolen = map(int, stat.read_text().split()[1:9])
    ticks = user + nice + system + interrupts + soft + stolen
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


def prepare(threads: int = THREADS, dtype: str = "float32") -> dict[str, str | int]:
    """Fix the number of threads, silence their warnings, and say what is compared, and where."""
    torch.set_num_threads(threads)
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    setting = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "processor": _processor(),
        "processors": os.cpu_count() or 1,
        "threads": threads,
        "dtype": dtype,
    }
    print("; ".join(f"{name} {value}" for name, value in setting.items()), end="\n\n")
    return setting


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
