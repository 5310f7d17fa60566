"""A training step (forward, backward, AdamW) of about 4,000 target tokens: transformers against Regard.

python bench/train_step.py [seconds]
"""

from __future__ import annotations

import sys

import torch

from regard.training.objectives import cross_entropy
from regard.training.optim import adamw, guarded_step
from twins import interleaved, prepare, sentences, twins

BATCH, LENGTH = 125, 32
LR = 1e-4


def main(seconds: float) -> None:
    prepare()
    theirs, ours = twins("small", dropout=0.1)
    source, mask = sentences(ours, BATCH, LENGTH)
    labels = torch.randint(1, ours.config.target_vocab - 1, (BATCH, LENGTH))
    inputs = torch.cat([torch.full((BATCH, 1), ours.config.pad), labels[:, :-1]], dim=1)
    real = torch.ones_like(labels, dtype=torch.bool)
    their_optimizer = torch.optim.AdamW(theirs.parameters(), lr=LR, fused=True)
    our_optimizer = adamw(ours.parameters(), betas=(0.9, 0.999), weight_decay=0.01)

    def their_loss() -> torch.Tensor:
        return theirs(input_ids=source, attention_mask=mask.long(), labels=labels).loss

    def our_loss() -> torch.Tensor:
        return cross_entropy(ours(source, mask, inputs), labels, real) / labels.numel()

    def their_step() -> None:
        their_loss().backward()
        their_optimizer.step()
        their_optimizer.zero_grad()

    def our_step() -> None:
        our_loss().backward()
        guarded_step(our_optimizer, LR, torch.zeros(()))
        our_optimizer.zero_grad()

    with torch.inference_mode():
        difference = (their_loss() - our_loss()).abs().item()
    theirs.train(), ours.train()
    times = interleaved(their_step, our_step, seconds)
    print(f"{labels.numel()} target tokens; the losses differ by {difference:.1e} before the first step")
    speeds = f"transformers {1000 * times.theirs:.0f} ms, regard {1000 * times.ours:.0f} ms: {times.ratio:.2f}x as fast"
    print(speeds + times.warning)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 40.0)
