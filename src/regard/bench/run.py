"""Compares Regard with other engines on the same weights and input. Each engine has a process of its own.

The engines run in turn, because passing load on the machine affects neighbouring runs alike. Ratios are medians over
rounds in which every engine runs once. The answers of the engines are compared before anything is timed.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import sacrebleu
import torch
from torch import nn

from regard.bench.engines import CTRANSLATE2, ENGINES, OURS, THEIRS, Answer, Task
from regard.checkpoints import export_model, load_model, save_model
from regard.checkpoints.folder import local_folder
from regard.data.synthetic.phrasebook import phrases
from regard.data.tokenizers.pair import PairTokenizer
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import RegardError, UsageError, with_article
from regard.families.catalog import MODELS
from regard.families.translation.ctranslate2 import export_ctranslate2
from regard.families.translation.marian import export_marian
from regard.plan import decoding, machine
from regard.search.settings import Vocabulary

ROUNDS = 5  # the least number of rounds
REST = 0.25  # seconds before a run: threads of the previous engine keep spinning for a while
LENGTH, SOURCE = 32, 20  # tokens of an answer and of a source, for random models
TRAINED_LENGTH = 64  # the most tokens that a trained model may generate
VOCABULARY = {"tiny": 500, "small": 8000, "base": 16000}  # by Transformer preset; GPT and BERT use the same sizes
GPT2 = "gpt2"  # a separate shape for generation, with 124 M parameters
KINDS = {"translate": "transformer", "train": "transformer", "generate": "gpt", "encode": "bert"}


@dataclass(frozen=True)
class Subject:
    """The model that is measured, and the rows of tokens it reads."""

    name: str  # name in the catalog
    model: nn.Module
    rows: list[list[int]]
    vocabulary: Vocabulary
    trained: bool
    text: Callable[[list[int]], str] | None = None  # decodes an answer to text
    references: Sequence[str] = ()  # reference translations of the rows

    @property
    def config(self) -> Any:
        return self.model.config


@dataclass(frozen=True)
class Row:
    """One engine: how its answers compare and its seconds in every round, or the problem that stopped it."""

    engine: str
    agreement: str = ""
    bleu: float | None = None  # of its answers, if there are references
    seconds: float | None = None
    speed: float | None = None  # relative to Regard: median over the rounds of Regard's time / this engine's time
    rounds: list[float] = field(default_factory=list)
    problem: str = ""


@dataclass(frozen=True)
class Result:
    """All engines on one task, and the roofline of the task."""

    job: str
    batch: int
    beam: int
    length: int
    rows: list[Row]
    lower_bound: dict[str, float]  # the roofline, and what it was computed from
    others: float  # CPU cores that other processes used during the measurement

    @property
    def disturbed(self) -> str:
        return machine.warning(self.others)

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        return {**values, "floor": values.pop("lower_bound"), "disturbed": bool(self.disturbed)}


def measure(
    job: str,
    *,
    model: str = "",
    texts: Sequence[str] = (),
    references: Sequence[str] = (),
    shape: str = "small",
    batches: Sequence[int] = (1, 32),
    beams: Sequence[int] = (1, 5),
    engines: Sequence[str] = (),
    seconds: float = 6.0,
    threads: int = 2,
    joeynmt: str = "",
) -> Iterator[Result]:
    """Yield the result of each case as soon as it is measured; each takes about `seconds`.

    A trained `model` reads `texts`, or sentences of the phrasebook, and ends its answers itself. A random model of
    `shape` always generates the same number of tokens. `joeynmt` is a Python that has JoeyNMT, for training.
    """
    if job not in ENGINES:
        raise UsageError(f"cannot measure {job!r}; choose one of {', '.join(ENGINES)}")
    if unknown := [name for name in engines if name not in ENGINES[job]]:
        raise UsageError(f"{job} has no engine {unknown[0]!r}; it has {', '.join(ENGINES[job])}")
    chosen = ["regard", *(name for name in ENGINES[job] if name != "regard" and (name in engines or not engines))]
    subject = trained_subject(job, model, texts, references) if model else random_subject(job, shape, max(batches))
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        refused = write_forms(subject, folder)
        for batch in batches:
            for beam in beams if job in ("translate", "generate") else (1,):
                rows = [subject.rows[i % len(subject.rows)] for i in range(batch)]
                length = TRAINED_LENGTH if subject.trained else LENGTH
                task = Task(folder, rows, beam, length, not subject.trained, subject.vocabulary, joeynmt)
                yield _compare(job, subject, task, chosen, refused, seconds, threads)


def random_subject(job: str, shape: str, batch: int) -> Subject:
    """A model with random weights, large enough that successive tokens differ, and random rows."""
    if shape not in VOCABULARY and (job, shape) != ("generate", GPT2):
        raise UsageError(f"{job} has no shape {shape!r}; choose one of {', '.join(VOCABULARY)}; {GPT2} is for generate")
    torch.manual_seed(1)
    name, vocab, dropout = KINDS[job], VOCABULARY.get(shape, 50257), 0.1 if job == "train" else 0.0
    sizes = dict(MODELS["gpt" if shape == GPT2 else "transformer"].presets[shape])
    if name == "transformer":
        values = {
            **sizes, "source_vocab": vocab, "target_vocab": vocab, "pad": vocab - 1, "activation": "swish",
            "positions": "sinusoidal_halves", "tie": "all", "dropout": dropout,
        }  # fmt: skip
    else:
        depth = sizes.pop("depth", 0) or sizes.pop("encoder_depth")
        sizes.pop("decoder_depth", None)
        values = {**sizes, "depth": depth, "vocab": vocab, "max_length": 256, "dropout": dropout}
    model = MODELS[name].model(MODELS[name].config.parse(values)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=sizes["width"] ** -0.5)
    longest = LENGTH if job == "train" else SOURCE
    lengths = torch.linspace(longest, longest // 2, batch).long().tolist() if batch > 1 else [longest]
    rows = [[*torch.randint(2, vocab - 1, (length - 1,)).tolist(), 0] for length in lengths]
    if name == "gpt":
        rows = [[*row[:-1], 2] for row in rows]  # a prompt has no end token
    return Subject(name, model, rows, Vocabulary(start=vocab - 1, end=0, pad=vocab - 1), trained=False)


def trained_subject(job: str, model: str, texts: Sequence[str], references: Sequence[str] = ()) -> Subject:
    """The model of a folder, and the token rows of texts."""
    if job == "train":
        raise UsageError("a training step takes the same time whatever the weights; leave -m out and choose a --shape")
    loaded = load_model(local_folder(model))
    if loaded.name != KINDS[job]:
        raise UsageError(f"{model} is {with_article(loaded.name)} model; {job} measures {with_article(KINDS[job])}")
    if len(references) not in (0, len(texts)) or (references and job != "translate"):
        raise UsageError(
            f"there are {len(texts)} texts to translate and {len(references)} references; give one for each"
        )
    texts = list(texts) or [pair.source for pair in phrases("es", part="test", count=64, seed=1)]
    if job == "translate":
        pairs = PairTokenizer.load(loaded.folder)
        rows = pairs.source_ids(texts, pairs.target_languages[0])
        vocabulary = Vocabulary(pairs.target.start, pairs.target.end, pairs.target.pad)
        return Subject(loaded.name, loaded.model, rows, vocabulary, True, pairs.target.decode, references)
    tokenizer = TextTokenizer.load(loaded.folder)
    rows = [row.ids for row in tokenizer.encode(texts)]
    end = tokenizer.pad if tokenizer.end is None else tokenizer.end
    vocabulary = Vocabulary(tokenizer.start if tokenizer.start is not None else end, end, tokenizer.pad)
    return Subject(loaded.name, loaded.model, rows, vocabulary, trained=True)


def write_forms(subject: Subject, folder: Path) -> dict[str, str]:
    """Write the model in the form of every engine; returns the reasons for missing forms."""
    save_model(folder / OURS, subject.name, subject.model)
    refused = {}
    start, end, pad, _ = subject.vocabulary
    try:
        if subject.name == "transformer":
            export_marian(subject.model, folder / THEIRS, start=start, end=end)
        else:
            export_model(subject.name, subject.model, folder / THEIRS, values={"eos_token_id": end})
    except RegardError as error:
        refused["transformers"] = str(error)
    if subject.name == "transformer":
        numbers = [str(number) for number in range(max(subject.config.source_vocab, subject.config.target_vocab))]
        unknown = next(number for number in range(4) if number not in (start, end, pad))
        try:
            export_ctranslate2(
                subject.model, folder / CTRANSLATE2, source=numbers, target=numbers,
                start=start, end=end, unknown=unknown,
            )  # fmt: skip
        except RegardError as error:
            refused["ctranslate2"] = refused["ctranslate2 int8"] = str(error)
    return refused


def lower_bound(job: str, subject: Subject, task: Task, steps: int) -> decoding.LowerBound:
    """The roofline of a task, at the mean length of its rows and answers."""
    batch, length = len(task.rows), max(1, sum(map(len, task.rows)) // len(task.rows))
    match job:
        case "train":
            return decoding.training(subject.name, subject.config, batch, length)
        case "encode":
            return decoding.encoding(subject.name, subject.config, batch, length)
    return decoding.decoding(subject.name, subject.config, batch, task.beam, length, steps)


def _compare(
    job: str, subject: Subject, task: Task, chosen: Sequence[str], refused: dict[str, str], seconds: float, threads: int
) -> Result:
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(_worker(job, name, task, threads)) for name in chosen if name not in refused
        }
        problems = {**refused, **{name: worker.problem for name, worker in workers.items() if worker.problem}}
        ready = {name: worker for name, worker in workers.items() if not worker.problem}
        if "regard" not in ready:
            raise UsageError(f"regard itself cannot do this: {problems['regard']}")
        ours = ready["regard"].answer
        begin, busy, own = time.perf_counter(), machine.busy_seconds(), _own_seconds(ready)
        times: dict[str, list[float]] = {name: [] for name in ready}
        while len(times["regard"]) < ROUNDS or time.perf_counter() < begin + seconds:
            for name, worker in ready.items():
                time.sleep(REST)
                times[name].append(worker.timed())
        elapsed = time.perf_counter() - begin
        others = max(0.0, machine.busy_seconds() - busy - (_own_seconds(ready) - own)) / elapsed
    rows = [
        Row(
            name, agreement(ours, ready[name].answer), _bleu(subject, ready[name].answer), median(times[name]),
            median(a / b for a, b in zip(times["regard"], times[name], strict=True)), times[name],
        )
        if name in ready
        else Row(name, problem=problems[name])
        for name in chosen
    ]  # fmt: skip
    lengths = [len(row) + (not task.exactly) for row in ours if isinstance(row, list)]  # the end token is generated too
    bound = lower_bound(job, subject, task, max(1, sum(lengths) // len(lengths)) if lengths else 1)
    return Result(job, len(task.rows), task.beam, max(lengths, default=0), rows, _bound_values(bound), others)


def _bound_values(bound: decoding.LowerBound) -> dict[str, float]:
    """The machine's rates, measured now, and the time of the lower bound at these rates."""
    rate, reading = machine.multiply_rate(), machine.bandwidth(bound.step_bytes)
    return {
        "seconds": bound.seconds(rate, reading), "flops": bound.flops, "bytes": bound.nbytes,
        "flops_per_second": rate, "bytes_per_second": reading,
    }  # fmt: skip


