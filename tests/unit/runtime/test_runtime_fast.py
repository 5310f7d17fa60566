"""Fast models against the models that they were made from: equal tokens and numbers in fp32, close ones otherwise."""

import math
from functools import cache
from pathlib import Path

import pytest
import torch

import regard
from regard import cpu
from regard.attention import record
from regard.cli.main import run
from regard.errors import UsageError
from regard.families.language.bert import Bert, BertConfig
from regard.families.language.gpt import LLAMA, Gpt, GptConfig
from regard.families.language.lstm import Lstm, LstmConfig
from regard.families.language.t5 import T5, T5Config
from regard.families.translation.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.runtime import compiled, linear
from regard.runtime.convert import apply_to_real_tokens, fast_model
from regard.runtime.linear import FAST_LINEARS, PACKING_PAYS, GpuLinear, fast_linear
from regard.search.search import search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.speculative import decoding_model
from regard.search.start import from_prompt, from_source

VOCABULARY = Vocabulary(start=1, end=2, pad=0)
PAIR = {"source_vocab": 60, "target_vocab": 60, "width": 32, "heads": 4, "ffn_width": 48, "dropout": 0.1}
DEPTH = {"encoder_depth": 2, "decoder_depth": 2}
TEXT = {"vocab": 60, "width": 32, "heads": 4, "depth": 2, "ffn_width": 48, "max_length": 64}

TRANSLATORS = {
    "post": lambda: Transformer(TransformerConfig.parse(PAIR | DEPTH)),
    "pre": lambda: Transformer(
        TransformerConfig.parse(PAIR | DEPTH | {"norm": "pre", "activation": "gelu", "output_bias": True, "tie": "all"})
    ),
    "rotary": lambda: Transformer(TransformerConfig.parse(PAIR | DEPTH | {"positions": "rotary", "tie": "none"})),
    "concatenated": lambda: Transformer(TransformerConfig.parse(PAIR | DEPTH | {"join_positions": "concatenate"})),
    "convolution": lambda: Transformer(TransformerConfig.parse(PAIR | DEPTH | {"encoder": "convolution"})),
    "t5": lambda: T5(T5Config.parse(PAIR | DEPTH | {"head_width": 6, "gated": True, "activation": "gelu_new"})),
    "rnn": lambda: Seq2Seq(Seq2SeqConfig.parse({"source_vocab": 60, "target_vocab": 60, "embedding": 24, "width": 32})),
}
WRITERS = {
    "gpt2": lambda: Gpt(GptConfig.parse(TEXT)),
    "llama": lambda: Gpt(GptConfig.parse(LLAMA | TEXT | {"kv_heads": 2})),
    "qwen": lambda: Gpt(
        GptConfig.parse(LLAMA | TEXT | {"qkv_bias": True, "head_norm": True, "window": 3, "window_layers": [1]})
    ),
    "mistral": lambda: Gpt(GptConfig.parse(LLAMA | TEXT | {"kv_heads": 2, "window": 3})),
    "lstm": lambda: Lstm(LstmConfig.parse({"vocab": 60, "width": 32, "depth": 2, "tie": False})),
}
HALVES = pytest.mark.skipif(not cpu.has_fp16(), reason="the CPU has no products of fp16: it becomes fp32")
pytestmark = pytest.mark.filterwarnings("ignore:precision int8 is exact here")  # without compiled code, on some CPUs
PRECISIONS = [pytest.param(name, marks=HALVES if name == "fp16" else ()) for name in FAST_LINEARS]


