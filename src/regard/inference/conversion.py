"""Model folders from one form to another, weights bit for bit."""

from __future__ import annotations

from pathlib import Path

from regard.checkpoints import export_marian, load_model, save_model
from regard.checkpoints.hub import local_folder
from regard.data.tokenizers import PairTokenizer
from regard.errors import UsageError

FORMS = ("regard", "marian")


def convert(source: str | Path, target: Path, form: str, *, allow_pickle: bool = False) -> None:
    """Write the model of `source` to the new folder `target` in Regard's form or Hugging Face's Marian form."""
    if form not in FORMS:
        raise UsageError(f"cannot convert to {form!r}; known forms: {', '.join(FORMS)}")
    if target.exists():
        raise UsageError(f"{target} exists already; give a folder that does not")
    loaded = load_model(local_folder(source), allow_pickle=allow_pickle)
    tokenizer = PairTokenizer.load(loaded.folder)
    if form == "regard":
        save_model(target, loaded.name, loaded.model, tokenizer.save)
    else:
        side = tokenizer.target
        export_marian(loaded.model, target, start=side.start, end=side.end, extras=tokenizer.save)
