"""Model folders from one form to another, weights bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path

from regard.checkpoints import export_marian, load_model, save_model
from regard.checkpoints.hub import local_folder
from regard.data.tokenizers import PairTokenizer
from regard.errors import UsageError
from regard.inference.attending import ALIGNMENT
from regard.inference.pipelines import GENERATION, RECIPE

FORMS = ("regard", "marian")
KEPT = (RECIPE, ALIGNMENT, GENERATION)  # how the model decodes, and how its alignment is read


def convert(source: str | Path, target: Path, form: str, *, allow_pickle: bool = False) -> None:
    """Write the model of `source` to the new folder `target` in Regard's form or Hugging Face's Marian form."""
    if form not in FORMS:
        raise UsageError(f"cannot convert to {form!r}; known forms: {', '.join(FORMS)}")
    if target.exists():
        raise UsageError(f"{target} exists already; give a folder that does not")
    loaded = load_model(local_folder(source), allow_pickle=allow_pickle)
    if form == "marian" and loaded.name != "transformer":
        raise UsageError(f"{source} is a {loaded.name} model; only a transformer has a Marian form")
    tokenizer = PairTokenizer.load(loaded.folder)

    def extras(folder: Path) -> None:
        tokenizer.save(folder)
        for name in KEPT:
            if (loaded.folder / name).is_file() and not (folder / name).exists():
                shutil.copyfile(loaded.folder / name, folder / name)

    if form == "regard":
        save_model(target, loaded.name, loaded.model, extras)
    else:
        side = tokenizer.target
        export_marian(loaded.model, target, start=side.start, end=side.end, extras=extras)