def agreement(ours: Answer, theirs: Answer) -> str:
    """How well two engines agree: the number of identical answers, or the largest difference."""
    pairs = list(zip(ours, theirs, strict=True))
    if any(isinstance(a, list) for a, _ in pairs):
        return f"{sum(a == b for a, b in pairs)}/{len(pairs)} answers the same"
    return f"differs by {max(abs(a - b) for a, b in pairs if isinstance(a, float) and isinstance(b, float)):.0e}"


def _bleu(subject: Subject, answers: Answer) -> float | None:
    if not subject.references or subject.text is None:
        return None
    said = [subject.text(each) for each in answers if isinstance(each, list)]
    wanted = [subject.references[i % len(subject.references)] for i in range(len(said))]
    return sacrebleu.corpus_bleu(said, [wanted], force=True).score


class Worker:
    """An engine in a process of its own."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self.answer: Answer
        self.answer, self.problem, self.used = connection.recv()

    def timed(self) -> float:
        """The seconds of one run."""
        self.connection.send(True)
        seconds, self.used = self.connection.recv()
        return seconds


@contextmanager
def _worker(job: str, name: str, task: Task, threads: int) -> Iterator[Worker]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, job, name, task, threads), daemon=True)
    with _environment(OMP_NUM_THREADS=str(threads)):
        process.start()
    theirs.close()
    try:
        yield Worker(ours)
    finally:
        ours.close()  # the worker ends when its pipe is closed
        process.join()


def _work(connection: Connection, job: str, name: str, task: Task, threads: int) -> None:
    """The process of an engine: load, answer once, then run each time it is asked to."""
    torch.set_num_threads(threads)
    try:
        engine = ENGINES[job][name](task)
        answer = engine.answer()
        engine.run()  # warm-up
    except Exception as error:  # most often an error of another library
        connection.send(([], " ".join(str(error).split()) or type(error).__name__, time.process_time()))
        return
    connection.send((answer, "", engine.used()))
    while True:
        try:
            connection.recv()
        except (EOFError, ConnectionResetError):
            return
        begin = time.perf_counter()
        engine.run()
        connection.send((time.perf_counter() - begin, engine.used()))


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _own_seconds(workers: dict[str, Worker]) -> float:
    """CPU seconds of this process and of its engines."""
    return time.process_time() + sum(worker.used for worker in workers.values())
