"""The translators that the package brings: English into five languages, and these five into English.

Two languages of which neither is English go through English. Nothing is read before a direction is asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import regard
from regard.data.formats.languages import find_language, language_name, same_language
from regard.errors import CheckpointError, UsageError
from regard.families.translation.routes import find_route

if TYPE_CHECKING:
    from regard.data.tokenizers.unknown_words import UnknownWord
    from regard.families.translation.pivot import Pivot
    from regard.families.translation.translation import Translation
    from regard.families.translation.translator import Translator

FOLDER = Path(__file__).with_name("shipped")
NAMES = ("en-many", "many-en")
LEARNER = "phrasebook"  # the recipe of the small translator of `regard demo`
BUILT_IN = "builtin"  # as model.init: the one of these that has the languages of the data
PIVOT = "en"


class ShippedModel(NamedTuple):
    """One of these models, not loaded."""

    folder: Path
    source_languages: tuple[str, ...]
    target_languages: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{BUILT_IN}:{self.folder.name}"


def shipped_models() -> list[ShippedModel]:
    """The models of the package; none in a checkout of the sources that lacks their weights."""
    return [_described(FOLDER / name) for name in NAMES if (FOLDER / name / "model.safetensors").is_file()]


def built_in_models() -> list[ShippedModel]:
    """The models of the package or, without their weights, the small one that `regard demo` has trained, if it has."""
    learnt = learner_folder()
    return shipped_models() or ([_described(learnt)] if (learnt / "manifest.json").is_file() else [])


def learner_folder() -> Path:
    """Where `regard demo` trains. Each version of recipe and phrasebook has its own folder, so none is outdated."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("regard")) / f"{LEARNER}-{_edition()}" / "demo"


@cache
def _edition() -> str:
    from regard.training.recipe.files import recipe_text

    words = sorted((Path(regard.__file__).parent / "data" / "synthetic" / "phrasebook").glob("*.[pt]*"))
    made_of = [recipe_text(LEARNER).encode(), *(file.read_bytes() for file in words)]
    return hashlib.sha256(b"".join(made_of)).hexdigest()[:8]


def shipped_folder(name: str = "") -> Path:
    """The folder of the built-in model of that name, or of the first."""
    folders = {model.folder.name: model.folder for model in _complete()}
    if name and name not in folders:
        raise UsageError(f"there is no built-in model {name!r} here; there are: {', '.join(folders)}")
    return folders[name] if name else next(iter(folders.values()))


def shipped_languages() -> list[str]:
    """The languages that these models read and write."""
    models = _complete()
    return list(dict.fromkeys(code for model in models for code in (*model.source_languages, *model.target_languages)))


class Direction(NamedTuple):
    """From which language into which, and the models that lead there."""

    source: str
    to: str
    models: tuple[ShippedModel, ...]
    detected: bool = False  # whether the source language was found by the text

    def __str__(self) -> str:
        through = f" through {PIVOT}" if len(self.models) > 1 else ""
        return f"from {self.source}{' (detected)' if self.detected else ''} to {self.to}{through}"


def find_direction(text: str, source: str = "", to: str = "") -> Direction:
    """The direction of a text. Without `source`, its language is found; a text that is not English needs no `to`."""
    known = shipped_languages()
    given, to = _known(source, known), _known(to, known)
    detected = given or _language_of(text, known, to)
    source = detected or next(code for code in (PIVOT, *known) if not same_language(code, to))
    to = to or _only_target(source)
    if same_language(source, to):
        raise UsageError(f"{language_name(to)} ({to}) is the language of the text and of the translation; give another")
    return Direction(source, to, find_route(_complete(), source, to), bool(detected) and not given)


def model_into(to: str) -> str:
    """The name of the model that translates into a language, or can learn to."""
    return f"{BUILT_IN}:{NAMES[same_language(to, PIVOT) if to else 0]}"


class ShippedTranslator:
    """Translates between all languages of these models; each is loaded when a text first needs it."""

    pipeline: ClassVar[str] = "translator"

    def __init__(self, **loading: Any) -> None:
        self.name, self._loading = BUILT_IN, loading
        self._loaded: dict[Path, Translator] = {}

    def translate(self, text: str | Sequence[str], *, to: str = "", source: str = "", **options: Any) -> Any:
        """Translate one text or several; `options` are those of `Translator.translate`.

        Without `source`, the language of each text is found. A text that is not English goes into English without `to`.
        """
        from regard.data.arguments import all_texts

        texts = all_texts(text)
        directions = [find_direction(each, source, to) for each in texts]
        answers: dict[int, Translation] = {}
        for direction in dict.fromkeys(directions):
            rows = [row for row, each in enumerate(directions) if each == direction]
            found = self.between(direction).translate([texts[row] for row in rows], to=direction.to, **options)
            answers |= zip(rows, found, strict=True)
        return answers[0] if isinstance(text, str) else [answers[row] for row in range(len(texts))]

    def between(self, direction: Direction) -> Translator | Pivot:
        """What translates in a direction."""
        steps = [self._load(model) for model in direction.models]
        if len(steps) == 1:
            return steps[0]
        from regard.families.translation.pivot import Pivot

        return Pivot(*steps)

    def translator_for(self, text: str, to: str = "", source: str = "") -> tuple[Translator, str]:
        """The one model that translates a text, and its target language; two through English are refused."""
        direction = find_direction(text, source, to)
        if len(direction.models) > 1:
            raise UsageError(f"{direction}: two models translate this one after the other; look at each step by itself")
        return self._load(direction.models[0]), direction.to

    def unknown_words(self, text: str) -> list[UnknownWord]:
        """The words of a text that become unknown tokens."""
        source = _language_of(text, shipped_languages(), "") or PIVOT
        reads = next(model for model in _complete() if find_language(model.source_languages, source))
        return self._load(reads).unknown_words(text)

    def _load(self, model: ShippedModel) -> Translator:
        from regard.families.translation.translator import Translator

        if model.folder not in self._loaded:
            self._loaded[model.folder] = Translator.load(model.folder, **self._loading)
        return self._loaded[model.folder]


def _complete() -> list[ShippedModel]:
    if not (models := built_in_models()):
        raise CheckpointError(
            "no built-in translator is here; `regard demo` trains a small one in minutes, from English into Spanish "
            "and Portuguese; or give another model (-m, model.init), or train one (regard train --help)"
        )
    return models


def _described(folder: Path) -> ShippedModel:
    """A model's languages, by its tokenizer's settings alone."""
    from regard.data.tokenizers.base import read_languages

    settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    return ShippedModel(folder, read_languages(settings["source"]), tuple(settings["targets"]))


def _known(code: str, known: Sequence[str]) -> str:
    found = find_language(known, code) if code else ""
    if found is None:
        raise UsageError(f"the built-in models do not know {code!r}; their languages are {', '.join(known)}")
    return found


def _language_of(text: str, known: Sequence[str], to: str) -> str:
    """The language of a text if it is one of these other than `to`; English unless another is clearly likelier."""
    from regard.documents.language_id import choose_language

    sources = [code for code in known if not to or not same_language(code, to)]
    return find_language(sources, choose_language(text, sources, to, preferred=PIVOT).language) or ""


def _only_target(source: str) -> str:
    """The language that a text is translated into if none is named."""
    if not same_language(source, PIVOT):
        return PIVOT
    targets = [code for model in _complete() if PIVOT in model.source_languages for code in model.target_languages]
    if len(targets) > 1:
        raise UsageError(f"the text is English; say which language to translate it into (--to): {', '.join(targets)}")
    return targets[0]
