"""CPU-dependent code, at every instruction level that this CPU can run.

Compiled code is compiled and run for each level. torch and oneDNN are limited to lower levels by their own settings,
which they read when they are loaded, so those checks run in separate processes. `make processors` also runs levels that
need an emulator.
"""

import os
import subprocess
import sys
from ctypes import byref
from pathlib import Path

import pytest
import torch

from regard import cpu, native
from regard.errors import UsageError
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.runtime import compiled, linear
from regard.runtime.convert import fast_model
from regard.runtime.linear import Int8Linear, int8_matmul_float32, int8_matmul_onednn, onednn_is_exact, quantize_rows
from regard.search.search import search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.start import from_source

LEVELS = [os.environ["REGARD_NATIVE"]] if "REGARD_NATIVE" in os.environ else ["0", *native.runnable_levels()]
SHAPES = [(4, 4), (33, 8), (31, 36), (257, 132), (70, 1028), (36, 2100)]  # outputs, inputs
ROWS = (1, 3, 11, 300)
VOCABULARY = Vocabulary(start=1, end=2, pad=0)
pytestmark = pytest.mark.filterwarnings("ignore:precision int8 is exact here")  # without compiled code, on some CPUs


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Compiled code of one level; "0" is torch alone."""
    if native.compiler_command() is None and request.param != "0":
        pytest.skip("no compiler here")
    monkeypatch.setenv("REGARD_NATIVE", request.param)
    compiled.library.cache_clear()
    yield request.param
    compiled.library.cache_clear()


def examples(outputs: int, inputs: int, rows: int):
    """Weights and inputs: random ones, and those with the largest, the smallest, and cancelling sums."""
    torch.manual_seed(outputs + inputs + rows)
    ones, other = torch.ones(outputs, inputs), torch.ones(rows, inputs)
    turns = torch.where(torch.arange(inputs) % 2 == 0, 1.0, -1.0)
    yield torch.randn(outputs, inputs), torch.randn(rows, inputs) * 10 ** torch.randn(rows, 1)
    yield from ((a * ones, b * other) for a, b in ((1.0, 1.0), (1.0, -1.0), (turns, turns), (turns, -turns)))
    yield torch.randn(outputs, inputs), torch.zeros(rows, inputs)


def in_whole_numbers(weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """The definition: integers multiplied and added exactly, then scaled, in the same order of operations."""
    (w, worth), (numbers, scales) = quantize_rows(weight), quantize_rows(x)
    sums = (numbers.double() @ w.double().t()).int()  # double precision adds integers of this size exactly
    y = sums.float() * worth.t() * scales
    return y if bias is None else y + bias


def routes(some: Int8Linear, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The product by every implementation that is available, for any number of rows."""
    rounded, scale = quantize_rows(x)
    sums = {"float32": int8_matmul_float32(rounded, some.slices)}
    if onednn_is_exact():
        sums["oneDNN"] = int8_matmul_onednn(rounded, *some.packed)
    scaled = {name: each * some.scale * scale for name, each in sums.items()}
    found = {name: each if some.bias is None else each + some.bias for name, each in scaled.items()}
    if compiled.library() is not None:
        found["compiled"] = y = x.new_empty(len(x), len(some.weight))
        compiled.library().product(byref(some.compiled), x.data_ptr(), y.data_ptr(), len(x))
    return found | {"chosen": some(x)}


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@torch.inference_mode()
def test_bytes_are_multiplied_in_whole_numbers_to_the_last_bit(outputs: int, inputs: int, level: str) -> None:
    for rows in ROWS:
        bias = torch.randn(outputs) if rows % 2 else None
        for weight, x in examples(outputs, inputs, rows):
            expected, some = in_whole_numbers(weight, bias, x), Int8Linear(weight, bias)
            for name, y in routes(some, x).items():
                assert torch.equal(y, expected), (name, rows)
            assert all(torch.equal(some(x[row : row + 1]), expected[row : row + 1]) for row in range(min(rows, 8)))


def test_the_compiled_code_is_that_of_the_level(level: str) -> None:
    if level == "0":
        assert compiled.library() is None
        return
    bits = {"x86-64": 128, "neon": 128, "neon-dot": 128}.get(level, 256 if level.startswith("avx2") else 512)
    assert compiled.library().vector_bits() == bits
    by_bytes = any(word in level for word in ("vnni", "amx", "dot"))
    assert (compiled.library().bytes_by() in (b"VNNI", b"dot products")) == by_bytes


def translator() -> Transformer:
    torch.manual_seed(0)
    shape = {"source_vocab": 60, "target_vocab": 60, "width": 64, "heads": 4, "ffn_width": 128}
    model = Transformer(TransformerConfig.parse(shape | {"encoder_depth": 2, "decoder_depth": 2})).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=2.0 * parameter.shape[-1] ** -0.5)
    return model


