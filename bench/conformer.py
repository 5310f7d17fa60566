"""The Conformer S, beside torchaudio's, interleaved in one process on one GPU.

python bench/conformer.py [--batch 32] [--seconds 10] [--rounds 5] [--profile] [--json FILE]

Both are 16 blocks, 144 wide, with 4 heads, kernels of 31 and dropout 0.1, in bf16 autocast, with random weights and
without padding. torchaudio's Conformer has no subsampling and no relative positions, so its blocks and ours read the
same frames; "from spectrograms" is our whole model, subsampling and labels included. A training step is the mean square
of the output, its gradients, and fused AdamW; "with CTC" is our whole model with the loss of 40 labels instead, as
`regard train` computes it: torch's, and in a graph our own (training/ctc.py), since torch's reads lengths on the host.
Each work is launched kernel by kernel (eager) and with compiled blocks;
ours then also as a CUDA graph of these. torchaudio's model reads the lengths on the host, so it cannot be captured.
Figures are seconds of audio in a second; where torchaudio is not installed, ours alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.families.speech.conformer import (
    PRESETS,
    SUBSAMPLED,
    Conformer,
    ConformerBlock,
    ConformerConfig,
    Subsampling,
)
from regard.training.cuda_graphs import CudaGraphs
from regard.training.losses import ctc

FRAMES, WARM, CALLS = 100, 4, 5  # frames a second; calls before timing, calls in one timing
LABELS = 40  # of a recording
DEVICE = torch.device("cuda")
Work = Callable[[], object]
COMPILED: tuple[type[nn.Module], ...] = (ConformerBlock, Subsampling)
PEER = find_spec("torchaudio") is not None
if PEER:
    from torchaudio.models import Conformer as TorchaudioConformer
    from torchaudio.models.conformer import ConformerLayer

    COMPILED = (*COMPILED, ConformerLayer)


class Blocks(nn.Module):
    """Our blocks alone."""

    def __init__(self, model: Conformer):
        super().__init__()
        self.encoder = model.encoder

    def forward(self, x: Tensor) -> Tensor:
        for block in self.encoder:
            x = block(x, None)
        return x


class Whole(nn.Module):
    """Our model from spectrograms to the labels of frames."""

    def __init__(self, model: Conformer):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        frames: Tensor = self.model(x).frames
        return frames


class Labelled(Whole):
    """Our model from spectrograms to CTC's loss while it trains, and to the labels of frames otherwise."""

    def __init__(self, model: Conformer, frames: int, batch: int):
        super().__init__(model)
        self.register_buffer("labels", torch.randint(1, model.config.vocab, (batch, LABELS)))
        self.register_buffer("sizes", torch.full((batch,), LABELS))
        self.register_buffer("lengths", torch.full((batch,), frames))

    def forward(self, x: Tensor) -> Tensor:
        frames = super().forward(x)
        if not self.training:
            return frames
        return ctc(frames, self.lengths, self.labels, self.sizes, self.model.config.pad).sqrt()  # the step squares it


class Peer(nn.Module):
    """torchaudio's blocks; all recordings are equally long."""

    def __init__(self, config: ConformerConfig, length: int, batch: int):
        super().__init__()
        self.model = TorchaudioConformer(
            config.width, config.heads, config.ffn_width, config.depth, config.kernel, dropout=config.dropout
        )
        self.register_buffer("lengths", torch.full((batch,), length))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.model(x, self.lengths)[0]
        return output


