"""Batches of sentences of similar length, so that little of a batch is padding."""

from collections.abc import Iterator, Sequence

BATCH_TOKENS, BATCH_SENTENCES, BATCH_HYPOTHESES = 4096, 64, 1024  # the most of a batch


def batches_by_length(lengths: Sequence[int], width: int = 1) -> Iterator[list[int]]:
    """Sentence numbers, sorted by length and cut into batches that fit with `width` hypotheses for each sentence."""
    most = max(1, min(BATCH_SENTENCES, BATCH_HYPOTHESES // width))
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and (len(batch) == most or (len(batch) + 1) * lengths[i] > BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
