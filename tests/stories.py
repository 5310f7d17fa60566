"""stories260K, a trained Llama of five layers with grouped heads, as a model folder; tests skip where it is missing."""

import json
import shutil
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, processors

from regard.data.data_root import data_root

SOURCE = Path(data_root()) / "stories260k"
TEXT = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."


def stories_folder(place: Path) -> Path:
    """The model with its tokenizer in the form that Hugging Face folders have."""
    if not (SOURCE / "model.safetensors").is_file():
        pytest.skip("../shared/data/stories260k is not here")
    place.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(SOURCE / name, place / name)
    scored = [(text.strip("\n") if number in (1, 2) else text, score) for number, (text, score) in enumerate(tokens())]
    vocabulary = {text: number for number, (text, _) in enumerate(scored)}
    pieces = (text for text, number in vocabulary.items() if number > 258)  # not the bytes
    joined = sorted(pieces, key=lambda text: -scored[vocabulary[text]][1])
    merges = [
        (text[:cut], text[cut:])
        for text in joined
        for cut in range(1, len(text))
        if text[:cut] in vocabulary and text[cut:] in vocabulary
    ]
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(place / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (place / "tokenizer_config.json").write_text(json.dumps(special))
    return place


def tokens() -> list[list]:
    """Texts and scores by number."""
    return json.loads((SOURCE / "tokens.json").read_text())