@pytest.fixture(autouse=True, params=["compiled", "torch", "device"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs with compiled code (if there is a compiler), without it, and with the products for GPUs."""
    if request.param != "compiled":
        monkeypatch.setattr(compiled, "library", lambda: None)
    elif compiled.library() is None:
        pytest.skip("no compiler here")
    if request.param == "device":
        monkeypatch.setitem(FAST_LINEARS, "fp32", GpuLinear)
    return request.param


OTHERS = [pytest.param(way, marks=pytest.mark.full) for way in ("compiled", "device")]
ANY_WAY = pytest.mark.parametrize("way", ["torch", *OTHERS], indirect=True)  # what no product is computed for


def vivid(make, seed=0):
    """A model whose weights vary enough that its answers differ."""
    torch.manual_seed(seed)
    model = make().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=2.0 / math.sqrt(parameter.shape[-1]))
        else:
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.1)
    return model


def ragged(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 9, (count,), generator=generator)
    mask = torch.arange(8) < lengths[:, None]
    return torch.randint(3, 60, (count, 8), generator=generator).masked_fill(~mask, 0), mask


def decode(model, source, mask, settings, *, continues=False, **options):
    """The answers of a search that starts from token ids; `continues` is for language models."""
    if continues:
        start = from_prompt(model, source, mask, settings, **options)
    else:
        start = from_source(model, source, mask, settings, VOCABULARY.start, **options)
    return search(model, start, settings, VOCABULARY)


def answers(model, source, mask, beam, *, continues=False):
    settings = SearchSettings(beam=beam, max_length=14, n_best=beam)
    found = decode(model, source, mask, settings, continues=continues)
    return [[(each.tokens, each.finished) for each in row] for row in found]


@cache
def model_answers(kind: str, seed: int, count: int, beam: int) -> list[list[tuple[list[int], bool]]]:
    """The answers of the model itself, which every way must give."""
    model = vivid((TRANSLATORS | WRITERS)[kind], seed)
    return answers(model, *ragged(count, seed), beam, continues=kind in WRITERS)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", TRANSLATORS)
def test_a_translator_says_the_same_in_its_form(kind: str, seed: int) -> None:
    model = vivid(TRANSLATORS[kind], seed)
    form = fast_model(model)
    assert type(form) is type(model) and form is not model
    for count, beam in ((1, 1), (1, 4), (7, 1), (7, 4)):  # sentences end at different times, so that rows are dropped
        assert answers(form, *ragged(count, seed), beam) == model_answers(kind, seed, count, beam), (count, beam)


@pytest.mark.parametrize("kind", ["post", "pre", "rotary", "t5"])
def test_many_rows_and_those_that_only_fill_up_change_nothing(kind: str) -> None:
    """Enough rows for tiles, most of them padding; greedy and with a beam."""
    form = fast_model(vivid(TRANSLATORS[kind]))
    for beam in (1, 2):
        assert answers(form, *mostly_padding(), beam) == model_answers_of_many(kind, beam)


def mostly_padding():
    source, mask = ragged(130)
    mask[:, 3:] = False
    mask[-1], source[-1] = True, 7
    return source, mask


@cache
def model_answers_of_many(kind: str, beam: int) -> list[list[tuple[list[int], bool]]]:
    return answers(vivid(TRANSLATORS[kind]), *mostly_padding(), beam)


def test_compiled_code_takes_many_tokens_where_enough_of_them_only_fill_up(way: str) -> None:
    if way != "compiled":
        pytest.skip("there is none")
    step, x = fast_model(vivid(TRANSLATORS["post"])).encoder[0].compiled, torch.zeros(40, 8, 32)
    step.most = 100

    def fits(real: int) -> bool:
        return step.fits(x, None, (torch.arange(8) < real).expand(40, 1, 1, 8))

    assert [fits(real) for real in (1, 4, 6, 7, 8)] == [True, True, True, False, False]
    step.most = 400
    assert fits(8)


@pytest.mark.parametrize("kind", ["post", "t5"])
@torch.inference_mode()
def test_sources_of_sentences_that_have_ended_stay_where_they_are(kind: str, way: str) -> None:
    """Compiled code indexes the remaining sentences; a recorder sees the same as with the model itself."""
    model = vivid(TRANSLATORS[kind])
    form, (source, mask) = fast_model(model), ragged(6)
    states = form.start(source, mask), model.start(source, mask)
    tokens = torch.tensor([[3], [4], [5], [6], [7], [8]])
    for kept in ([4, 0, 1, 5], [3, 1, 0]):
        ours, theirs = form.step(tokens, states[0]), model.step(tokens, states[1])
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
        before = states[0].memories[0].k.data_ptr()
        for state in states:
            state.keep(torch.tensor(kept))
        assert (states[0].memories[0].k.data_ptr() == before) == (way == "compiled")
        tokens = tokens[kept]
    with record(form) as ours, record(model) as theirs:
        torch.testing.assert_close(form.step(tokens, states[0]), model.step(tokens, states[1]), atol=1e-4, rtol=1e-4)
    assert ours.keys() == theirs.keys()
    for name, weights in ours.items():
        torch.testing.assert_close(weights, theirs[name], atol=1e-5, rtol=1e-4)


@ANY_WAY
@pytest.mark.parametrize("least", [0, 8])
def test_only_real_tokens_are_changed(least: int) -> None:
    _, mask = ragged(5)
    mask[:, :least] = True
    x, rows = torch.randn(5, 8, 3), []
    made = apply_to_real_tokens(lambda real: (rows.append(len(real)), real * 2 + 1)[1], x, mask[:, None, None])
    assert rows == [int(mask.sum())]
    assert torch.equal(made, (x * 2 + 1) * mask[..., None])


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", WRITERS)
def test_a_writer_says_the_same_in_its_form(kind: str, seed: int) -> None:
    model = vivid(WRITERS[kind], seed)
    form = fast_model(model)
    for count, beam in ((1, 1), (1, 4), (6, 1), (6, 3)):
        found = answers(form, *ragged(count, seed), beam, continues=True)
        assert found == model_answers(kind, seed, count, beam), (count, beam)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["post", "pre", "rotary", "t5"])
def test_logits_are_as_close_as_the_precision_allows(kind: str, precision: str) -> None:
    """Relative to the spread of the logits."""
    bound = {"fp32": 1e-5, "fp16": 4e-3, "int8": 0.15}[precision]
    model = vivid(TRANSLATORS[kind])
    source, mask = ragged(5)
    inputs = torch.randint(3, 60, (5, 6))
    with torch.inference_mode():
        expected, found = (each(source, mask, inputs) for each in (model, fast_model(model, precision)))
    error = (found - expected).std() / expected.std()
    assert error < bound
    assert precision == "fp32" or error > 0


def test_an_encoder_has_a_form_too() -> None:
    model = vivid(lambda: Bert(BertConfig.parse(TEXT | {"head": "masked"})))
    source, mask = ragged(5)
    with torch.inference_mode():
        expected, found = (each(source, mask) for each in (model, fast_model(model)))
    torch.testing.assert_close(found.hidden[mask], expected.hidden[mask], rtol=1e-4, atol=1e-5)


def test_the_model_stays_as_it_is() -> None:
    model = vivid(TRANSLATORS["post"])
    names, before = [name for name, _ in model.named_modules()], {k: v.clone() for k, v in model.state_dict().items()}
    fast_model(model, "int8")
    assert [name for name, _ in model.named_modules()] == names
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.decoder[0].after_attention.dropout.p == 0.1


def test_a_form_is_recorded_as_its_model_is() -> None:
    model = vivid(TRANSLATORS["post"])
    source, mask = ragged(3)
    inputs, looks = torch.randint(3, 60, (3, 5)), []
    for each in (model, fast_model(model)):
        with torch.inference_mode(), record(each) as seen:
            each(source, mask, inputs)
        looks.append(dict(seen))
    assert looks[0].keys() == looks[1].keys()
    for name, weights in looks[0].items():
        # rows [B T H S] of real tokens: compiled code skips padding
        real = mask if name.startswith("encoder") else torch.ones_like(inputs, dtype=torch.bool)
        form, own = (each.transpose(1, 2)[real] for each in (looks[1][name], weights))
        torch.testing.assert_close(form, own, rtol=1e-4, atol=1e-5)


LOOKING = {  # every kind of layer that compiled code supports, and some that it does not
    **{kind: make for kind, make in (TRANSLATORS | WRITERS).items() if kind not in ("rnn", "lstm")},
    "bert": lambda: Bert(BertConfig.parse(TEXT | {"head": "masked"})),
}


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("kind", LOOKING)
@torch.inference_mode()
def test_recording_changes_no_bit_of_what_a_form_answers(kind: str, precision: str, way: str) -> None:
    """Full passes over padded texts, steps, and searches whose hypotheses are reordered and end at different times."""
    if way == "device" and precision == "int8":
        pytest.skip("products for GPUs are not of bytes: this is the test without compiled code")
    model = vivid(LOOKING[kind])
    form, (source, mask), inputs = fast_model(model, precision), ragged(5), torch.randint(3, 60, (5, 6))

    def passed() -> torch.Tensor:
        if kind == "bert":
            return form(source, mask).hidden
        return form(source, mask) if kind in WRITERS else form(source, mask, inputs)

    def stepped() -> torch.Tensor:
        state = form.start(source, mask)
        return torch.cat([form.step(tokens[:, None], state) for tokens in inputs.T], dim=1)

    def searched() -> list[list[tuple[list[int], float]]]:
        settings = SearchSettings(beam=4, max_length=8, n_best=4)
        found = decode(form, source, mask, settings, continues=kind in WRITERS)
        return [[(each.tokens, each.score) for each in row] for row in found]

    for asked in [passed] if kind == "bert" else [passed, stepped, searched]:
        plain = asked()
        with record(model) as looks:
            watched = asked()
        assert looks and (torch.equal(watched, plain) if isinstance(plain, torch.Tensor) else watched == plain), asked


def test_who_records_the_model_sees_what_its_form_does() -> None:
    model = vivid(WRITERS["gpt2"])
    source, mask = ragged(1)
    source, mask = source[:, : int(mask.sum())], mask[:, : int(mask.sum())]
    settings, looks = SearchSettings(max_length=9, min_length=9), []
    for steps in (model, decoding_model(model, "fp32", VOCABULARY.end)):
        with record(model) as seen:
            decode(steps, source, mask, settings, continues=True)
        looks.append(dict(seen))
    assert looks[0].keys() == looks[1].keys()
    for name, weights in looks[0].items():
        torch.testing.assert_close(looks[1][name], weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_fused_products_are_their_parts_side_by_side(precision: str) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 300), torch.nn.Linear(256, 200, bias=False)]
    whole = fast_linear([each.weight for each in layers], [each.bias for each in layers], precision)
    bound = {"fp32": 1e-5, "fp16": 2e-3, "int8": 2e-2}[precision]
    for rows in (1, 3, 64):  # below and above where packing pays
        x = torch.randn(rows, 2, 256)[:, 0] if rows > 1 else torch.randn(1, 256)
        with torch.inference_mode():
            expected, found = torch.cat([each(x) for each in layers], dim=-1), whole(x)
        assert (found - expected).abs().max() / expected.std() < 5 * bound
    assert 3 * 500 * 256 < PACKING_PAYS < 64 * 500 * 256


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_row_does_not_depend_on_the_rows_beside_it(precision: str) -> None:
    torch.manual_seed(0)
    some = fast_linear([torch.randn(40, 32)], [torch.randn(40)], precision)
    x = torch.randn(6, 32) * torch.tensor([0.01, 1.0, 100.0, 0.1, 10.0, 0.0])[:, None]
    with torch.inference_mode():
        alone = torch.cat([some(x[row : row + 1]) for row in range(6)])
        torch.testing.assert_close(some(x), alone, rtol=1e-5, atol=1e-5)


@ANY_WAY
def test_an_unknown_precision_is_refused_in_words() -> None:
    model = TRANSLATORS["post"]()
    with pytest.raises(UsageError, match=r"'fp8' is unknown; choose one of fp32, fp16, int8, bf16, auto"):
        fast_model(model, "fp8")
    elsewhere = model.to("meta")
    with pytest.raises(UsageError, match="on a GPU there is no precision 'int8'"):
        fast_model(elsewhere, "int8")
    assert {each.dtype for each in fast_model(elsewhere, "bf16").parameters()} == {torch.bfloat16}
    assert {each.dtype for each in fast_model(elsewhere, "auto").parameters()} == {torch.float32}


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_precision_that_the_cpu_would_emulate_becomes_fp32_in_words(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "capabilities", lambda: {"architecture": "x86_64", "avx512_f": True})
    model, (source, mask) = vivid(TRANSLATORS["post"]), ragged(3)
    inputs = torch.randint(3, 60, (3, 5))
    with pytest.warns(UserWarning, match=f"precision {precision} is computed as fp32: "):
        form = fast_model(model, precision)
    with torch.inference_mode():
        assert torch.equal(form(source, mask, inputs), fast_model(model)(source, mask, inputs))


@ANY_WAY
def test_int8_without_any_products_of_bytes_says_that_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "library", lambda: None)
    monkeypatch.setattr(linear, "onednn_is_exact", lambda: False)
    with pytest.warns(UserWarning, match="int8 is exact here, but no faster than fp32"):
        fast_model(TRANSLATORS["post"](), "int8")
    assert linear.resolve_precision("auto") == "fp32"
    monkeypatch.setattr(linear, "onednn_is_exact", lambda: True)
    assert linear.resolve_precision("auto") == "int8"


@pytest.mark.parametrize("precision", ["fp32", "int8", "auto"])
def test_the_verbs_and_load_take_a_precision(precision: str, translator_folder: Path, capsys) -> None:
    command = ["translate", "we eat bread", "-m", str(translator_folder), "--to", "es", "--precision", precision]
    assert run(command) == 0
    said = capsys.readouterr().out.strip()
    assert regard.load(translator_folder, precision=precision).translate("we eat bread", to="es").text == said
    if precision == "fp32":
        assert regard.load(translator_folder).translate("we eat bread", to="es").text == said


@ANY_WAY
def test_the_verbs_and_load_refuse_a_precision_in_words(translator_folder: Path, make_encoder, capsys) -> None:
    assert run(["translate", "we eat bread", "-m", str(translator_folder), "--precision", "fp64"]) == 2
    assert "'fp64' is unknown" in capsys.readouterr().err
    with pytest.raises(UsageError, match="models that write or translate"):
        regard.load(make_encoder(), precision="int8")