def works(make: Callable[[], nn.Module], x: Tensor) -> dict[str, Work]:
    """Inference and training of a model, eager and compiled. Blocks are compiled one by one, since all are alike."""
    made: dict[str, Work] = {}
    for form in ("eager", "compiled"):
        model = make().to(DEVICE)
        for part in model.modules():
            if form == "compiled" and isinstance(part, COMPILED):
                part.compile(dynamic=False)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=torch.tensor(1e-6, device=DEVICE), fused=True, capturable=True
        )

        def infer(model: nn.Module = model) -> object:
            if model.training:
                model.eval()
            with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
                return model(x)

        def step(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            if not model.training:
                model.train()
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(x).float().square().mean()
            loss.backward()
            optimizer.step()

        made |= {f"inference, {form}": infer, f"training, {form}": step}
    return made


def captured(made: dict[str, Work]) -> dict[str, Work]:
    """The compiled works of a model as CUDA graphs, as far as they can be captured."""
    graphs: dict[str, Work] = {}
    for kind in ("inference", "training"):
        try:
            graphs[f"{kind}, graph"] = _captured(made[f"{kind}, compiled"])
        except RuntimeError:
            print(f"{kind} cannot be captured:\n{traceback.format_exc()}")
    return graphs


def _captured(work: Work) -> Work:
    graphs = CudaGraphs(DEVICE)
    for _ in range(WARM):
        graphs.warm(work)  # type: ignore[arg-type]
    return graphs(work)  # type: ignore[arg-type]


def seconds(work: Work) -> float:
    """The time of one call."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(CALLS):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / CALLS


def measure(subjects: dict[str, dict[str, Work]], rounds: int) -> dict[str, dict[str, float]]:
    """The median time of every work of every subject; subjects take turns."""
    times: dict[str, dict[str, list[float]]] = {name: {} for name in subjects}
    for kind in next(iter(subjects.values())):
        for _ in range(rounds):
            for name, made in subjects.items():
                if kind in made:
                    times[name].setdefault(kind, []).append(seconds(made[kind]))
    return {name: {kind: statistics.median(some) for kind, some in each.items()} for name, each in times.items()}


def tell(found: dict[str, dict[str, float]], audio: int) -> None:
    """Print one line for each kind of work."""
    for kind in sorted({kind for each in found.values() for kind in each}):
        row = [
            f"{name} {audio / each[kind]:,.0f} ({1000 * each[kind]:.2f})"
            for name, each in found.items()
            if kind in each
        ]
        print(f"{kind:22}", "  ".join(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="also list the kernels that take most time")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    config = ConformerConfig.parse({"vocab": 1024, **PRESETS["small"]})
    length = asked.seconds * FRAMES
    frames = torch.randn(asked.batch, length // SUBSAMPLED, config.width, device=DEVICE)
    spectrograms = torch.randn(asked.batch, length, config.bands, device=DEVICE)
    subjects = {"regard": works(lambda: Blocks(Conformer(config)), frames)}
    if PEER:
        subjects["torchaudio"] = works(lambda: Peer(config, frames.shape[1], asked.batch), frames)
    else:
        print("torchaudio is not installed: ours alone")
    subjects["regard from spectrograms"] = works(lambda: Whole(Conformer(config)), spectrograms)
    subjects["regard with CTC"] = works(
        lambda: Labelled(Conformer(config), length // SUBSAMPLED, asked.batch), spectrograms
    )
    for made in subjects.values():
        for work in made.values():
            for _ in range(WARM):
                work()
    print(f"{asked.batch} x {asked.seconds} s; seconds of audio a second (ms)", flush=True)
    audio = asked.batch * asked.seconds
    found = measure(subjects, asked.rounds)
    tell(found, audio)
    graphs = {name: captured(made) for name, made in subjects.items() if name != "torchaudio"}
    replayed = measure(graphs, asked.rounds)
    tell(replayed, audio)
    for name, each in replayed.items():
        found[name] |= each
    if "torchaudio" in found:
        for kind, time_of in found["regard"].items():
            peer = found["torchaudio"].get(kind) or found["torchaudio"][kind.replace("graph", "compiled")]
            print(f"{kind}: {peer / time_of:.2f} times as fast as torchaudio (compiled, where ours is a graph)")
    if asked.profile:
        for kind in ("inference, compiled", "training, compiled"):
            profile(subjects["regard"][kind])
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2))


def profile(work: Work) -> None:
    """The kernels of a work by their time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    print(seen.key_averages().table(sort_by="cuda_time_total", row_limit=25, max_name_column_width=70))


if __name__ == "__main__":
    main()
