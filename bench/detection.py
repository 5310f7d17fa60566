"""Faster R-CNN with ResNet-50 and a pyramid, beside torchvision's, interleaved in one process on one GPU.

python bench/detection.py [--images 16] [--side 256] [--rounds 8] [--json FILE]

Both have torchvision's settings of proposals and regions (91 classes with the background), random weights, bf16
autocast and the same images; training is one step of AdamW with eight boxes an image. Ours runs as `regard` runs it:
a training step as one CUDA graph, inference launched kernel by kernel, and also as a graph.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from regard.families.detection.model import PRESETS, Detector, DetectorConfig
from regard.families.detection.proposals import Truth
from regard.training.cuda_graphs import CudaGraphs

CLASSES, BOXES, WARM, CALLS = 90, 8, 6, 6
DEVICE = torch.device("cuda")


def drawn_boxes(images: int, side: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(images, BOXES, 2, generator=generator) * side * 0.6
    sizes = side * (0.08 + 0.3 * torch.rand(images, BOXES, 2, generator=generator))
    return torch.cat([corners, corners + sizes], dim=-1).to(DEVICE)


def captured(work: Callable[[], object]) -> Callable[[], None]:
    """The work as a CUDA graph."""
    graphs = CudaGraphs(DEVICE)
    for _ in range(WARM):
        graphs.warm(work)  # type: ignore[arg-type]
    return graphs(work)  # type: ignore[arg-type]


def ours(images: Tensor, side: int) -> dict[str, Callable[[], object]]:
    config = DetectorConfig.parse({**PRESETS["resnet-50-fpn"], "image_size": side, "classes": CLASSES})
    model = Detector(config).to(DEVICE)
    truth = Truth(drawn_boxes(len(images), side), 1 + torch.arange(BOXES, device=DEVICE).expand(len(images), -1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-5, device=DEVICE), fused=True, capturable=True)

    def infer() -> object:
        model.eval()
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
            return model(images)

    def step() -> None:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            losses = model(images, truth=truth)
            total = torch.stack([each.mean() for each in losses]).sum()
        total.backward()
        optimizer.step()

    works: dict[str, Callable[[], object]] = {"inference": infer, "training without graph": step}
    for name, work in (("inference", infer), ("training", step)):
        try:
            works[f"{name} as a graph"] = captured(work)
        except RuntimeError as error:
            print(f"{name} cannot be captured: {error}")
    return works


def theirs(images: Tensor, side: int) -> dict[str, Callable[[], object]]:
    from torchvision.models.detection import fasterrcnn_resnet50_fpn

    model = fasterrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=CLASSES + 1, min_size=side, max_size=side
    ).to(DEVICE)
    boxes, labels = drawn_boxes(len(images), side), 1 + torch.arange(BOXES, device=DEVICE)
    targets = [{"boxes": each, "labels": labels} for each in boxes]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    several = list(images)

    def infer() -> object:
        model.eval()
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
            return model(several)

    def step() -> None:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            total = sum(model(several, targets).values())
        total.backward()
        optimizer.step()

    return {"inference": infer, "training": step}


def seconds(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(CALLS):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / CALLS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    images = torch.rand(options.images, 3, options.side, options.side, generator=torch.Generator().manual_seed(1))
    images = images.to(DEVICE)
    peers = {"regard": ours(images, options.side), "torchvision": theirs(images, options.side)}
    works = [(peer, name, work) for peer, named in peers.items() for name, work in named.items()]
    for _, _, work in works:
        for _ in range(WARM):
            work()
    times: dict[tuple[str, str], list[float]] = {(peer, name): [] for peer, name, _ in works}
    for _ in range(options.rounds):  # interleaved, so that a slow moment of the machine hits all of them
        for peer, name, work in works:
            times[peer, name].append(seconds(work))
    speeds = {key: options.images / statistics.median(each) for key, each in times.items()}
    for (peer, name), speed in speeds.items():
        reference = speeds["torchvision", name.split()[0]]
        print(f"{peer:12} {name:24} {speed:8.1f} images/s  {speed / reference:5.2f} x torchvision")
    if options.json:
        options.json.write_text(json.dumps({" ".join(key): speed for key, speed in speeds.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
