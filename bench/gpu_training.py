"""Tokens a second that a GPU learns from: the trainer's own step on GPT-2 124M and on the Transformer base shape.

python bench/gpu_training.py [--only gpt2,transformer] [--variants FLAGS,FLAGS] [--budget SECONDS] [--log FILE]

The step is exactly that of `regard train` (bf16, compiled, clipped, fused AdamW); only the data are random, and always
of the same shape: 32 texts of 1,024 tokens, or 1,024 pairs of 32 and 32. Each variant (flags joined by `+`) runs in its
own process. Several compile at the same time; when all have compiled, they are timed one by one.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from kernels import kernels
from regard.data.batch import Batch, TextBatch
from regard.families.language.gpt import PRESETS as GPTS
from regard.families.language.gpt import Gpt, GptConfig
from regard.families.language.modelling import BlockTask
from regard.families.language.recipe import LanguageRecipe
from regard.families.translation.recipe import TranslationRecipe
from regard.families.translation.task import TranslationTask
from regard.families.translation.transformer import PRESETS as TRANSFORMERS
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.training import loop
from regard.training.losses import Loss, cross_entropy
from regard.training.safeguards import Signals

AIMS = {"gpt2": 600_000, "transformer": 900_000}
SHAPES = {"gpt2": (32, 1024), "transformer": (1024, 32)}  # rows, and tokens of each
VOCABULARY = {"gpt2": 50257, "transformer": 32000}
TRAINING = {"precision": "bf16", "compile": True, "device": "auto", "on_nan": "skip", "validate_every": 0}
PEER = "transformers"  # a plain compiled loop over its model
FLAGS = {
    "now": "the trainer's step as it is", "fixed": "a translator's shapes are compiled as they come, not as symbols",
    "joint": "model and loss are compiled as one", "logits": "the loss takes logits, not their factors",
    "layers": "layer by layer, not as a whole",
    "cudnn": "attention by cuDNN first", "flash": "by FlashAttention", "efficient": "by the kernel for short rows",
    "math": "by plain products", "drop": "GPT-2 with dropout 0.1",
    "nodrop": "the Transformer without dropout",
    "tune": "inductor searches kernels longer", "combo": "it joins small kernels that do not need each other",
    "unmixed": "it sums over rows and over columns in kernels of their own",
    "stream": "what flows between the layers is bf16 too",
    "rounded": "a translator's lengths are rounded, so that its steps are captured too (GPT-2's always are)",
    "alone": "kernels are launched one by one, not as a graph", "profile": "its kernels are listed too",
}  # fmt: skip
VARIANTS = {
    "gpt2": ["now", "stream", "stream+alone", PEER],
    "transformer": ["now", "stream", "stream+rounded", PEER],
}
WARM, ROUNDS, STEPS = 4, 5, 6  # warm-up steps, measurements, and steps of each


class RandomTexts(BlockTask):
    """The language modelling task without its corpus."""

    def __init__(self, recipe: LanguageRecipe, device: torch.device, model: nn.Module, whole_logits: bool):
        self.recipe, self.device, self.made = recipe, device, model
        if whole_logits:
            self.factored = False

    def build(self) -> nn.Module:
        return self.made


class RandomPairs(TranslationTask):
    """The translation task without its corpus."""

    def __init__(self, recipe: TranslationRecipe, device: torch.device, model: nn.Module, whole_logits: bool):
        self.recipe, self.device, self.made = recipe, device, model
        self.carried, self.guided, self.draws, self._anchored = {}, None, None, {}
        self.factored = recipe.training.factored(device.type) and not whole_logits
        self._cross_entropy = cross_entropy if self.factored else torch.compile(cross_entropy)

    def build(self) -> nn.Module:
        return self.made


def random_batch(name: str, device: torch.device) -> TextBatch | Batch:
    rows, length = SHAPES[name]
    tokens = [torch.randint(2, VOCABULARY[name], (rows, length), device=device) for _ in range(2)]
    real = torch.ones(rows, length, dtype=torch.bool, device=device)
    if name == "gpt2":
        return TextBatch(tokens[0], real, tokens[1], real)
    return Batch(tokens[0], real, tokens[1], tokens[1].roll(-1, 1), real)


def make_trainer(name: str, flags: set[str], out: Path, device: torch.device) -> loop.Trainer:
    torch.manual_seed(1)
    vocab, rate = VOCABULARY[name], 0.1 if "drop" in flags else 0.0
    training = {**TRAINING, "graphs": "alone" not in flags}
    if "stream" in flags:
        training["precision"] = "bf16-stream"
    if name == "gpt2":
        values = {"task": "language", "model": {"name": "gpt"}, "data": {"train": "none"}, "training": training}
        sizes = {**GPTS["gpt2"], "vocab": vocab, "dropout": rate, "embedding_dropout": rate}
        task: Any = RandomTexts(LanguageRecipe.parse(values), device, Gpt(GptConfig.parse(sizes)), "logits" in flags)
    else:
        training["buckets"] = 12 if "rounded" in flags else 0
        values = {"data": {"source": "en", "target": "de", "train": "none"}, "training": training}
        sizes = {**TRANSFORMERS["base"], "source_vocab": vocab, "target_vocab": vocab, "tie": "all"}
        sizes |= {"dropout": 0.0} if "nodrop" in flags else {}
        model = Transformer(TransformerConfig.parse(sizes))
        task = RandomPairs(TranslationRecipe.parse(values), device, model, "logits" in flags)
    trainer = loop.Trainer(task.recipe, task, out, device, Signals())
    varying = trainer.settings.lengths_vary and "fixed" not in flags
    if "layers" in flags:
        trainer.engine.forward = trainer.model
        for layers in [module for module in trainer.model.modules() if isinstance(module, nn.ModuleList)]:
            for layer in layers:
                layer.compile(dynamic=None if varying else False)
    elif "fixed" in flags:
        trainer.engine.forward = torch.compile(trainer.model, dynamic=varying)
    if "joint" in flags:
        join(task, name, trainer.model, dynamic=varying)
    return trainer


def join(task: Any, name: str, model: nn.Module, dynamic: bool) -> None:
    """Compile model and loss as one function."""
    if name == "gpt2":
        language = torch.compile(lambda x, y, mask: cross_entropy(model(x), y, mask), dynamic=dynamic)
        task.loss = lambda _, b: Loss(language(b.inputs, b.labels, b.labels_mask), b.labels_mask.sum())
    else:
        translation = torch.compile(
            lambda s, real, x, y, mask: cross_entropy(model(s, real, x), y, mask, 0.1), dynamic=dynamic
        )
        task._translation_loss = lambda _, b: translation(b.source, b.source_mask, b.inputs, b.labels, b.labels_mask)


@contextmanager
def attention_by(flags: set[str]) -> Iterator[None]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    order = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    first = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": order[0], "efficient": order[1]}
    if found := flags & first.keys():
        chosen: Any = sdpa_kernel([first[found.pop()], *order], set_priority=True)
    else:
        chosen = sdpa_kernel([SDPBackend.MATH]) if "math" in flags else nullcontext()
    with chosen:
        yield


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """One process at a time, and none before all have compiled, because compiling uses every CPU core."""
    (lock.parent / f"{os.getpid()}.ready").touch()
    while not (lock.parent / "go").exists():
        time.sleep(0.05)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def our_step(name: str, flags: set[str], folder: Path, device: torch.device) -> tuple[Callable[[], None], Any]:
    """The trainer's step on random data, and a function that returns its loss."""
    trainer, batch = make_trainer(name, flags, folder, device), random_batch(name, device)
    tokens = batch.tokens

    def seen() -> tuple[float, float]:
        loss, count, bad = trainer.window.sums.tolist()
        trainer.log.close()
        return loss / max(count, 1), bad

    return lambda: trainer.step([batch], tokens), seen