def answers(model, source: torch.Tensor, mask: torch.Tensor, beam: int) -> list[list[int]]:
    settings = SearchSettings(beam=beam, max_length=14)
    start = from_source(model, source, mask, settings, VOCABULARY.start)
    return [best.tokens for best, *_ in search(model, start, settings, VOCABULARY)]


@torch.inference_mode()
def test_forms_and_translations_are_right(level: str) -> None:
    model = translator()
    lengths = torch.randint(2, 9, (40,))
    mask = torch.arange(8) < lengths[:, None]
    source = torch.randint(3, 60, (40, 8)).masked_fill(~mask, 0)
    inputs = torch.randint(3, 60, (40, 6))
    expected = model(source, mask, inputs)
    for precision, bound in (("fp32", 1e-5), ("int8", 0.15)):
        form = fast_model(model, precision)
        assert (form(source, mask, inputs) - expected).std() / expected.std() < bound
        for beam in (1, 4):
            together = answers(form, source, mask, beam)
            for n in range(0, 40, 8):
                alone = source[n : n + 1, : lengths[n]], mask[n : n + 1, : lengths[n]]
                assert answers(form, *alone, beam) == together[n : n + 1], (precision, beam)


def test_a_level_that_the_cpu_lacks_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_NATIVE", "avx1024")
    compiled.library.cache_clear()
    with pytest.raises(UsageError, match=r"REGARD_NATIVE=avx1024 is no level that this CPU can run; choose one of 0, "):
        compiled.library()
    monkeypatch.undo()
    compiled.library.cache_clear()


def test_a_compiler_that_fails_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.delenv("REGARD_NATIVE", raising=False)
    compiled.library.cache_clear()
    with pytest.warns(UserWarning, match="models run without compiled code, slower: /bin/false failed"):
        assert compiled.library() is None
    monkeypatch.undo()
    compiled.library.cache_clear()


def test_oneDNN_that_cuts_sums_off_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: N802
    """As with the byte instruction of every x86: sums of two products saturate at 16 bits."""

    def saturating(x, weight, scales, zeros):
        unsigned = (x + 128).int()
        pairs = unsigned[:, None, :] * weight.int()[None]
        cut = pairs.unflatten(-1, (-1, 2)).sum(-1).clamp(-(2**15), 2**15 - 1).sum(-1)
        return (cut - 128 * weight.int().sum(1)).float()

    monkeypatch.setattr(linear, "int8_matmul_onednn", saturating)
    monkeypatch.setattr(torch.ops.onednn, "qlinear_prepack", lambda weight, shape: weight)
    onednn_is_exact.cache_clear()
    assert not onednn_is_exact()
    onednn_is_exact.cache_clear()


# The levels that oneDNN and torch are limited to, and the same level of our own code.
HELD_TO = [("AVX512_CORE", "avx512", "avx512"), ("SSE41", "default", "0")]
if "REGARD_FAULT_COUNT" in os.environ:  # `make processors`
    HELD_TO.append(("AVX2", "avx2", "avx2"))
INT8 = "(int8 and (fused_products or as_close_as or number_of_rows)) or whole_numbers or translations or held_back"


@pytest.mark.skipif("ONEDNN_MAX_CPU_ISA" not in os.environ, reason="oneDNN is not held back")
def test_what_onednn_is_not_used_for_where_it_is_held_back() -> None:
    assert not onednn_is_exact()
    assert not cpu.has_bf16()
    assert torch.backends.cpu.get_cpu_capability().lower() == os.environ["ATEN_CPU_CAPABILITY"]


@pytest.mark.skipif(cpu.is_arm(), reason="oneDNN's levels are those of x86")
@pytest.mark.skipif("REGARD_NATIVE" in os.environ, reason="this is such a process")
@pytest.mark.parametrize(("onednn", "aten", "ours"), HELD_TO)
def test_int8_where_torch_and_onednn_have_no_products_of_bytes(onednn: str, aten: str, ours: str) -> None:
    """There oneDNN saturates sums, and would emulate bf16: neither is used. These tests need no shared fixtures, whose
    imports take longer than the tests."""
    if ours not in LEVELS:
        pytest.skip(f"this CPU has no {ours}")
    files = [str(Path(__file__).with_name(f"test_runtime_{name}.py")) for name in ("levels", "fast_linear", "fast")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "--noconftest", "-p", "no:cacheprovider", *files, "-k", INT8],
        capture_output=True, text=True, check=False,
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": onednn, "ATEN_CPU_CAPABILITY": aten, "REGARD_NATIVE": ours},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
