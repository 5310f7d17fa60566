"""A small recogniser of the built-in speech with random weights, which hears something in every recording."""

from pathlib import Path

import soundfile
import torch

from regard.checkpoints import save_model
from regard.data.tokenizers.training import VocabularyConfig, train_vocabulary
from regard.families.speech.audio import Samples
from regard.families.speech.conformer import PRESETS, Conformer, ConformerConfig
from regard.families.speech.features import LogMelConfig
from regard.families.speech.pipeline import SpeechRecognizer
from regard.search.settings import SearchSettings

AUDIO = LogMelConfig(rate=8000, n_fft=256, window=200, hop=80, mels=40)
WORDS = "zero one two three four five six seven eight nine"


def tiny_recognizer(kind: str = "word", **changes: object) -> SpeechRecognizer:
    """Without changes it labels frames alone."""
    torch.manual_seed(3)
    vocabulary = VocabularyConfig.parse({"kind": kind, "size": 40, "min_frequency": 1})
    tokenizer = train_vocabulary([WORDS], vocabulary, "terminated")
    config = ConformerConfig.parse({**PRESETS["tiny"], "vocab": tokenizer.size, "width": 32, **changes})
    model = Conformer(config)
    for module in model.modules():  # frames that differ, so that something is heard
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=0.3)
    if model.decoder is not None:
        model.decoder.output_bias.data[tokenizer.end] = -3.0
    return SpeechRecognizer(model, tokenizer, AUDIO, settings=SearchSettings(max_length=9), name="tiny")


def save_recognizer(folder: Path, recognizer: SpeechRecognizer) -> Path:
    """Write a model folder."""

    def extras(place: Path) -> None:
        recognizer.tokenizer.save(place)
        AUDIO.save(place)
        (place / "recipe.toml").write_text("[decoding]\nmax_length = 9\n")

    save_model(folder, "conformer", recognizer.model, extras=extras)
    return folder


def write_wav(path: Path, samples: Samples, rate: int) -> None:
    """Write mono samples with 16 bits."""
    soundfile.write(path, samples, rate, format="WAV", subtype="PCM_16")