def their_step(name: str, device: torch.device) -> tuple[Callable[[], None], Any]:
    """A plain training loop with transformers' model of the same shape."""
    import transformers

    vocab, batch = VOCABULARY[name], random_batch(name, device)
    if name == "gpt2":
        rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=vocab, **rates))
        options = {"input_ids": batch.inputs, "labels": batch.inputs}
    else:
        sizes = {f"{side}_{part}": size for side in ("encoder", "decoder")
                 for part, size in (("layers", 6), ("ffn_dim", 2048), ("attention_heads", 8))}  # fmt: skip
        ends = {"pad_token_id": vocab - 1, "eos_token_id": 0, "decoder_start_token_id": vocab - 1}
        config = transformers.MarianConfig(vocab_size=vocab, d_model=512, dropout=0.1, **sizes, **ends)
        model = transformers.MarianMTModel(config)
        options = {"input_ids": batch.source, "attention_mask": batch.source_mask.long(), "labels": batch.labels}
    model.to(device).train()
    compiled, losses = torch.compile(model, dynamic=False), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = compiled(**options).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses[:] = [loss.detach()]

    return step, lambda: (losses[0].item(), 0.0)


def work(name: str, variant: str, lock: Path) -> dict[str, Any]:
    """Compile one variant, then time it."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    flags = set(variant.split("+"))
    if unknown := flags - FLAGS.keys() - {PEER}:
        raise SystemExit(f"no such flag: {unknown}; there are {', '.join(FLAGS)}")
    torch._inductor.config.coordinate_descent_tuning = "tune" in flags
    torch._inductor.config.combo_kernels = "combo" in flags
    torch._inductor.config.triton.mix_order_reduction = "unmixed" not in flags
    rows, length = SHAPES[name]
    with tempfile.TemporaryDirectory() as place, attention_by(flags):
        step, seen = their_step(name, device) if PEER in flags else our_step(name, flags, Path(place), device)
        begin = time.perf_counter()
        for _ in range(WARM):
            step()
        wait()
        prepared, times, told = time.perf_counter() - begin, [], []
        with alone(lock):
            for _ in range(ROUNDS):
                begin = time.perf_counter()
                for _ in range(STEPS):
                    step()
                told.append((time.perf_counter() - begin) / STEPS)
                wait()
                times.append((time.perf_counter() - begin) / STEPS)
            profile = list(kernels(lambda: [step() for _ in range(STEPS)], STEPS)) if "profile" in flags else []
        loss, bad = seen()
    return {
        "model": name, "variant": variant, "tokens_per_second": rows * length / median(times),
        "best": rows * length / min(times), "milliseconds": 1000 * median(times),
        "told_milliseconds": 1000 * median(told), "prepared_seconds": prepared,
        "gigabytes": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0,
        "loss": loss, "bad": bad, "profile": profile,
    }  # fmt: skip


def shown(row: dict[str, Any]) -> str:
    case = f"{row['model']:12}{row['variant']:26}"
    if "problem" in row:
        return f"{case}{row['problem']}"
    speed = f"{row['tokens_per_second']:10,.0f}{row['best']:10,.0f}{row['milliseconds']:9.1f} ms"
    costs = f"{row['told_milliseconds']:7.1f} ms{row['prepared_seconds']:7.0f} s{row['gigabytes']:7.1f} GB"
    rest = f"{costs}  loss {row['loss']:.3f}, {row['bad']:.0f} bad"
    return f"{case}{speed}{rest}  {row['tokens_per_second'] / AIMS[row['model']]:.2f}x the aim"


def main(options: argparse.Namespace) -> None:
    log = options.log.open("w", encoding="utf-8") if options.log else None

    def say(text: str) -> None:
        for place in (sys.stdout, log):
            if place is not None:
                print(text, file=place, flush=True)

    begin, rows = time.perf_counter(), []
    waiting = [
        (name, variant)
        for order in zip(*[(options.variants or VARIANTS[name]) for name in options.only.split(",")], strict=False)
        for name, variant in zip(options.only.split(","), order, strict=True)
    ]
    running: dict[subprocess.Popen[bytes], tuple[str, str, Path]] = {}
    with tempfile.TemporaryDirectory() as place:
        go = Path(place) / "go"
        while waiting or running:
            left = options.budget - (time.perf_counter() - begin)
            if not running:  # start the next few
                go.unlink(missing_ok=True)
            enough = left > 45  # enough to compile and to time
            while waiting and len(running) < options.together and enough and not go.exists():
                name, variant = waiting.pop(0)
                output = Path(place) / f"{name} {variant}"
                command = [sys.executable, __file__, "--work", name, variant, "--lock", str(Path(place) / "lock")]
                environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4"}
                process = subprocess.Popen(command, stdout=output.open("wb"), stderr=subprocess.STDOUT, env=environment)
                running[process] = name, variant, output
            if left < 45:
                waiting.clear()
            for process in [process for process in running if process.poll() is not None or left < 0]:
                name, variant, output = running.pop(process)
                process.kill()
                process.wait()
                lines = output.read_text(errors="replace").splitlines()
                found = [line.removeprefix("RESULT ") for line in lines if line.startswith("RESULT ")]
                problem = {"problem": "out of time" if left < 0 else "failed"}
                rows.append(json.loads(found[-1]) if found else {"model": name, "variant": variant, **problem})
                say("\n".join([shown(rows[-1]), *rows[-1].get("profile", [])]))
                if not found:
                    say("\n".join(lines)[-3000:])
            if running and all((go.parent / f"{process.pid}.ready").exists() for process in running):
                go.touch()
            time.sleep(0.2)
    heads = f"{'tokens/s':>10}{'best':>10}{'step':>12}{'told in':>10}{'compiling':>10}{'memory':>9}"
    say(f"\n{'model':12}{'variant':26}{heads}")
    for row in sorted(rows, key=lambda row: (row["model"], -row.get("tokens_per_second", 0))):
        say(shown(row))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="gpt2,transformer")
    parser.add_argument("--variants", type=lambda text: text.split(","), default=[], help="of every model")
    parser.add_argument("--budget", type=float, default=140.0, help="seconds for everything")
    parser.add_argument("--together", type=int, default=4, help="variants that compile side by side")
    parser.add_argument("--log", type=Path, help="also write what is printed to this file")
    parser.add_argument("--json", type=Path, help="also write every line to this file")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        try:
            print("RESULT", json.dumps(work(*chosen.work, chosen.lock)), flush=True)
        except Exception:
            print(traceback.format_exc()[-2500:], flush=True)
            sys.exit(1)
    else:
        main(chosen)
