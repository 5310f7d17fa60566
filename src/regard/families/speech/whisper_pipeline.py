"""Speech in any language to text, with times: Whisper folders, ours or Hugging Face's."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor, nn

from regard.attention import record
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import CheckpointError
from regard.families.speech.audio import Samples
from regard.families.speech.features import LogMelConfig, log_mel
from regard.families.speech.pipeline import HeardAttention, Segment, TranscribeOptions, Transcriber, Word
from regard.families.speech.whisper import HALVED, SpokenRule, SpokenTokens
from regard.look.neurons import record_neurons
from regard.search.pipeline import load_for_pipeline
from regard.search.search import Hypothesis, search
from regard.search.settings import CONFIG, GENERATION, SearchSettings, Vocabulary, read_decoding
from regard.search.start import SearchStart

SMOOTHED = 7  # frames of the median filter
CROSS = "decoder.*.cross"
NO_SPEECH, UNSURE = 0.6, -1.0  # a piece without speech: this probable, and a text of a lower mean log-probability
REPEATED, TEMPERATURES = 2.4, (0.2, 0.4, 0.6, 0.8, 1.0)  # how much smaller zlib makes a loop, and what is tried then
SUPPRESSING = ("suppress_tokens", "begin_suppress_tokens")  # settings of a folder that its search follows


class Written(NamedTuple):
    """What was found for a piece, best first, and the probability that nothing is said in it."""

    hypotheses: list[Hypothesis]
    no_speech: float


class WhisperTranscriber(Transcriber):
    """A Whisper with its tokenizer, spectrograms and decoding defaults."""

    pipeline: ClassVar[str] = "whisper_transcriber"
    gives_words = True

    def __init__(
        self, model: nn.Module, tokenizer: TextTokenizer, audio: LogMelConfig, tokens: SpokenTokens, **options: Any
    ) -> None:
        super().__init__(model, tokenizer, audio, **options)
        self.tokens = tokens
        config: Any = model.config
        self.places, self.positions = int(config.max_frames), int(config.max_length)  # of the encoder, of the decoder
        self.samples = HALVED * self.places * audio.hop  # that the encoder reads
        self.longest = self.samples / audio.rate
        self.languages, self.takes_prompt = tuple(tokens.languages), tokens.previous is not None

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", allow_pickle: bool = False) -> WhisperTranscriber:
        """Read a model folder."""
        loaded = load_for_pipeline(cls.pipeline, folder, device, allow_pickle)
        config: Any = loaded.config
        audio, tokenizer = LogMelConfig.load(loaded.folder), TextTokenizer.load(loaded.folder)
        if audio.mels != config.bands:
            raise CheckpointError(f"{folder} makes spectrograms of {audio.mels} bands; its model reads {config.bands}")
        vocabulary = tokenizer.library.get_vocab(with_added_tokens=True)
        tokens = SpokenTokens.read(_declared(loaded.folder), vocabulary, str(folder))
        settings = read_decoding(loaded.folder, followed=SUPPRESSING).settings
        return cls(loaded.model, tokenizer, audio, tokens, settings=settings, name=Path(folder).name)

    @torch.inference_mode()
    def hear(self, pieces: Sequence[Samples], options: TranscribeOptions) -> list[list[Segment]]:
        """The segments of each piece: one without times, or as many as the model tells apart."""
        memory = self.encode(pieces)
        languages = [options.language] * len(pieces) if options.language else self.detect(memory)
        earlier = self.text_ids(options.prompt.strip()) if options.prompt else []
        prompts = [self.prompt(language, earlier, times=options.timestamps) for language in languages]
        texts = self._without_loops(memory, prompts, options, seeds=[_seed(piece) for piece in pieces])
        return [
            []
            if text.no_speech > NO_SPEECH and text.hypotheses[0].score < UNSURE
            else self._segments(text.hypotheses[0], row, language, len(piece) / self.rate, words=options.words)
            for piece, text, language, row in zip(pieces, texts, languages, memory, strict=True)
        ]

    def encode(self, pieces: Sequence[Samples]) -> Float[Tensor, "S L D"]:
        """What the encoder makes of pieces, each with silence behind it up to the length that the model reads."""
        return self.fast.encode(self.features(pieces))

    @torch.inference_mode()
    def detect(self, memory: Float[Tensor, "S L D"]) -> list[str]:
        """The language of each piece, the most probable after the start token; "" if the model knows one alone."""
        if not self.tokens.languages:
            return [""] * len(memory)
        start = torch.full((len(memory), 1), self.tokens.start, device=self.device)
        logits = self.fast.extend(start, self.fast.first_state(memory))[:, -1]
        names, numbers = list(self.tokens.languages), list(self.tokens.languages.values())
        return [names[place] for place in logits[:, numbers].argmax(dim=-1).tolist()]

    @torch.inference_mode()
    def write(
        self,
        memory: Float[Tensor, "S L D"],
        prompts: Sequence[Sequence[int]],
        settings: SearchSettings,
        *,
        times: bool,
        seeds: Sequence[str] = (),
    ) -> list[Written]:
        """The texts of pieces after their prompts, which are equally long and not part of the texts; equal seeds draw
        equal texts."""
        ids, state = torch.tensor(prompts, device=self.device), self.fast.first_state(memory)
        silent = [0.0] * len(prompts)
        if ids.shape[1] > 1:
            logits, place = self.fast.extend(ids[:, :-1], state), list(prompts[0]).index(self.tokens.start)
            if place < logits.shape[1]:
                silent = logits[:, place].softmax(dim=-1)[:, self.tokens.no_speech].tolist()
        room = self.positions - ids.shape[1]
        limit = min(room, settings.max_length or settings.longest or room)
        start = SearchStart(
            state, ids[:, -1], [limit] * len(ids), seeds, rule=SpokenRule(self.tokens, self.device, times=times),
        )  # fmt: skip
        end = self.tokens.end
        texts = search(self.fast, start, settings, Vocabulary(end, end, end))
        return [Written(*both) for both in zip(texts, silent, strict=True)]

    @torch.inference_mode()
    def attention(self, samples: Samples) -> HeardAttention:
        """What the model hears in samples, and where it looks for every token."""
        memory = self.encode([samples])
        (language,) = self.detect(memory)
        options = TranscribeOptions(language=language)
        (written,) = self._without_loops(memory, [self.prompt(language)], options, [_seed(samples)])
        ids, seconds = written.hypotheses[0].tokens, len(samples) / self.rate
        with record_neurons(self.model, CROSS) as seen:
            weights = self._looks(memory[0], ids, language, seconds) if ids else {}
        spectrogram = log_mel(torch.from_numpy(samples), self.audio).numpy()
        words = self._aligned(weights, [ids], seconds)[0] if ids else []
        looks = {name: rows[:, :-1] for name, rows in weights.items()}  # the last row writes the end
        text, tokens = self.tokenizer.decode(ids).strip(), self.tokenizer.shown(ids)
        neurons = {
            name: neurons.part(slice(-len(ids) - 1, -1), slice(looks[name].shape[-1])) for name, neurons in seen.items()
        }
        return HeardAttention(text, spectrogram, tokens, self.step, looks, [], words, neurons)

    @torch.inference_mode()
    def words(self, samples: Samples, ids: Sequence[int], language: str) -> list[Word]:
        """The words of a text that is said in samples, and when."""
        seconds = len(samples) / self.rate
        looks = self._looks(self.encode([samples])[0], ids, language, seconds)
        return self._aligned(looks, [ids], seconds)[0]

    @property
    def step(self) -> float:
        """Seconds of one vector of the encoder, and of one time token."""
        return self.longest / self.places

    def features(self, pieces: Sequence[Samples]) -> Float[Tensor, "S F M"]:
        """The spectrograms of pieces, each with silence behind it."""
        padded = np.zeros((len(pieces), self.samples), dtype=np.float32)
        for row, piece in zip(padded, pieces, strict=True):
            row[: len(piece)] = piece
        return log_mel(torch.from_numpy(padded).to(self.device), self.audio)

    def prompt(self, language: str, earlier: Sequence[int] = (), *, times: bool = False) -> list[int]:
        """The tokens that are fed before a text."""
        return self.tokens.prompt(language, earlier, times=times, places=self.positions)

    def text_ids(self, text: str) -> list[int]:
        """The tokens of a text that is said, without special ones."""
        return list(self.tokenizer.library.encode(f" {text}", add_special_tokens=False).ids)

    def _without_loops(
        self,
        memory: Float[Tensor, "S L D"],
        prompts: Sequence[Sequence[int]],
        options: TranscribeOptions,
        seeds: Sequence[str],
    ) -> list[Written]:
        """The texts of pieces; one that repeats itself is drawn anew, more and more freely, until it does not."""
        settings = options.settings or self.settings
        written = self.write(memory, prompts, settings, times=options.timestamps, seeds=seeds)
        for temperature in () if settings.sample else TEMPERATURES:
            rows = [row for row, text in enumerate(written) if self._repeats(text.hypotheses[0])]
            if not rows:
                break
            drawn = settings.replace(sample=True, temperature=temperature, beam=1, n_best=1)
            some, their_seeds = [prompts[row] for row in rows], [seeds[row] for row in rows]
            again = self.write(memory[rows], some, drawn, times=options.timestamps, seeds=their_seeds)
            for row, text in zip(rows, again, strict=True):
                written[row] = text
        return written

    def _repeats(self, best: Hypothesis) -> bool:
        """Whether a text is so regular that it must be a loop."""
        text = self.tokenizer.decode(best.tokens).encode()
        return len(text) > REPEATED * len(zlib.compress(text))

    def _segments(
        self, best: Hypothesis, memory: Float[Tensor, "L D"], language: str, seconds: float, *, words: bool
    ) -> list[Segment]:
        """The texts between the times of a hypothesis; what comes after the last time ends with the piece."""
        spans, text, start = list[tuple[list[int], float, float]](), list[int](), 0.0
        for token in [*best.tokens, None]:
            if token is not None and token < self.tokens.first_time:
                text.append(token)
                continue
            time = seconds if token is None else min((token - self.tokens.first_time) * self.step, seconds)
            if self.tokenizer.decode(text).strip():
                spans.append((text, start, time))
            text, start = [], time
        ids = [token for tokens, _, _ in spans for token in tokens]
        looks = self._looks(memory, ids, language, seconds) if words and ids else {}
        said = iter(self._aligned(looks, [tokens for tokens, _, _ in spans], seconds)) if looks else iter(())
        return [
            Segment(self.tokenizer.decode(tokens).strip(), start, end, next(said, []), best.score, language)
            for tokens, start, end in spans
        ]

    def _looks(
        self, memory: Float[Tensor, "L D"], ids: Sequence[int], language: str, seconds: float
    ) -> dict[str, Float[np.ndarray, "H T F"]]:
        """The cross-attention of every layer while a text is written, its end included, over the frames of audio."""
        prompt = self.prompt(language)
        inputs = torch.tensor([[*prompt, *ids]], device=self.device)
        decoder: Any = self.model  # the plain module, which can be recorded
        frames = max(1, min(round(seconds / self.step), self.places))
        with record(self.model, CROSS) as looks:
            decoder.extend(inputs, decoder.first_state(memory[None]))
        return {name: rows[0, :, len(prompt) - 1 :, :frames].float().cpu().numpy() for name, rows in looks.items()}

    def _aligned(
        self, weights: Mapping[str, Float[np.ndarray, "H T F"]], texts: Sequence[Sequence[int]], seconds: float
    ) -> list[list[Word]]:
        """The words of texts that follow each other and their times, by the heads that follow the audio."""
        layers = list(weights.values())
        chosen = self.tokens.heads or [
            (layer, head) for layer in range(len(layers) // 2, len(layers)) for head in range(len(layers[layer]))
        ]
        frames = first_frames(np.stack([layers[layer][head] for layer, head in chosen]))
        begins = [min(float(frame) * self.step, seconds) for frame in frames]
        words, before = list[list[Word]](), 0
        for ids in texts:
            words.append(self._timed(ids, begins[before : before + len(ids) + 1]))
            before += len(ids)
        return words

    def _timed(self, ids: Sequence[int], begins: Sequence[float]) -> list[Word]:
        """The words of a text, from when its tokens begin; the last number is when the text ends."""
        numbers, words = self.tokenizer.word_numbers(ids), []
        for number, word in enumerate(self.tokenizer.decode(ids).split()):
            places = [place for place, of_word in enumerate(numbers) if of_word == number]
            first, last = (places[0], places[-1]) if places else (len(ids) - 1, len(ids) - 1)
            words.append(Word(word, begins[first], begins[last + 1]))
        return words


def _seed(piece: Samples) -> str:
    """Equal pieces draw equal texts."""
    return blake2b(piece.tobytes()).hexdigest()


def _declared(folder: Path) -> dict[str, Any]:
    """The values of a folder's config.json and generation_config.json."""
    values: dict[str, Any] = {}
    for name in (CONFIG, GENERATION):
        if (folder / name).is_file():
            read = json.loads((folder / name).read_text("utf-8"))
            values |= {key: value for key, value in read.items() if value is not None}
    return values


