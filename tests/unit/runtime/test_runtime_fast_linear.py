"""Products by compiled code against torch's in double precision, in many shapes, with incomplete blocks and tiles."""

import os
import shutil
import subprocess
import sys
from ctypes import byref

import pytest
import torch
from torch.nn import functional

from regard.runtime import compiled
from regard.runtime.linear import FastLinear, Fp32Linear, fast_linear

# outputs, inputs
SHAPES = [(4, 4), (33, 8), (31, 36), (48, 44), (96, 64), (257, 132), (64, 300), (40, 512), (70, 1028)]


def by_compiled_code(some: FastLinear, x: torch.Tensor) -> torch.Tensor:
    """The product by compiled code, for any number of rows."""
    if compiled.library() is None:
        pytest.skip("no compiler here")
    y = x.new_empty(len(x), len(some.weight))
    compiled.library().product(byref(some.compiled), x.data_ptr(), y.data_ptr(), len(x))
    return y


def errors(rows: int, outputs: int, inputs: int, biased: bool, spread: float = 1.0) -> tuple[float, float]:
    """The errors of compiled code, and of torch in single precision, against double precision."""
    torch.manual_seed(rows * outputs + inputs)
    scales = spread ** torch.randn(rows, 1)
    x, weight = torch.randn(rows, inputs) * scales, torch.randn(outputs, inputs)
    bias = torch.randn(outputs) if biased else None
    exact = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    size = exact.square().mean(1, keepdim=True).sqrt()
    ways = by_compiled_code(Fp32Linear(weight, bias), x), functional.linear(x, weight, bias)
    ours, theirs = (((y - exact) / size).square().mean().sqrt().item() for y in ways)
    return ours, theirs


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler here")
def test_where_there_is_a_compiler_there_is_compiled_code() -> None:
    assert compiled.library() is not None  # otherwise everything would be skipped silently


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_few_rows_are_as_exact_as_single_precision_can_be(outputs: int, inputs: int, biased: bool) -> None:
    for rows in (1, 2, 7, 8, 9, 17, 32, 95):
        assert errors(rows, outputs, inputs, biased)[0] < 1e-6


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_tiles_are_no_less_exact_than_torch(outputs: int, inputs: int, biased: bool) -> None:
    if not compiled.has_tiles():
        pytest.skip("this processor has no tile unit (AMX), or the system does not lend it")
    for rows in (96, 97, 112, 129, 321, 640):  # whole tiles and more; more than one slab of rows
        for spread in (1.0, 100.0):  # rows of very different magnitudes
            ours, theirs = errors(rows, outputs, inputs, biased, spread)
            assert ours < 2e-7 or ours < 1.2 * theirs


def test_tiles_multiply_the_largest_and_smallest_numbers() -> None:
    x, weight = torch.ones(128, 64), torch.full((32, 64), 3e-30)
    x[::2] = 1e30
    y = by_compiled_code(Fp32Linear(weight, None), x)
    torch.testing.assert_close(y, functional.linear(x, weight), rtol=1e-6, atol=0)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_number_of_rows_changes_nothing(precision: str) -> None:
    torch.manual_seed(0)
    some = fast_linear([torch.randn(100, 68)], [torch.randn(100)], precision)
    x = torch.randn(700, 68)
    with torch.inference_mode():
        whole = some(x)
        for rows in (1, 8, 33, 96, 200, 257):
            torch.testing.assert_close(some(x[:rows]), whole[:rows], rtol=1e-4, atol=1e-4)


APART = """
import os
import sys
from ctypes import byref
import torch
from regard.runtime import compiled
from regard.runtime.linear import Fp32Linear

caller, *allowed = (int(each) for each in sys.argv[1:])
torch.set_num_threads(2)
some, x, y = Fp32Linear(torch.randn(96, 64), None), torch.randn(2, 64), torch.empty(2, 96)

def multiply():
    compiled.library().product(byref(some.compiled), x.data_ptr(), y.data_ptr(), 2)

for each in allowed:
    os.sched_setaffinity(0, {each})
    if open("/proc/self/stat").read().rpartition(") ")[2].split()[36] != str(each):
        sys.exit("this machine does not tell where a thread runs")
multiply()  # the threads are there
workers = [int(each) for each in os.listdir("/proc/self/task") if int(each) != os.getpid()]
for each in workers:
    os.sched_setaffinity(each, {caller})
places = set()
for _ in range(40):
    os.sched_setaffinity(0, {caller})  # which goes there
    os.sched_setaffinity(0, set(allowed))
    multiply()
    places |= {place for each in workers for place in os.sched_getaffinity(each)}
print(*sorted(places))
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="one processor")
def test_a_thread_that_waits_where_its_caller_runs_goes_elsewhere() -> None:
    """But never to a CPU that the caller may not use."""
    if compiled.library() is None:
        pytest.skip("no compiler here")
    first, second, *_ = sorted(os.sched_getaffinity(0))
    for allowed, expected in ((first, second), f"{first} {second}"), ((first,), f"{first}"):
        command = [sys.executable, "-c", APART, *map(str, (first, *allowed))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "does not tell" in done.stderr:
            pytest.skip(done.stderr)
        assert done.stdout.strip() == expected, done.stderr
