"""From manifests and folders to stored samples and encoded texts, once per run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.checkpoints import write_folder
from regard.data.batch import Ids
from regard.data.sources import PARTS, Part
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import VocabularyConfig, train_vocabulary
from regard.errors import DataError
from regard.families.speech.audio import Samples, read_audio
from regard.families.speech.conformer import subsampled
from regard.families.speech.ctc import needed_frames
from regard.families.speech.data import SpeechStore, Spoken, SpokenRows
from regard.families.speech.features import LogMelConfig
from regard.families.speech.manifest import Recording, read_recordings, utterances
from regard.families.speech.recipe import SpeechSection
from regard.training.safeguards import Poll

TOKENIZER, SKIPPED, STORE = "tokenizer", "skipped.json", "recordings"
VOICES = 6  # speakers of the built-in speech are told apart by number only


@dataclass(frozen=True)
class SpeechCorpus:
    """The utterances that a model is trained, validated and tested on."""

    tokenizer: TextTokenizer
    audio: LogMelConfig
    parts: Mapping[Part, SpokenRows]
    skipped: list[str]

    @property
    def summary(self) -> str:
        counts = [f"{len(self.parts[part]):,}" for part in PARTS]
        train = self.parts["train"]
        seconds = train.store.lengths()[train.rows, train.store.usual].sum() / self.audio.rate
        speakers = len({train.store.rows[row].speaker for row in train.rows.tolist()})
        text = f"{counts[0]} utterances; {counts[1]} for validation, {counts[2]} for testing; made of "
        text += f"{len(train.rows):,} recordings of {speakers} speakers, {seconds / 60:.1f} minutes"
        left_out = f"; {len(self.skipped):,} left out, the first: {self.skipped[0]}" if self.skipped else ""
        return text + left_out


@dataclass(frozen=True)
class SpeechPreparation:
    """How the files of a recipe become a corpus; with `labelled` every text must fit the frames of its recording."""

    data: SpeechSection
    vocabulary: VocabularyConfig
    audio: LogMelConfig
    seed: int
    labelled: bool
    tokenizer: TextTokenizer | None = None

    def prepare(self, folder: Path, poll: Poll) -> None:
        """Write the corpus into `folder`, unless it exists from before."""
        if not folder.exists():
            write_folder(folder, lambda temporary: self._write(temporary, poll))

    def open(self, folder: Path) -> SpeechCorpus:
        """The corpus that was written into `folder`."""
        tokenizer = TextTokenizer.load(folder / TOKENIZER)
        assert tokenizer.end is not None
        join, end = self.data.join, tokenizer.end
        counts = {"train": join.count, "valid": join.valid_count, "test": join.test_count}
        parts: dict[Part, SpokenRows] = {}
        for part, (store, rows) in self._divided(folder).items():
            varied = part == "train"
            seed = self.seed if varied else self.seed + 1 + PARTS.index(part)
            between = self._between(tokenizer, store)
            parts[part] = SpokenRows(store, rows, self.audio.rate, join, counts[part], end, seed, varied, between)
        if not len(parts["train"]):
            raise DataError(f"{self.data.train}: there is no recording to learn from")
        skipped = json.loads((folder / SKIPPED).read_text(encoding="utf-8"))
        return SpeechCorpus(tokenizer, self.audio, parts, skipped)

    def _write(self, folder: Path, poll: Poll) -> None:
        skipped: list[str] = []
        for part in PARTS:
            place = getattr(self.data, part)
            found = self._drawn(part, poll) if self.data.built_in else self._read(place, skipped, poll)
            if place or self.data.built_in:
                SpeechStore.write(folder / f"{STORE}-{part}", found, self.data.speeds if part == "train" else (1.0,))
        stores = {part: SpeechStore.open(place) for part, place in self._places(folder)}
        texts = [row.text for row in stores["train"].rows]
        if not texts:
            raise DataError(f"{self.data.train}: there is no recording to learn from")
        if self.data.join.longest:  # the vocabulary must have what stands between the words of strings
            texts = [" ".join(texts[place : place + 2]) for place in range(0, len(texts), 2)]
        tokenizer = self.tokenizer or train_vocabulary(texts, self.vocabulary, "terminated")
        self._between(tokenizer, stores["train"])  # fails before anything is kept
        tokenizer.save(folder / TOKENIZER)
        for store in stores.values():
            ids = [each.ids for each in tokenizer.encode([row.text for row in store.rows])]
            self._refuse_misfits(store, ids, skipped)
            SpeechStore.write_tokens(store.folder, ids)
        (folder / SKIPPED).write_text(json.dumps(skipped, ensure_ascii=False), encoding="utf-8")

    def _between(self, tokenizer: TextTokenizer, store: SpeechStore) -> tuple[int, ...]:
        """The tokens of the space between the texts of a string; none if words have no spaces of their own."""
        if not self.data.join.longest or not len(store):
            return ()
        text = store.rows[0].text
        alone, twice = (each.ids[:-1] for each in tokenizer.encode([text, f"{text} {text}"]))
        between = twice[len(alone) : len(twice) - len(alone)]
        if twice != [*alone, *between, *alone] or tokenizer.unknown in between:
            raise DataError(
                f"data.join makes strings of recordings, but the tokens of {text!r} twice are not its own with those "
                "of a space between; set tokenizer.kind = 'word' or 'character', or start from a model of strings"
            )
        return tuple(between)

    def _places(self, folder: Path) -> Iterator[tuple[Part, Path]]:
        return ((part, place) for part in PARTS if (place := folder / f"{STORE}-{part}").is_dir())

    def _refuse_misfits(self, store: SpeechStore, ids: Sequence[Ids], skipped: list[str]) -> None:
        """Refuse texts that do not fit into the frames of their recordings: their loss would be infinite."""
        for number in self._misfits(store, ids):
            name, frames = store.rows[number].name, self._frames(store)[number]
            problem = (
                f"{name}: its text needs {self._needed(ids[number])} frames, but the model has {frames} for it: it is "
                "too short for its text"
            )
            if not self.data.skip_bad:
                raise DataError(f"{problem}; leave such recordings out with data.skip_bad = true")
            skipped.append(problem)

    def _misfits(self, store: SpeechStore, ids: Sequence[Ids]) -> list[int]:
        if not self.labelled:
            return []
        needed = np.array([self._needed(row) for row in ids], dtype=np.int64)
        return np.flatnonzero(needed > self._frames(store)).tolist()

    def _needed(self, ids: Ids) -> int:
        """Frames for the labels; in a string one more, for the space, or a blank before another of the same label."""
        return needed_frames(np.asarray(ids).tolist()[:-1]) + bool(self.data.join.longest)

    def _frames(self, store: SpeechStore) -> NDArray[np.int64]:
        """The frames that the model has for each recording at its fastest."""
        samples = store.lengths().min(axis=1)
        return np.array([subsampled(self.audio.frames(int(count))) for count in samples], dtype=np.int64)

    def _divided(self, folder: Path) -> dict[Part, tuple[SpeechStore, NDArray[np.int64]]]:
        """The store and the recordings of every part."""
        stores = {part: SpeechStore.open(place) for part, place in self._places(folder)}
        train, held = stores["train"], self.data.held_out_speaker
        fitting = {part: self._fitting(store) for part, store in stores.items()}
        left, test = fitting["train"], np.empty(0, dtype=np.int64)
        if held:
            speakers = np.array([row.speaker for row in train.rows])
            if held not in speakers:
                known = ", ".join(sorted(set(speakers.tolist()))[:20])
                raise DataError(f"data.held_out_speaker = {held!r}: nobody has this name; there are {known}")
            left, test = left[speakers[left] != held], left[speakers[left] == held]
        order = np.random.default_rng(self.seed).permutation(left)
        share = round(self.data.split * len(order))
        aside = 0
        parts: dict[Part, tuple[SpeechStore, NDArray[np.int64]]] = {}
        for part in ("valid", "test"):
            if part in stores:
                parts[part] = stores[part], fitting[part]
            elif part == "test" and held:
                parts[part] = train, test
            else:
                parts[part] = train, np.sort(order[aside : aside + share])
                aside += share
        kept = order[aside:][: self.data.count or None]
        return {"train": (train, np.sort(kept)), **parts}

    def _fitting(self, store: SpeechStore) -> NDArray[np.int64]:
        assert store.tokens is not None
        bad = self._misfits(store, [store.tokens[number] for number in range(len(store))])
        return np.setdiff1d(np.arange(len(store)), bad)

    def _drawn(self, part: Part, poll: Poll) -> Iterator[Spoken]:
        sizes, digits = self.data.drawn, (self.data.drawn.shortest, self.data.drawn.longest)
        drawn = utterances(part=part, count=sizes.of(part), seed=self.seed, digits=digits, rate=self.audio.rate)
        for number, each in enumerate(drawn):
            poll()
            yield Spoken(f"{part} {number}", each.text, f"voice {number % VOICES}", each.samples)

    def _read(self, path: str, skipped: list[str], poll: Poll) -> Iterator[Spoken]:
        """The recordings of a path, each checked as it streams by."""
        before: tuple[Recording, Samples] | None = None
        for each in read_recordings(path) if path else ():
            poll()
            try:
                if before is None or not isinstance(each.audio, Path) or before[0].audio != each.audio:
                    before = each, read_audio(each.audio, self.audio.rate, each.name)
                yield self._part_of(each, before[1])
            except DataError as error:
                if not self.data.skip_bad:
                    raise DataError(f"{error}; leave such recordings out with data.skip_bad = true") from None
                skipped.append(str(error))

    def _part_of(self, recording: Recording, samples: Samples) -> Spoken:
        rate, text = self.audio.rate, " ".join(recording.text.split())
        if not text:
            raise DataError(f"{recording.name}: has no text")
        part = recording.part_of(samples, rate)
        if len(part) > self.data.longest * rate:
            raise DataError(
                f"{recording.name}: is {len(part) / rate:.1f} s long, but data.longest is {self.data.longest:g} s; cut "
                "it with start and end in a manifest"
            )
        return Spoken(recording.name, text, recording.speaker, part)
