"""ViT-B/16 and Swin-T, naming images and learning: Regard against transformers, timm and torchvision.

python bench/images.py [--models ViT-B/16] [--batch N] [--device cuda] [--dtype bfloat16] [--compile [MODE]]
                       [--libraries torchvision] [--seconds PER_LINE] [--json FILE]

Libraries that are not installed are left out. Regard and transformers share random weights and must give the same
logits; timm and torchvision have weights of their own. Each line runs two models in turn. On a CPU, images are
classified by the fast model, as in `regard see`. A training step is forward, backward and AdamW. With one CPU
thread the CPU time is measured, because other processes disturb it least.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from torch import nn
from torch.nn import functional

from regard.checkpoints import load_model
from regard.plan.machine import describe
from regard.runtime.convert import fast_model
from regard.training.optim import adamw, guarded_step
from turns import Times, interleaved

CLASSES, SIDE, LR = 1000, 224, 1e-4
Step = Callable[[], object]


@dataclass(frozen=True)
class Line:
    """One library against Regard in one task; the difference is that of the logits, if the weights are the same."""

    model: str
    library: str
    task: str
    batch: int
    times: Times
    difference: float | None

    def __str__(self) -> str:
        speeds = f"{self.batch / self.times.first:10.1f}{self.batch / self.times.second:10.1f}{self.times.ratio:9.2f}x"
        same = "" if self.difference is None else f"  logits differ by {self.difference:.0e}"
        return f"{self.model:10}{self.library:14}{self.task:11}{speeds}{same}{self.times.warning}"


class Setting:
    """The device, precision and batch of both models."""

    def __init__(self, batch: int, device: str, dtype: str, compiled: str | None, threads: int):
        self.clock = time.process_time if (device, threads) == ("cpu", 1) else time.perf_counter
        self.device, self.dtype, self.compiled = torch.device(device), getattr(torch, dtype), compiled
        generator = torch.Generator().manual_seed(1)
        self.pictures = torch.randn(batch, 3, SIDE, SIDE, generator=generator).to(self.device)
        self.labels = torch.randint(CLASSES, (batch,), generator=generator).to(self.device)

    def logits(self, model: Callable[[torch.Tensor], object]) -> torch.Tensor:
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            found = model(self.pictures)
        logits: torch.Tensor = getattr(found, "logits", found)
        return logits.float()

    def naming(self, model: nn.Module) -> Step:
        """A forward pass."""
        run = self._prepared(model.eval())

        @torch.inference_mode()
        def step() -> None:
            torch.compiler.cudagraph_mark_step_begin()
            self.logits(run)
            self._wait()

        return step

    def learning(self, model: nn.Module, update: Callable[[], None], forget: Callable[[], None]) -> Step:
        """Forward, backward, update."""
        run = self._prepared(model.train())

        def step() -> None:
            torch.compiler.cudagraph_mark_step_begin()
            functional.cross_entropy(self.logits(run), self.labels).backward()
            update()
            forget()
            self._wait()

        return step

    def _prepared(self, model: nn.Module) -> Callable[[torch.Tensor], object]:
        return torch.compile(model, mode=self.compiled) if self.compiled else model

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def twins(name: str) -> tuple[nn.Module, nn.Module]:
    """transformers' model, and the same model loaded by Regard from its folder."""
    torch.manual_seed(1)
    if name == "ViT-B/16":
        theirs: nn.Module = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=CLASSES))
    else:
        config = transformers.SwinConfig(num_labels=CLASSES, drop_path_rate=0.0)
        theirs = transformers.SwinForImageClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)  # type: ignore[attr-defined]
        return theirs, load_model(Path(folder)).model


def others(name: str) -> dict[str, nn.Module]:
    """The same architecture in the other libraries that are installed."""
    found: dict[str, nn.Module] = {}
    for library, names in (
        ("timm", {"ViT-B/16": "vit_base_patch16_224", "Swin-T": "swin_tiny_patch4_window7_224"}),
        ("torchvision.models", {"ViT-B/16": "vit_b_16", "Swin-T": "swin_t"}),
    ):
        try:
            module = importlib.import_module(library)
        except ImportError:
            print(f"{library} is not installed", flush=True)
            continue
        model = module.create_model(names[name]) if library == "timm" else getattr(module, names[name])()
        for part in model.modules():
            if type(part).__name__ == "StochasticDepth":  # torchvision's drop path, which the other models do not use
                part.p = 0.0
        found[library.partition(".")[0]] = model
    return found


def measure(name: str, setting: Setting, seconds: float, libraries: list[str]) -> list[Line]:
    """Measure both tasks against each of these libraries."""
    theirs, ours = twins(name)
    ours.to(setting.device)
    lines = []
    for library, model in {"transformers": theirs, **others(name)}.items():
        if library not in libraries:
            continue
        model.to(setting.device)
        difference = None
        if library == "transformers":
            with torch.inference_mode():
                difference = (setting.logits(model.eval()) - setting.logits(ours.eval())).abs().max().item()
        batch = len(setting.pictures)
        reader = fast_model(ours.eval()) if setting.device.type == "cpu" and not setting.compiled else ours
        naming = interleaved(setting.naming(model), setting.naming(reader), seconds, setting.clock)
        lines.append(Line(name, library, "inference", batch, naming, difference))
        print(lines[-1], flush=True)
        learning = interleaved(_their_learning(model, setting), _our_learning(ours, setting), seconds, setting.clock)
        lines.append(Line(name, library, "training", batch, learning, None))
        print(lines[-1], flush=True)
        model.cpu()
    return lines


def _their_learning(model: nn.Module, setting: Setting) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    return setting.learning(model, optimizer.step, optimizer.zero_grad)


def _our_learning(model: nn.Module, setting: Setting) -> Step:
    optimizer = adamw(model.parameters(), betas=(0.9, 0.999), weight_decay=0.01)
    fine = torch.zeros((), device=setting.device)
    return setting.learning(model, lambda: guarded_step(optimizer, LR, fine), optimizer.zero_grad)


def main(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    logging.disable(logging.ERROR)
    about = describe(options.threads) | {"transformers": transformers.__version__, "dtype": options.dtype}
    print("; ".join(f"{name} {value}" for name, value in about.items()), end="\n\n")
    setting = Setting(options.batch, options.device, options.dtype, options.compile, options.threads)
    where = torch.cuda.get_device_name() if setting.device.type == "cuda" else "CPU"
    how = f", compiled ({options.compile})" if options.compile else ""
    print(f"batches of {options.batch} images of {SIDE} x {SIDE}, {where}{how}\n")
    print(f"{'model':10}{'library':14}{'task':11}{'theirs/s':>10}{'ours/s':>10}{'faster':>10}")
    models, libraries = options.models.split(","), options.libraries.split(",")
    lines = [line for name in models for line in measure(name, setting, options.seconds, libraries)]
    if options.json is not None:
        about |= {"device": where, "compiled": options.compile}
        found = {"setting": about, "lines": [asdict(line) for line in lines]}
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="ViT-B/16,Swin-T", help="of these two")
    parser.add_argument("--libraries", default="transformers,timm,torchvision", help="to compare with")
    parser.add_argument("--batch", type=int, default=4, help="pictures")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of products (autocast)")
    parser.add_argument("--compile", nargs="?", const="default", choices=("default", "reduce-overhead"),
                        help="both models by torch.compile; reduce-overhead replays graphs on a GPU")  # fmt: skip
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each line")
    parser.add_argument("--json", type=Path, help="also write the setting and every line to this file")
    main(parser.parse_args())