def first_frames(weights: Float[np.ndarray, "H T F"]) -> Int[np.ndarray, T]:
    """The frame at which each token begins, from the attention of some heads: normalised over the tokens, smoothed
    over time, and averaged."""
    spread = weights.std(axis=1, keepdims=True)
    even = (weights - weights.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1.0)
    tokens, frames = warping_path(-_smoothed(even).mean(axis=0))
    begins = np.flatnonzero(np.diff(tokens, prepend=-1))
    return frames[begins]


def warping_path(costs: Float[np.ndarray, "T F"]) -> tuple[Int[np.ndarray, N], Int[np.ndarray, N]]:
    """The rows and columns of the path of least cost from the first corner to the last; each step goes on by a row, a
    column, or both."""
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0.0
    for row in range(rows):
        before, here = total[row], total[row + 1]
        entered = np.minimum(before[:-1], before[1:])
        best = np.inf
        for column, cost in enumerate(costs[row]):  # a frame depends on the frame before, so this cannot be vectorised
            best = min(entered[column], best) + cost
            here[column + 1] = best
    return _traced(total)


def _traced(total: Float[np.ndarray, "T1 F1"]) -> tuple[Int[np.ndarray, N], Int[np.ndarray, N]]:
    """The path back from the last corner."""
    row, column = total.shape[0] - 1, total.shape[1] - 1
    path = []
    while row and column:
        path.append((row - 1, column - 1))
        steps = {(1, 1): total[row - 1, column - 1], (1, 0): total[row - 1, column], (0, 1): total[row, column - 1]}
        down, across = min(steps, key=lambda step: steps[step])
        row, column = row - down, column - across
    tokens, frames = np.array(path[::-1], dtype=np.int64).reshape(-1, 2).T
    return tokens, frames


def _smoothed(weights: Float[np.ndarray, "H T F"]) -> Float[np.ndarray, "H T F"]:
    """The median of the frames around each."""
    half = SMOOTHED // 2
    if weights.shape[-1] <= half:
        return weights
    padded = np.pad(weights, ((0, 0), (0, 0), (half, half)), mode="reflect")
    return np.median(sliding_window_view(padded, SMOOTHED, axis=-1), axis=-1)
