"""Converts model folders between Regard's form, Hugging Face's and those of other programs, with the same answers."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_args

from regard.checkpoints import LoadedModel, export_model, load_model, save_model
from regard.checkpoints.folder import local_folder
from regard.checkpoints.models import Storage
from regard.data.images.files import PREPROCESSING
from regard.data.tokenizers.huggingface import FILES
from regard.data.tokenizers.pair import PairTokenizer
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import UsageError, with_article
from regard.families.catalog import FORMS, MODELS, PIPELINES
from regard.families.contract import TEXT, TRANSLATOR
from regard.families.loading import find_pipeline
from regard.look.forced_pass import ALIGNMENT
from regard.search.settings import GENERATION, RECIPE

OURS, HUGGINGFACE = "regard", "huggingface"
KEPT = (RECIPE, ALIGNMENT, GENERATION, PREPROCESSING)  # files on decoding, alignment and preprocessing
TOKEN_IDS = ("bos_token_id", "eos_token_id", "decoder_start_token_id")


@dataclass(frozen=True)
class Conversion:
    """A model that is converted, with what belongs to it."""

    loaded: LoadedModel

    @cached_property
    def tokenizer(self) -> PairTokenizer | TextTokenizer | None:
        """The tokenizer of the model; None for models of files that write no texts."""
        folder, pipeline = self.loaded.folder, find_pipeline(self.loaded.folder)
        if PIPELINES[pipeline].input != TEXT and not any((folder / name).is_file() for name in FILES):
            return None
        return (PairTokenizer if pipeline == TRANSLATOR else TextTokenizer).load(folder)

    def write_extras(self, folder: Path) -> None:
        """Write the tokenizer, and what else belongs to the model, into a folder of the converted one."""
        if self.tokenizer is not None:
            self.tokenizer.save(folder)
        pipeline = PIPELINES[find_pipeline(self.loaded.folder)]
        further = pipeline.load(pipeline.files)(self.loaded.folder) if pipeline.files else []
        for name in (*KEPT, *further):
            if (self.loaded.folder / name).is_file() and not (folder / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.loaded.folder / name, folder / name)


def convert(source: str | Path, target: Path, form: str, *, storage: str = "fp32", allow_pickle: bool = False) -> None:
    """Write the model of `source` to the new folder `target` in another form: ours, Hugging Face's or one of `FORMS`.

    `storage` is how Regard's own form keeps matrices: in fp32, or as the rows of bytes that int8 inference computes
    with. Some forms are a file; `target` is then that file.
    """
    if storage not in get_args(Storage):
        raise UsageError(f"cannot store weights as {storage!r}; expected {' or '.join(get_args(Storage))}")
    if storage != "fp32" and form != OURS:
        raise UsageError(f"--store {storage} is for the form {OURS}; {form} stores weights in its own way")
    if form not in (OURS, HUGGINGFACE, *FORMS):
        raise UsageError(f"cannot convert to {form!r}; known forms: {', '.join((OURS, HUGGINGFACE, *FORMS))}")
    if target.exists():
        raise UsageError(f"{target} exists already; give a folder that does not")
    loaded = load_model(local_folder(source), allow_pickle=allow_pickle)
    if form in FORMS and loaded.name not in (able := FORMS[form].models):
        raise UsageError(
            f"{source} is {with_article(loaded.name)} model; "
            f"only {with_article(' or '.join(able))} has a form for {form}"
        )
    conversion = Conversion(loaded)
    if form == HUGGINGFACE and isinstance(conversion.tokenizer, PairTokenizer):
        form = MODELS[loaded.name].huggingface or form
    if form == OURS:
        save_model(target, loaded.name, loaded.model, conversion.write_extras, storage=storage)  # type: ignore[arg-type]  # checked
    elif form == HUGGINGFACE:
        values = _token_ids(conversion)
        export_model(loaded.name, loaded.model, target, values=values, extras=conversion.write_extras)
    else:
        entry = FORMS[form]
        entry.load(entry.writer)(conversion, target)


def _token_ids(conversion: Conversion) -> dict[str, int | None]:
    """The special token ids that transformers expects in the config of a model that writes."""
    loaded, tokenizer = conversion.loaded, conversion.tokenizer
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
