"""Built-in recordings to try a model with on the page."""

from __future__ import annotations

import base64
from functools import cache

from regard.families.speech.data import wav_bytes
from regard.families.speech.manifest import utterances

COUNT, SEED, RATE = 4, 7, 16_000


@cache
def examples() -> list[dict[str, str]]:
    """WAV files in base64, and what is said."""
    spoken = utterances(part="test", count=COUNT, seed=SEED, digits=(2, 4), rate=RATE)
    return [{"caption": each.text, "data": base64.b64encode(wav_bytes(each.samples, RATE)).decode()} for each in spoken]
