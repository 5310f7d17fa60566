"""The prepared data of a run: recordings and the tokens of their texts on disk, divided into parts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.checkpoints import write_folder
from regard.data.batch import Ids
from regard.data.sources import PARTS, Part
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import train_vocabulary
from regard.errors import DataError
from regard.families.speech.conformer import ConformerConfig, subsampled
from regard.families.speech.ctc import needed_frames
from regard.families.speech.data import SpeechStore, Spoken, SpokenRows, read_spoken
from regard.families.speech.features import LogMelConfig
from regard.families.speech.manifest import SPEECH
from regard.families.speech.recipe import DrawnSpeechSection, JoinConfig, SpeechRecipe
from regard.training.initial_model import initial_folder, initial_tokenizer, planned_config
from regard.training.safeguards import Poll

TOKENIZER, SKIPPED, STORE = "tokenizer", "skipped.json", "recordings"


class SpeechCorpus:
    """The prepared utterances that a model is trained, validated and tested on."""

    def __init__(self, recipe: SpeechRecipe, folder: Path) -> None:
        self.tokenizer, self.audio = TextTokenizer.load(folder / TOKENIZER), _audio(recipe)
        self.skipped: list[str] = json.loads((folder / SKIPPED).read_text(encoding="utf-8"))
        self.parts: dict[Part, SpokenRows] = {}
        assert self.tokenizer.end is not None
        for part, (store, rows) in _divided(recipe, folder).items():
            varied = part == "train"
            seed = recipe.seed if varied else recipe.seed + 1 + PARTS.index(part)
            between = _between(recipe, self.tokenizer, store)
            self.parts[part] = SpokenRows(
                store, rows, self.audio.rate, recipe.data.join, _count(recipe.data.join, part), self.tokenizer.end,
                seed, varied, between,
            )  # fmt: skip
        if not len(self.parts["train"]):
            raise _nothing(recipe)

    @property
    def summary(self) -> str:
        """How much there is of every part, in words."""
        counts, train = [f"{len(self.parts[part]):,}" for part in PARTS], self.parts["train"]
        seconds = train.store.lengths()[train.rows, train.store.usual].sum() / self.audio.rate
        speakers = len({train.store.rows[row].speaker for row in train.rows.tolist()})
        left_out = f"; {len(self.skipped):,} left out, the first: {self.skipped[0]}" if self.skipped else ""
        return (
            f"{counts[0]} utterances; {counts[1]} for validation, {counts[2]} for testing; made of "
            f"{len(train.rows):,} recordings of {speakers} speakers, {seconds / 60:.1f} minutes{left_out}"
        )

    @staticmethod
    def prepare(recipe: SpeechRecipe, folder: Path, poll: Poll) -> None:
        """Decode the recordings to the rate of the model, learn the vocabulary and encode the texts, unless the folder
        exists from before."""
        if not folder.exists():
            write_folder(folder, lambda temporary: _write(recipe, temporary, poll))


def _write(recipe: SpeechRecipe, folder: Path, poll: Poll) -> None:
    data, skipped = recipe.data, list[str]()
    for part in PARTS:
        if getattr(data, part) or data.train == SPEECH:
            speeds = data.speeds if part == "train" else (1.0,)
            SpeechStore.write(folder / f"{STORE}-{part}", _recordings(recipe, part, skipped, poll), speeds)
    stores = _stores(folder)
    texts = [row.text for row in stores["train"].rows]
    if not texts:
        raise _nothing(recipe)
    if data.join.longest:  # the vocabulary must have what stands between the words of strings
        texts = [" ".join(texts[place : place + 2]) for place in range(0, len(texts), 2)]
    init = recipe.model.init
    tokenizer = initial_tokenizer(init) if init else train_vocabulary(texts, recipe.tokenizer, "terminated")
    _between(recipe, tokenizer, stores["train"])  # fails before anything is kept
    tokenizer.save(folder / TOKENIZER)
    for store in stores.values():
        ids = [encoded.ids for encoded in tokenizer.encode([row.text for row in store.rows])]
        for problem in _misfits(recipe, store, ids).values():
            _skip(recipe, DataError(problem), skipped)
        SpeechStore.write_tokens(store.folder, ids)
    (folder / SKIPPED).write_text(json.dumps(skipped, ensure_ascii=False), encoding="utf-8")


def _recordings(recipe: SpeechRecipe, part: Part, skipped: list[str], poll: Poll) -> Iterator[Spoken]:
    """The recordings of a part, each checked as it streams by."""
    data, rate, digits = recipe.data, _audio(recipe).rate, (recipe.data.drawn.shortest, recipe.data.drawn.longest)
    source = data.train if data.train == SPEECH else getattr(data, part)
    count = _count(data.drawn, part)
    for spoken in read_spoken(
        source, rate, part=part, count=count, seed=recipe.seed, digits=digits,
        refuse=lambda error: _skip(recipe, error, skipped),
    ):  # fmt: skip
        poll()
        if not spoken.text:
            _skip(recipe, DataError(f"{spoken.name}: has no text"), skipped)
        elif len(spoken.samples) > data.longest * rate and source != SPEECH:
            seconds = len(spoken.samples) / rate
            problem = f"{spoken.name}: is {seconds:.1f} s long, but data.longest is {data.longest:g} s"
            _skip(recipe, DataError(f"{problem}; cut it with start and end in a manifest"), skipped)
        else:
            yield spoken


def _skip(recipe: SpeechRecipe, error: DataError, skipped: list[str]) -> None:
    if not recipe.data.skip_bad:
        raise DataError(f"{error}; leave such recordings out with data.skip_bad = true") from None
    skipped.append(str(error))


def _nothing(recipe: SpeechRecipe) -> DataError:
    return DataError(f"{recipe.data.train}: there is no recording to learn from")


def _audio(recipe: SpeechRecipe) -> LogMelConfig:
    """What spectrograms are made of: as the model to start from has them, or as the recipe says."""
    return LogMelConfig.load(initial_folder(recipe.model.init)) if recipe.model.init else recipe.audio


def _count(section: JoinConfig | DrawnSpeechSection, part: Part) -> int:
    return {"train": section.count, "valid": section.valid_count, "test": section.test_count}[part]


def _stores(folder: Path) -> dict[Part, SpeechStore]:
    return {part: SpeechStore.open(place) for part in PARTS if (place := folder / f"{STORE}-{part}").is_dir()}


def _between(recipe: SpeechRecipe, tokenizer: TextTokenizer, store: SpeechStore) -> tuple[int, ...]:
    """The tokens of the space between the texts of a string; none if words have no spaces of their own."""
    if not recipe.data.join.longest or not len(store):
        return ()
    text = store.rows[0].text
    alone, twice = (encoded.ids[:-1] for encoded in tokenizer.encode([text, f"{text} {text}"]))
    between = twice[len(alone) : len(twice) - len(alone)]
    if twice != [*alone, *between, *alone] or tokenizer.unknown in between:
        raise DataError(
            f"data.join makes strings of recordings, but the tokens of {text!r} twice are not its own with those "
            "of a space between; set tokenizer.kind = 'word' or 'character', or start from a model of strings"
        )
    return tuple(between)


def _misfits(recipe: SpeechRecipe, store: SpeechStore, ids: Sequence[Ids]) -> dict[int, str]:
    """Why texts do not fit into the frames of their recordings at their fastest, by the numbers of the recordings: the
    loss of the labels of their frames would be infinite."""
    if not planned_config(recipe.model, ConformerConfig).ctc:
        return {}
    audio, problems = _audio(recipe), dict[int, str]()
    for number, (samples, row) in enumerate(zip(store.lengths().min(axis=1).tolist(), ids, strict=True)):
        # in a string one more, for the space, or a blank before another of the same label
        needed = needed_frames(np.asarray(row).tolist()[:-1]) + bool(recipe.data.join.longest)
        frames = subsampled(audio.frames(samples))
        if needed > frames:
            problems[number] = (
                f"{store.rows[number].name}: its text needs {needed} frames, but the model has {frames} for it: it is "
                "too short for its text"
            )
    return problems


def _divided(recipe: SpeechRecipe, folder: Path) -> dict[Part, tuple[SpeechStore, NDArray[np.int64]]]:
    """The store and the recordings of every part."""
    stores, held = _stores(folder), recipe.data.held_out_speaker
    fitting: dict[Part, NDArray[np.int64]] = {}
    for part, store in stores.items():
        ids = [store.ids(number) for number in range(len(store))]
        fitting[part] = np.setdiff1d(np.arange(len(store)), list(_misfits(recipe, store, ids)))
    train, left, test = stores["train"], fitting["train"], np.empty(0, dtype=np.int64)
    if held:
        speakers = np.array([row.speaker for row in train.rows])
        if held not in speakers:
            names = ", ".join(sorted(set(speakers.tolist()))[:20])
            raise DataError(f"data.held_out_speaker = {held!r}: nobody has this name; there are {names}")
        left, test = left[speakers[left] != held], left[speakers[left] == held]
    order = np.random.default_rng(recipe.seed).permutation(left)
    share, aside = round(recipe.data.split * len(order)), 0
    parts: dict[Part, tuple[SpeechStore, NDArray[np.int64]]] = {}
    for part in ("valid", "test"):
        if part in stores:
            parts[part] = stores[part], fitting[part]
        elif part == "test" and held:
            parts[part] = train, test
        else:
            parts[part] = train, np.sort(order[aside : aside + share])
            aside += share
    kept = order[aside:][: recipe.data.count or None]
    return {"train": (train, np.sort(kept)), **parts}
