"""Tokens a second that a GPU writes: the search captured as graphs, without, and transformers' generate, in turn.

python bench/gpu_generation.py [--only gpt2,marian] [--precisions fp32,bf16] [--seconds PER_LINE] [--budget SECONDS]
                               [--no-peers] [--no-checks] [--profile] [--compiled CASES] [--log FILE] [--json FILE]

The models have random weights and the shapes of GPT-2 124M and of Marian (Transformer) base. All answers have the same
length, so that all engines do the same work. The answers with graphs are compared with those without: first for small
models of every kind under many settings, then for the timed models. A failure is reported and the other cases still
run; a table of all results is printed last.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from kernels import kernels
from regard.checkpoints import export_model
from regard.families.language.gpt import PRESETS as GPTS
from regard.families.language.gpt import Gpt, GptConfig
from regard.families.language.t5 import PRESETS as T5S
from regard.families.language.t5 import T5, T5Config
from regard.families.translation.marian import export_marian
from regard.families.translation.transformer import PRESETS as TRANSFORMERS
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.runtime.convert import GPU_PRECISIONS, fast_model
from regard.search.cuda_graphs import GraphModel, cuda_graph
from regard.search.search import search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.start import from_prompt, from_source

Answers = list[list[int]]
AIMS = {("gpt2", 1, 1): 1000, ("marian", 1, 1): 1000, ("marian", 64, 1): 60_000, ("marian", 64, 5): 40_000}
CASES = {"gpt2": ((1, 1), (32, 1)), "marian": ((1, 1), (64, 1), (64, 5))}  # batch, beam
LENGTHS = {"gpt2": (16, 128), "marian": (32, 64)}  # tokens read and tokens generated
VOCABULARY = {"gpt2": 50257, "marian": 32000}
ROUNDS = 3  # the least number of rounds


@dataclass
class Line:
    """The result of one engine in one case, or the reason that it has none."""

    model: str
    batch: int
    beam: int
    precision: str
    engine: str
    tokens_per_second: float = 0.0
    first_seconds: float = 0.0  # of the first answer, with all preparation
    agreement: str = ""
    problem: str = ""
    rounds: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        case = f"{self.model:8}{self.batch:5}{self.beam:5}  {self.precision:6}{self.engine:14}"
        if self.problem:
            return f"{case}{self.problem}"
        aim = AIMS.get((self.model, self.batch, self.beam))
        reached = f"  {self.tokens_per_second / aim:5.2f}x the aim" if aim and self.engine == "captured" else ""
        return f"{case}{self.tokens_per_second:11,.0f}{self.first_seconds:9.2f} s  {self.agreement}{reached}"


def random_model(name: str) -> nn.Module:
    """A model whose random weights are large enough that successive tokens differ."""
    torch.manual_seed(1)
    vocab = VOCABULARY[name]
    if name == "gpt2":
        model: nn.Module = Gpt(GptConfig.parse({**GPTS["gpt2"], "vocab": vocab}))
    else:
        values = {
            **TRANSFORMERS["base"], "source_vocab": vocab, "target_vocab": vocab, "pad": vocab - 1, "tie": "all",
            "activation": "swish", "positions": "sinusoidal_halves",
        }  # fmt: skip
        model = Transformer(TransformerConfig.parse(values))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=model.config.width**-0.5)
    return model.eval()


def vocabulary(name: str) -> Vocabulary:
    last = VOCABULARY[name] - 1
    return Vocabulary(last, last, last) if name == "gpt2" else Vocabulary(start=last, end=0, pad=last)


def ours(name: str, steps: Any, batch: int, beam: int) -> Callable[[], Answers]:
    read, written = LENGTHS[name]
    source = torch.randint(2, VOCABULARY[name] - 1, (batch, read), generator=torch.Generator().manual_seed(batch))
    source = source.cuda()
    mask = torch.ones_like(source, dtype=torch.bool)
    settings = SearchSettings(beam=beam, min_length=written, max_length=written)
    special = vocabulary(name)

    def answer() -> Answers:
        continues = name == "gpt2"
        start = (
            from_prompt(steps, source, mask, settings)
            if continues
            else from_source(steps, source, mask, settings, special.start)
        )
        return [best.tokens for best, *_ in search(steps, start, settings, special)]

    return answer


def theirs(name: str, model: Any, batch: int, beam: int) -> Callable[[], Answers]:
    read, written = LENGTHS[name]
    source = torch.randint(2, VOCABULARY[name] - 1, (batch, read), generator=torch.Generator().manual_seed(batch))
    source, ends = source.cuda(), vocabulary(name)
    options = {
        "num_beams": beam, "do_sample": False, "max_new_tokens": written, "min_new_tokens": written, "max_length": None,
        "forced_eos_token_id": None, "pad_token_id": ends.pad, "eos_token_id": ends.end, "length_penalty": 1.0,
    }  # fmt: skip

    @torch.inference_mode()
    def answer() -> Answers:
        rows = model.generate(input_ids=source, attention_mask=torch.ones_like(source), **options)
        return rows[:, read if name == "gpt2" else 1 :].tolist()

    return answer


def peer(name: str, model: nn.Module, folder: Path) -> Any:
    """The same weights in transformers."""
    import transformers

    logging.getLogger("transformers").setLevel(logging.ERROR)
    start, end, _ = vocabulary(name)
    if name == "gpt2":
        export_model("gpt", model, folder, values={"eos_token_id": end})
        return transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    export_marian(model, folder, start=start, end=end)
    return transformers.MarianMTModel.from_pretrained(folder).eval()


def timed(answer: Callable[[], Answers]) -> tuple[float, Answers]:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    answers = answer()
    torch.cuda.synchronize()
    return time.perf_counter() - begin, answers


def agreement(answers: Answers, others: Answers) -> str:
    """The number of identical answers and, if some differ, the mean length of the common beginning."""
    pairs = list(zip(answers, others, strict=True))
    same = sum(a == b for a, b in pairs)
    shared = [next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a)) for a, b in pairs]
    far = "" if same == len(pairs) else f", {sum(shared) / len(shared):.0f} tokens on average"
    return f"{same}/{len(pairs)} as eager{far}"


def compare(name: str, precision: str, engines: dict[str, Any], batch: int, beam: int, seconds: float) -> list[Line]:
    """Run every engine once, then all in turn while time is left."""
    lines, makers, answers = {}, dict[str, Callable[[], Answers]](), dict[str, Answers]()
    for engine, model in engines.items():
        line = lines[engine] = Line(name, batch, beam, precision, engine)
        try:
            makers[engine] = (theirs if engine == "transformers" else ours)(name, model, batch, beam)
            line.first_seconds, answers[engine] = timed(makers[engine])
        except Exception as error:
            line.problem = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            print(f"--- {line}", traceback.format_exc()[-3000:], sep="\n", flush=True)
            makers.pop(engine, None)
    begin, rounds = time.perf_counter(), 0
    while makers and (rounds < ROUNDS or time.perf_counter() < begin + seconds):
        rounds += 1
        for engine, answer in makers.items():
            lines[engine].rounds.append(timed(answer)[0])
    for engine in makers:
        line = lines[engine]
        line.tokens_per_second = batch * LENGTHS[name][1] / median(line.rounds)
        line.agreement = agreement(answers[engine], answers["eager"]) if "eager" in answers else ""
    for line in lines.values():
        print(line, flush=True)
    return list(lines.values())


def checks() -> list[str]:
    """Compare the answers with and without graphs, for small models of every kind under many settings."""
    found, sizes = [], {"source_vocab": 200, "target_vocab": 200}
    models: dict[str, nn.Module] = {
        "transformer": Transformer(TransformerConfig.parse({**TRANSFORMERS["tiny"], **sizes})),
        "rotary": Transformer(TransformerConfig.parse({**TRANSFORMERS["tiny"], **sizes, "positions": "rotary"})),
        "gpt": Gpt(GptConfig.parse({**GPTS["nano"], "vocab": 200})),
        "llama": Gpt(GptConfig.parse({**GPTS["llama-tiny"], "vocab": 200})),
        "t5": T5(T5Config.parse({**T5S["tiny"], **sizes})),
    }
    settings = {
        "greedy": SearchSettings(max_length=40),
        "beam": SearchSettings(beam=4, n_best=3, max_length=40, length_penalty=0.6),
        "bans": SearchSettings(beam=2, min_length=12, no_repeat_ngram=2, max_length=40),
        "penalties": SearchSettings(
            beam=3,
            repetition_penalty=1.3,
            presence_penalty=0.4,
            frequency_penalty=0.3,
            logit_bias={5: 3.0},
            max_length=40,
        ),
        "sampled": SearchSettings(sample=True, n_best=2, temperature=0.8, top_k=50, top_p=0.9, max_length=40),
    }
    source = torch.randint(3, 200, (5, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(9) < torch.tensor([9, 4, 7, 9, 2])[:, None]
    for name, model in models.items():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=1.5 * model.config.width**-0.5)
        form = fast_model(model.cuda().eval())
        runner = GraphModel(form)
        for way, each in settings.items():
            try:
                task = source.cuda(), mask.cuda(), each
                starts = [
                    from_prompt(s, *task) if isinstance(model, Gpt) else from_source(s, *task, 1)
                    for s in (runner, form)
                ]
                pairs = [
                    [[h.tokens for h in row] for row in search(s, start, each, Vocabulary(1, 2, 0))]
                    for s, start in zip((runner, form), starts, strict=True)
                ]
                found.append(f"{name:14}{way:12}{'same' if pairs[0] == pairs[1] else f'DIFFERENT: {pairs}'[:300]}")
            except Exception as error:
                found.append(f"{name:14}{way:12}{type(error).__name__}: {' '.join(str(error).split())[:200]}")
                print("---", found[-1], traceback.format_exc()[-2000:], sep="\n", flush=True)
            runner.failed = False
    return found


def profile(name: str, runner: GraphModel, batch: int, beam: int) -> None:
    """The kernels of a captured step and their time."""
    answer = ours(name, runner, batch, beam)
    answer()
    print(f"profile of {name}, batch {batch}, beam {beam}:", *kernels(answer, LENGTHS[name][1]), sep="\n")


class Both:
    """Writes to standard output and to a file."""

    def __init__(self, file: Path):
        self.parts = sys.stdout, file.open("w", encoding="utf-8")

    def write(self, text: str) -> None:
        for part in self.parts:
            part.write(text)

    def flush(self) -> None:
        for part in self.parts:
            part.flush()


def main(options: argparse.Namespace) -> None:
    if options.log:
        sys.stdout = Both(options.log)  # type: ignore[assignment]
    warnings.filterwarnings("error", message="the search goes on without graphs")  # here that is a failure
    torch.backends.cuda.matmul.allow_tf32 = False
    begin = time.perf_counter()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    checked = [] if options.no_checks else checks()
    print(*checked, sep="\n", flush=True)
    lines = []
    for name in options.only.split(","):
        model = random_model(name)
        with tempfile.TemporaryDirectory() as place:
            other = None
            if not options.no_peers:
                try:
                    other = peer(name, model, Path(place) / "theirs")
                except Exception:
                    print("--- no peer", traceback.format_exc()[-2000:], sep="\n", flush=True)
        for precision in options.precisions.split(","):
            form = fast_model(model.cuda(), precision)
            runner = GraphModel(form)
            compiled = GraphModel(form, lambda step, device: cuda_graph(torch.compile(step), device))
            for batch, beam in CASES[name]:
                runner.failed = compiled.failed = False
                if time.perf_counter() > begin + options.budget:
                    print(f"no time for {name}, {precision}, batch {batch}, beam {beam}", flush=True)
                    continue
                engines = {"eager": form, "captured": runner}
                if f"{name}-{precision}-{batch}-{beam}" in options.compiled.split(","):
                    engines["compiled"] = compiled
                if other is not None:
                    engines["transformers"] = other.to("cuda", GPU_PRECISIONS[precision])
                lines += compare(name, precision, engines, batch, beam, options.seconds)
                if options.profile:
                    try:
                        profile(name, runner, batch, beam)
                    except Exception:
                        print("--- no profile", traceback.format_exc()[-1500:], sep="\n", flush=True)
    if checked:
        print(f"\n{sum(line.endswith(' same') for line in checked)} of {len(checked)} checks: the same answers")
    print(f"\n{'model':8}{'batch':>5}{'beam':>5}  {'':6}{'engine':14}{'tokens/s':>11}{'first':>9}", *lines, sep="\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(line) for line in lines], indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="gpt2,marian")
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line, after one run of every engine")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds after which no other case begins")
    parser.add_argument("--no-peers", action="store_true", help="not transformers")
    parser.add_argument("--no-checks", action="store_true", help="not the answers of small models")
    parser.add_argument("--compiled", default="", help="cases that are also compiled, such as gpt2-bf16-1-1")
    parser.add_argument("--profile", action="store_true", help="also list the kernels of a captured step")
    parser.add_argument("--log", type=Path, help="also write what is printed to this file")
    parser.add_argument("--json", type=Path, help="also write every line to this file")
    main(parser.parse_args())
