"""Model folders from one form to another, with the same answers; and to the forms of other engines."""

from __future__ import annotations

import shutil
from pathlib import Path

from regard.checkpoints import LoadedModel, export_marian, export_model, load_model, save_model
from regard.checkpoints.ctranslate2 import export_ctranslate2
from regard.checkpoints.hub import local_folder
from regard.checkpoints.onnx import export_onnx
from regard.data.images.reading import PREPROCESSING
from regard.data.tokenizers.huggingface_export import write_fast_tokenizer
from regard.data.tokenizers.pair import PairTokenizer, SubwordTokenizer
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import UsageError
from regard.inference.decoding.folder_settings import GENERATION, RECIPE, read_decoding, their_settings
from regard.inference.insight.forced_pass import ALIGNMENT
from regard.inference.pipelines.sentence_embedding import sentence_files
from regard.inference.pipelines.word_vectors import WordVectors
from regard.layers.vision import ImageConfig

FORMS = ("regard", "huggingface", "marian", "ctranslate2", "onnx", "word2vec")
KEPT = (RECIPE, ALIGNMENT, GENERATION, PREPROCESSING)  # how it decodes, how it aligns, how its pictures are made
TRANSLATORS, WRITERS = ("seq2seq", "transformer"), ("gpt", "t5")


def convert(source: str | Path, target: Path, form: str, *, allow_pickle: bool = False) -> None:
    """Write the model of `source` to the new folder `target` in Regard's form or Hugging Face's, or for CTranslate2 or
    ONNX; word vectors also to a text file as word2vec's own program writes it."""
    if form not in FORMS:
        raise UsageError(f"cannot convert to {form!r}; known forms: {', '.join(FORMS)}")
    if target.exists():
        raise UsageError(f"{target} exists already; give a folder that does not")
    loaded = load_model(local_folder(source), allow_pickle=allow_pickle)
    if form in ("marian", "ctranslate2") and loaded.name != "transformer":
        raise UsageError(f"{source} is a {loaded.name} model; only a transformer has a form for {form}")
    if form == "word2vec":
        if loaded.name != "word2vec":
            raise UsageError(f"{source} is a {loaded.name} model; only a word2vec has word2vec's text form")
        WordVectors.load(loaded.folder).write(target)
        return
    tokenizer = _tokenizer(loaded)

    def extras(folder: Path) -> None:
        if tokenizer is not None:
            tokenizer.save(folder)
        for name in (*KEPT, *sentence_files(loaded.folder)):
            if (loaded.folder / name).is_file() and not (folder / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(loaded.folder / name, folder / name)

    def for_transformers(folder: Path) -> None:
        extras(folder)
        if isinstance(tokenizer, PairTokenizer) and isinstance(tokenizer.source, SubwordTokenizer):
            write_fast_tokenizer(tokenizer, folder)

    if form == "regard":
        save_model(target, loaded.name, loaded.model, extras)
    elif form == "onnx":
        export_onnx(loaded.model, target, extras=extras)
    elif form == "ctranslate2":
        assert isinstance(tokenizer, PairTokenizer)
        side = tokenizer.target
        export_ctranslate2(
            loaded.model, target, source=tokenizer.source.vocabulary, target=side.vocabulary,
            start=side.start, end=side.end, unknown=side.unknown, extras=extras,
        )  # fmt: skip
    elif isinstance(tokenizer, PairTokenizer) and loaded.name == "transformer":
        side = tokenizer.target
        decoding = their_settings(read_decoding(loaded.folder).settings)
        export_marian(loaded.model, target, start=side.start, end=side.end, decoding=decoding, extras=for_transformers)
    else:
        export_model(loaded.name, loaded.model, target, values=_numbers(loaded.name, tokenizer), extras=extras)


def _tokenizer(loaded: LoadedModel) -> PairTokenizer | TextTokenizer | None:
    """What cuts the texts of a model; none where it reads pictures."""
    if (loaded.folder / PREPROCESSING).is_file() or isinstance(loaded.config, ImageConfig):
        return None
    pairs = loaded.name in TRANSLATORS or PairTokenizer.is_in(loaded.folder)
    return (PairTokenizer if pairs else TextTokenizer).load(loaded.folder)


def _numbers(name: str, tokenizer: PairTokenizer | TextTokenizer | None) -> dict[str, int | None]:
    """The token numbers that transformers wants in the config of a model that writes."""
    if name not in WRITERS or tokenizer is None:
        return {}
    side = tokenizer.target if isinstance(tokenizer, PairTokenizer) else tokenizer
    if name == "t5":  # begins its answers with the padding token
        start = side.start if isinstance(tokenizer, PairTokenizer) else side.pad
        return {"eos_token_id": side.end, "decoder_start_token_id": start}
    return {"bos_token_id": side.start, "eos_token_id": side.end}
