"""Folders of a Whisper with random weights, as Hugging Face has them, and sounds for it."""

import io
import json
from pathlib import Path

import numpy as np
import soundfile
import torch

from regard.checkpoints import export_model
from regard.data.tokenizers.text import TextTokenizer
from regard.families.speech.features import WHISPER
from regard.families.speech.whisper import Whisper, WhisperConfig

WORDS = "abcdefghijklmnopqrstuvwxyz"
LANGUAGES = ("en", "pt", "de")
SPECIALS = [
    "<|endoftext|>", "<|startoftranscript|>", *(f"<|{each}|>" for each in LANGUAGES), "<|translate|>",
    "<|transcribe|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
]  # fmt: skip
PLACES, POSITIONS = 25, 40  # half a second of audio, and the longest text


def vocabulary():
    """Letters in byte-level BPE with their spaces, special tokens, and times."""
    words = ["Ġ", *WORDS, *("Ġ" + letter for letter in WORDS)]
    ids = {word: number for number, word in enumerate(words)}
    added = [*SPECIALS, *(f"<|{0.02 * step:.2f}|>" for step in range(PLACES + 1))]
    return ids, {name: len(ids) + number for number, name in enumerate(added)}


def write_tokenizer(folder, *, as_json):
    ids, added = vocabulary()
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"Ġ {letter}\n" for letter in WORDS))
    (folder / "added_tokens.json").write_text(json.dumps(added))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    if as_json:
        TextTokenizer.load(folder).library.save(str(folder / "tokenizer.json"))
        for name in ("vocab.json", "merges.txt", "added_tokens.json"):
            (folder / name).unlink()


def generation_values():
    _, added = vocabulary()
    return {
        "decoder_start_token_id": added["<|startoftranscript|>"], "eos_token_id": added["<|endoftext|>"],
        "pad_token_id": added["<|endoftext|>"], "bos_token_id": added["<|endoftext|>"],
        "no_timestamps_token_id": added["<|notimestamps|>"], "is_multilingual": True,
        "lang_to_id": {f"<|{each}|>": added[f"<|{each}|>"] for each in LANGUAGES},
        "task_to_id": {"transcribe": added["<|transcribe|>"], "translate": added["<|translate|>"]},
        "prev_sot_token_id": added["<|startofprev|>"], "max_initial_timestamp_index": 5, "max_length": POSITIONS,
        "suppress_tokens": [2, 7, *(added[name] for name in SPECIALS[1:-1])],
        "begin_suppress_tokens": [5, added["<|endoftext|>"]], "alignment_heads": [[1, 0], [1, 1]],
        "return_timestamps": False,
    }  # fmt: skip


def whisper_folder(folder: Path, seed: int = 0) -> Path:
    """A model folder with everything that transcribing needs; half a second is heard at once."""
    torch.manual_seed(seed)
    ids, added = vocabulary()
    values = generation_values()
    config = WhisperConfig(
        vocab=len(ids) + len(added), pad=values["pad_token_id"], width=16, heads=4, encoder_depth=2, decoder_depth=2,
        ffn_width=32, max_frames=PLACES, max_length=POSITIONS,
    )  # fmt: skip
    model = Whisper(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, std=0.4)

    def more(place: Path) -> None:
        write_tokenizer(place, as_json=True)
        WHISPER.save(place)
        (place / "generation_config.json").write_text(json.dumps(values))

    export_model("whisper", model, folder, extras=more)
    return folder


def sounds(count, seconds=0.5, seed=0):
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * 16_000)) / 16_000
    return [
        (0.4 * np.sin(2 * np.pi * rng.uniform(100, 3000) * time) + rng.normal(0, 0.1, len(time))).astype(np.float32)
        for _ in range(count)
    ]


def as_wav(samples):
    file = io.BytesIO()
    soundfile.write(file, samples, 16_000, format="WAV", subtype="FLOAT")
    return file.getvalue()
