"""A block of triangle updates beside transformers' block of ESMFold, interleaved in one process on one GPU.

python bench/triangle.py [--chains 4] [--residues 128] [--rounds 10] [--eager] [--json FILE]

Both compute the same function (tests/parity/test_parity_evoformer.py): one sequence with a pair representation, in
ESMFold's sizes (1024 and 128 wide, heads of 32), random weights in bf16, no dropout. Each runs launched kernel by
kernel and compiled by torch; ours also as `regard` trains it, captured as a CUDA graph.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers.models.esm.configuration_esm import TrunkConfig
from transformers.models.esm.modeling_esmfold import EsmFoldTriangularSelfAttentionBlock

from regard.families.folding.layers import EvoformerBlock, PairProducts

DEVICE = torch.device("cuda")
WARM, CALLS = 5, 5
Work = Callable[[], object]


def our_block(width: int, pair: int, head: int) -> EvoformerBlock:
    return EvoformerBlock(
        width, pair, heads=width // head, head_width=head, pair_heads=pair // head, pair_head_width=head,
        outer=PairProducts(width, pair, pair // 2), triangle_width=pair, columns=False,
    )  # fmt: skip


def works(block: nn.Module, run: Callable[[], tuple[Tensor, Tensor]], given: list[Tensor]) -> dict[str, Work]:
    """The forward pass alone, and with the backward pass."""

    def forward() -> object:
        with torch.no_grad():
            return run()

    def both() -> None:
        for each in (*block.parameters(), *given):
            each.grad = None
        rows, pairs = run()
        (rows.float().mean() + pairs.float().mean()).backward()

    return {"forward": forward, "forward and backward": both}


def captured(work: Work) -> Work:
    """The work as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def milliseconds(work: Work) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(CALLS):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / CALLS


def measured(runs: dict[str, dict[str, Work]], rounds: int) -> dict[str, dict[str, float]]:
    """Median milliseconds of every way, in turn, for each kind of work; printed as well."""
    found: dict[str, dict[str, float]] = {}
    for kind in ("forward", "forward and backward"):
        ready: dict[str, Work] = {}
        for name, each in runs.items():
            try:
                for _ in range(WARM):
                    each[kind]()
                torch.cuda.synchronize()
                ready[name] = each[kind]
                if name.startswith("ours"):
                    ready[f"{name}, as a graph"] = captured(each[kind])
            except Exception as error:  # one way that fails must not end the others
                print(f"{name}, {kind}: {type(error).__name__}: {str(error)[:200]}")
        times: dict[str, list[float]] = {name: [] for name in ready}
        for _ in range(rounds):
            for name, work in ready.items():
                times[name].append(milliseconds(work))
        found[kind] = {name: statistics.median(values) for name, values in times.items()}
        for name, value in found[kind].items():
            ratio = found[kind].get("theirs", 0) / value
            print(f"{kind:22} {name:28} {value:7.3f} ms   theirs / this {ratio:5.2f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--residues", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--eager", action="store_true", help="leave out what torch compiles, which takes a minute")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = TrunkConfig(dropout=0)
    width, pair, head = config.sequence_state_dim, config.pairwise_state_dim, config.pairwise_head_width
    torch.manual_seed(0)
    theirs = EsmFoldTriangularSelfAttentionBlock(config).to(DEVICE, torch.bfloat16).train()
    ours = our_block(width, pair, head).to(DEVICE, torch.bfloat16).train()
    for parameter in (*theirs.parameters(), *ours.parameters()):
        nn.init.normal_(parameter, std=0.05)
    shape = options.chains, options.residues
    state = torch.randn(*shape, width, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    pairs = torch.randn(*shape, options.residues, pair, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    mask = torch.ones(shape, dtype=torch.bool, device=DEVICE)
    depth = mask[:, :1]
    real = mask.to(torch.bfloat16)
    their_fast, our_fast = torch.compile(theirs), torch.compile(ours)
    runs: dict[str, dict[str, Work]] = {
        "theirs": works(theirs, lambda: theirs(state, pairs, mask=real), [state, pairs]),
        "theirs, compiled": works(theirs, lambda: their_fast(state, pairs, mask=real), [state, pairs]),
        "ours": works(ours, lambda: ours(state[:, None], pairs, mask, depth), [state, pairs]),
        "ours, compiled": works(ours, lambda: our_fast(state[:, None], pairs, mask, depth), [state, pairs]),
    }
    found = measured({name: runs[name] for name in ("theirs", "ours")}, options.rounds)
    if not options.eager:
        found = measured(runs, options.rounds)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {shape[0]} x {shape[1]} residues, bf16")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
