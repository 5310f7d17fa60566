"""Speech recognition: the prepared data of a run, the loss by labels of frames (CTC), teacher forcing of a decoder, or
both, and error rates by jiwer, of normalised text: case and punctuation do not count."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from regard.data.batch import Ids, SpeechBatch
from regard.data.loader import Loader, Rows, in_batches, spread_evenly
from regard.data.sources import PARTS, Part
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import train_vocabulary
from regard.errors import DataError
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.speech.audio import Samples
from regard.families.speech.conformer import ConformerConfig, subsampled
from regard.families.speech.ctc import JOINT, needed_frames, write_speech
from regard.families.speech.data import ROUNDED_LABELS, SpeechBatches, SpeechStore, Spoken, SpokenRows, read_spoken
from regard.families.speech.features import Features, LogMelConfig, SpecAugment, speech_features
from regard.families.speech.manifest import SPEECH
from regard.families.speech.recipe import SpeechRecipe
from regard.training.initial_model import build_model, initial_folder, initial_tokenizer, planned_config
from regard.training.losses import Loss, cross_entropy, ctc
from regard.training.safeguards import Poll
from regard.training.task import SAMPLES, Forward, Sample, SupervisedTask, Values, loader_options

if TYPE_CHECKING:
    from regard.families.speech.pipeline import Transcriber

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
            between, join = _between(recipe, self.tokenizer, store), recipe.data.join
            count = {"train": join.count, "valid": join.valid_count, "test": join.test_count}[part]
            self.parts[part] = SpokenRows(
                store, rows, self.audio.rate, join, count, self.tokenizer.end, seed, varied, between
            )
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


def _recordings(recipe: SpeechRecipe, part: Part, skipped: list[str], poll: Poll) -> Iterator[Spoken]:
    """The recordings of a part, each checked as it streams by."""
    data, rate, digits = recipe.data, _audio(recipe).rate, (recipe.data.drawn.shortest, recipe.data.drawn.longest)
    source = data.train if data.train == SPEECH else getattr(data, part)
    for spoken in read_spoken(
        source, rate, part=part, count=data.drawn.of(part), seed=recipe.seed, digits=digits,
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


NOTHING = SpecAugment(band_masks=0, time_masks=0)


def speech_loss(
    model: Forward,
    config: ConformerConfig,
    features: Features,
    batch: SpeechBatch,
    *,
    ctc_weight: float = JOINT,
    smoothing: float = 0.0,
    factored: bool = False,
) -> Loss:
    """CTC's loss of the labels of frames, and the cross-entropy of a decoder; of a model with both, `ctc_weight` of the
    first and the rest of the second."""
    inputs = batch.inputs if config.decoder_depth else None
    heard = model(features.values, features.mask, inputs, batch.labels_mask, factored=factored)
    total = torch.zeros((), device=features.values.device)
    weight = ctc_weight if config.decoder_depth else 1.0
    if heard.frames is not None and weight:
        labels = batch.labels_mask.sum(dim=1) - 1  # without the end token
        total = total + weight * ctc(heard.frames, heard.mask.sum(dim=1), batch.labels, labels, config.pad)
    if heard.taught is not None:
        share = 1 - weight if config.ctc else 1.0
        total = total + share * cross_entropy(heard.taught, batch.labels, batch.labels_mask, smoothing)
    return Loss(total, batch.labels_mask.sum())


class SpeechTask(SupervisedTask[SpeechBatch]):
    """Utterances with their texts."""

    recipe: SpeechRecipe

    @classmethod
    def write(cls, recipe: SpeechRecipe, folder: Path, poll: Poll) -> None:
        """Decode the recordings to the rate of the model, learn the vocabulary and encode the texts."""
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

    def __init__(self, recipe: SpeechRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device, training = recipe, device, recipe.training
        self.config, self.corpus = planned_config(recipe.model, ConformerConfig), SpeechCorpus(recipe, folder)
        self.summary = f"{self.corpus.summary}; from {recipe.data.train}; wer of text: {NORMALISATION}"
        if training.validate_every and not len(self.corpus.parts["valid"]):
            raise DataError(
                "there is no recording for validation; give data.valid, raise data.split, or switch validation off "
                "with training.validate_every = 0"
            )
        spoken = self.corpus.parts["train"]
        rounded = ROUNDED_LABELS if training.shapes_recur else 1
        make = SpeechBatches(spoken, recipe.augmentation, self.corpus.tokenizer.pad, rounded)
        self.loader = Loader(partial(spoken.plan, training.batch), make, **loader_options(training, device))
        self.factored = training.factored(device.type)

    def build(self) -> nn.Module:
        return build_model(self.recipe.model, self.corpus.tokenizer)

    def loss(self, model: Forward, batch: SpeechBatch) -> Loss:
        """The loss of augmented spectrograms."""
        features = self._features(batch)
        hidden = self.recipe.augmentation(features.values, features.mask.sum(dim=1), batch.draws)
        return self._loss(model, features._replace(values=hidden), batch, self.recipe.training.label_smoothing)

    def _features(self, batch: SpeechBatch) -> Features:
        return speech_features(batch.samples, batch.lengths, self.corpus.audio)

    def _loss(self, model: Forward, features: Features, batch: SpeechBatch, smoothing: float = 0.0) -> Loss:
        weight = self.recipe.training.ctc_weight
        return speech_loss(
            model, self.config, features, batch, ctc_weight=weight, smoothing=smoothing, factored=self.factored
        )

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """Loss and, of some utterances, errors of words and sentences and the share of blanks."""
        values, self.shown = self._measure(model, "valid", self.recipe.training.validate_utterances, poll)
        return values

    def test(self, model: nn.Module, poll: Poll) -> Values:
        count = len(self.corpus.parts["test"])
        return self._measure(model, "test", count, poll)[0] if count else {}

    def save(self, folder: Path) -> None:
        self.corpus.tokenizer.save(folder)
        self.corpus.audio.save(folder)

    def _batches(self, part: Part, rows: Rows, poll: Poll) -> Iterator[SpeechBatch]:
        make = SpeechBatches(self.corpus.parts[part], NOTHING, self.corpus.tokenizer.pad)
        for some in in_batches(rows, self.recipe.training.batch):
            poll()
            yield make(some, (0, 0)).to(self.device)

    def _measure(self, model: nn.Module, part: Part, count: int, poll: Poll) -> tuple[Values, list[Sample]]:
        """The metrics of a part, and some texts; `count` utterances, evenly spread, are also transcribed."""
        spoken = self.corpus.parts[part]
        values = {"loss": self._mean_loss(model, part, poll)}
        chosen = spread_evenly(count, len(spoken))
        if not len(chosen):
            return values, []
        tokenizer, decoding = self.corpus.tokenizer, self.recipe.decoding.replace(n_best=1)
        texts, blanks, frames = list[str](), 0, 0
        for batch in self._batches(part, chosen, poll):
            heard = write_speech(model, *self._features(batch), decoding, tokenizer)
            texts += [tokenizer.decode(best[0].tokens) for best in heard.texts]
            blanks += sum(int((logs.argmax(axis=-1) == tokenizer.pad).sum()) for logs in heard.frames)
            frames += sum(map(len, heard.frames))
        references = [spoken.utterance(int(number)).text for number in chosen]
        rates = error_rates(references, texts)
        values |= {"wer": rates.wer, "sentence_errors": rates.wrong_texts}
        values |= {"blanks": blanks / frames} if frames else {}
        shown = range(0, len(texts), -(-len(texts) // SAMPLES))
        return values, [Sample(source=f"utterance {i}", target=references[i], output=texts[i]) for i in shown]

    @torch.inference_mode()
    def _mean_loss(self, model: nn.Module, part: Part, poll: Poll) -> float:
        total, tokens = torch.zeros((), device=self.device, dtype=torch.float64), 0
        for batch in self._batches(part, np.arange(len(self.corpus.parts[part])), poll):
            total += self._loss(model, self._features(batch), batch).total
            tokens += batch.tokens
        return total.item() / tokens


NORMALISATION = "NFKC, lower case, no punctuation"  # printed beside every rate
NO_WORD = re.compile(r"[^\w\s']|_|(?<!\w)'|'(?!\w)")  # punctuation, except apostrophes within words


class ErrorRates(NamedTuple):
    """Errors per word (WER) and per character (CER) of the references, the kinds of word errors, and the share of
    texts that are not exactly right. Rates are above 1 if too much was heard."""

    wer: float
    cer: float
    words: int  # of the references
    substitutions: int
    deletions: int  # words of the references that are missing
    insertions: int
    wrong_texts: float


def error_rates(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorRates:
    """The error rates of pairs of texts, of which there is at least one, after normalisation."""
    import jiwer

    said, heard = ([normalise(text) for text in texts] for texts in (references, hypotheses))
    words = jiwer.process_words(said, heard)
    wrong = sum(one != other for one, other in zip(said, heard, strict=True))
    return ErrorRates(
        wer=float(words.wer),
        cer=float(jiwer.process_characters(said, heard).cer),
        words=words.hits + words.substitutions + words.deletions,
        substitutions=words.substitutions,
        deletions=words.deletions,
        insertions=words.insertions,
        wrong_texts=wrong / len(said),
    )


def normalise(text: str) -> str:
    """A text in lower case without punctuation, as error rates are usually reported."""
    return " ".join(NO_WORD.sub(" ", unicodedata.normalize("NFKC", text).casefold()).split())


def evaluate_speech(transcriber: Transcriber, data: str, options: EvaluationOptions) -> Evaluation:
    """Error rates of words (WER) and characters (CER), by kind of error, and the share of recordings that are not
    exactly right."""
    from regard.families.speech.pipeline import TranscribeOptions

    settings = None if options.beam is None else transcriber.settings.replace(beam=options.beam)
    unread, references, texts, seconds = list[str](), list[str](), list[str](), 0.0

    def audio() -> Iterator[Samples]:
        for spoken in read_spoken(
            data, transcriber.rate, part="test", count=options.count, seed=options.seed,
            refuse=lambda error: unread.append(str(error)),
        ):  # fmt: skip
            references.append(spoken.text)
            yield spoken.samples

    for transcript in transcriber.stream(audio(), TranscribeOptions(settings=settings)):
        if isinstance(transcript, DataError):
            raise transcript
        texts.append(transcript.text)
        seconds += transcript.seconds
        options.measured(1)
    if not texts:
        raise DataError(f"{data} has no recording that can be read")
    rates = error_rates(references, texts)
    scores: dict[str, object] = {
        "recordings": len(texts),
        "minutes": seconds / 60,
        "words": rates.words,
        "text": NORMALISATION,
        "wer": rates.wer,
        "cer": rates.cer,
        "substitutions": rates.substitutions,
        "deletions": rates.deletions,
        "insertions": rates.insertions,
        "recordings with an error": rates.wrong_texts,
    }
    return Evaluation(scores, unread)
