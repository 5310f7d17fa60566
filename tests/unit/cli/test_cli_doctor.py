"""`regard doctor`: the precisions that it prints are those that a model gets."""

import json
import platform
import shutil
import subprocess
from collections.abc import Iterator

import pytest
import torch

from regard import cpu, native
from regard.bench import precisions
from regard.cli.main import run
from regard.device import multiplies_bf16
from regard.runtime import compiled, linear
from regard.runtime.linear import resolve_precision


def told(capsys) -> dict:
    assert run(["doctor", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precisions, "SECONDS", 0.01)


@pytest.mark.filterwarnings("ignore:precision")
def test_each_precision_is_told_as_it_is_computed(capsys) -> None:
    forms = {(each["precision"], each["use"]): each for each in told(capsys)["precisions"]}
    for name in ("fp32", "fp16", "int8", "bf16", "auto"):
        form = forms[name, "inference"]
        assert form["computed_as"] == resolve_precision(name)
        assert all(rate > 0 for rate in form["rates"].values())
    assert forms["bf16", "training"]["computed_as"] == ("bf16" if cpu.has_bf16() else "fp32")


def test_a_cpu_without_anything(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "capabilities", lambda: {"architecture": "x86_64", "cpu_name": "old"})
    monkeypatch.setattr(compiled, "library", lambda: None)
    monkeypatch.setattr(native, "compiler_command", lambda: None)
    monkeypatch.setattr(linear, "onednn_is_exact", lambda: False)
    monkeypatch.setattr(precisions, "onednn_is_exact", lambda: False)
    found = told(capsys)
    assert (found["cpu"], found["instructions"], found["onednn_multiplies_bytes_exactly"]) == ("old", [], False)
    assert found["compiled_code"].startswith("none: no C++ compiler")
    computed = {(each["precision"], each["use"]): each["computed_as"] for each in found["precisions"]}
    assert computed.pop(("int8", "inference")) == "int8"  # exact, even if not faster
    assert set(computed.values()) == {"fp32"}
    assert run(["doctor"]) == 0
    assert "not exactly, so it is not used for int8" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("lscpu") is None, reason="needs lscpu")
@pytest.mark.parametrize("told_by_torch", [{"cpu_name": "Unknown"}, {"cpu_name": ""}, {}])
def test_a_cpu_that_torch_cannot_name_is_named(monkeypatch: pytest.MonkeyPatch, told_by_torch: dict) -> None:
    monkeypatch.setattr(cpu, "capabilities", lambda: told_by_torch)
    model = json.loads(subprocess.run(["lscpu", "-J"], capture_output=True, check=True, env={"LC_ALL": "C"}).stdout)
    expected = next((row["data"] for row in _rows(model["lscpu"]) if row["field"] == "Model name:"), "")
    assert cpu.name() not in ("", "Unknown")
    assert cpu.name().endswith(expected)
    monkeypatch.setenv("PATH", "")
    assert cpu.name() in (platform.processor(), platform.machine())


def _rows(rows: list[dict]) -> Iterator[dict]:
    """All rows of lscpu's JSON; newer versions nest them."""
    for row in rows:
        yield row
        yield from _rows(row.get("children", []))


@pytest.mark.parametrize(
    ("capabilities", "level", "expected"),
    [
        ({"architecture": "x86_64", "avx512_f": True}, "", False),  # emulated: oneDNN reports support there
        ({"architecture": "x86_64", "avx512_bf16": True}, "", True),
        ({"architecture": "x86_64", "avx512_bf16": True}, "AVX512_CORE", False),
        ({"architecture": "x86_64", "amx_bf16": True}, "AVX512_CORE_AMX", True),
        ({"architecture": "arm64", "bf16": True}, "", True),
        ({"architecture": "arm64"}, "", False),
    ],
)
def test_bf16_is_used_where_the_cpu_has_it(capabilities, level, expected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", level)
    assert cpu.has_bf16() is expected
    assert multiplies_bf16(torch.device("cuda"))
