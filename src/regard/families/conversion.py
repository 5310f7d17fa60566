"""Converts model folders between Regard's form, Hugging Face's and those of other engines, with the same answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import get_args

from regard.checkpoints import LoadedModel, export_model, load_model, save_model
from regard.checkpoints.folder import local_folder
from regard.checkpoints.models import Storage
from regard.data.images.files import PREPROCESSING
from regard.data.tokenizers.huggingface import FILES
from regard.data.tokenizers.huggingface_export import write_fast_tokenizer
from regard.data.tokenizers.pair import PairTokenizer, SubwordTokenizer
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import UsageError, with_article
from regard.families.catalog import MODELS, PIPELINES, models_run_by
from regard.families.contract import TEXT, TRANSLATOR
from regard.families.language.sentence_embedding import sentence_files
from regard.families.language.word_vectors import WordVectors
from regard.families.loading import find_pipeline
from regard.families.speech.features import PROCESSOR
from regard.families.translation.ctranslate2 import export_ctranslate2
from regard.families.translation.marian import MARIAN_MODEL, export_marian
from regard.families.translation.onnx import export_onnx
from regard.families.translation.quality import Calibration
from regard.look.forced_pass import ALIGNMENT
from regard.search.settings import GENERATION, RECIPE, read_decoding, their_settings

WORD_LINES = "word2vec"  # not a folder but the text file that word2vec's own program writes
FORMS = ("regard", "huggingface", "marian", "ctranslate2", "onnx", WORD_LINES)
# Files on decoding, alignment, quality and preprocessing
KEPT = (RECIPE, ALIGNMENT, Calibration.file_name, GENERATION, PREPROCESSING, PROCESSOR)
TOKEN_IDS = ("bos_token_id", "eos_token_id", "decoder_start_token_id")


def convert(source: str | Path, target: Path, form: str, *, storage: str = "fp32", allow_pickle: bool = False) -> None:
    """Write the model of `source` to the new folder `target` in another form, one of `FORMS`.

    `storage` is how Regard's own form keeps matrices: in fp32, or as the rows of bytes that int8 inference computes
    with. Word vectors can also be written as word2vec's text file; `target` is then a file.
    """
    if storage not in get_args(Storage):
        raise UsageError(f"cannot store weights as {storage!r}; expected {' or '.join(get_args(Storage))}")
    if storage != "fp32" and form != "regard":
        raise UsageError(f"--store {storage} is for the form regard; {form} stores weights in its own way")
    if form not in FORMS:
        raise UsageError(f"cannot convert to {form!r}; known forms: {', '.join(FORMS)}")
    if target.exists():
        raise UsageError(f"{target} exists already; give a folder that does not")
    loaded = load_model(local_folder(source), allow_pickle=allow_pickle)
    if (writers := _models_with(form)) and loaded.name not in writers:
        raise UsageError(
            f"{source} is {with_article(loaded.name)} model; "
            f"only {with_article(' or '.join(writers))} has a form for {form}"
        )
    if form == WORD_LINES:
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
        save_model(target, loaded.name, loaded.model, extras, storage=storage)  # type: ignore[arg-type]  # checked
    elif form == "onnx":
        export_onnx(loaded.model, target, extras=extras)
    elif form == "ctranslate2":
        assert isinstance(tokenizer, PairTokenizer)
        side = tokenizer.target
        export_ctranslate2(
            loaded.model, target, source=tokenizer.source.vocabulary, target=side.vocabulary,
            start=side.start, end=side.end, unknown=side.unknown, extras=extras,
        )  # fmt: skip
    elif isinstance(tokenizer, PairTokenizer) and loaded.name == MARIAN_MODEL:
        side = tokenizer.target
        decoding = their_settings(read_decoding(loaded.folder).settings)
        export_marian(loaded.model, target, start=side.start, end=side.end, decoding=decoding, extras=for_transformers)
    else:
        export_model(loaded.name, loaded.model, target, values=_token_ids(loaded, tokenizer), extras=extras)


def _models_with(form: str) -> tuple[str, ...]:
    """The models that alone can be written in a form; none named where the form is for several kinds."""
    if form in ("marian", "ctranslate2"):
        return (MARIAN_MODEL,)
    return models_run_by("word_vectors") if form == WORD_LINES else ()


def _tokenizer(loaded: LoadedModel) -> PairTokenizer | TextTokenizer | None:
    """The tokenizer of a model folder; None for models of files that write no texts."""
    pipeline = find_pipeline(loaded.folder)
    if PIPELINES[pipeline].input != TEXT and not any((loaded.folder / name).is_file() for name in FILES):
        return None
    return (PairTokenizer if pipeline == TRANSLATOR else TextTokenizer).load(loaded.folder)


def _token_ids(loaded: LoadedModel, tokenizer: PairTokenizer | TextTokenizer | None) -> dict[str, int | None]:
    """The special token ids that transformers expects in the config of a model that writes."""
    pipeline = PIPELINES[MODELS[loaded.name].pipeline]
    if pipeline.ability == "transcribe" and (loaded.folder / GENERATION).is_file():
        declared = json.loads((loaded.folder / GENERATION).read_text("utf-8"))
        return {key: declared[key] for key in TOKEN_IDS if key in declared}
    if pipeline.ability != "write" or tokenizer is None:
        return {}
    side = tokenizer.target if isinstance(tokenizer, PairTokenizer) else tokenizer
    if pipeline.answers:  # with an encoder and a decoder; the decoder starts with the padding token
        start = side.start if isinstance(tokenizer, PairTokenizer) else side.pad
        return {"eos_token_id": side.end, "decoder_start_token_id": start}
    return {"bos_token_id": side.start, "eos_token_id": side.end}
