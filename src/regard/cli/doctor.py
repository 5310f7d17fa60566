"""regard doctor: check what can run on this machine, and in which precision."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING

from regard.verbs.options import AsJson

if TYPE_CHECKING:
    from regard.bench.precisions import Form


def doctor(as_json: AsJson = False) -> None:
    """Check this machine: versions, threads, GPU, the CPU's instructions, what each precision becomes and how fast it
    is (about two seconds), and a small attention computed both ways.

    Example: regard doctor
    """
    import os
    import platform

    import torch

    from regard import cpu
    from regard.attention import attend, attention_weights
    from regard.bench import precisions
    from regard.errors import RegardError

    (packages, missing), forms = _packages(), precisions.forms()
    q, k, v = (torch.randn(2, 4, 9, 16) for _ in range(3))
    difference = (attend(q, k, v, causal=True) - attention_weights(q, k, causal=True) @ v).abs().max().item()
    found = {
        "regard": version("regard"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": packages,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "gpu": _accelerator(),
        "cpu": cpu.name(),
        "instructions": precisions.instructions(),
        "compiled_code": precisions.compiled_code(),
        "onednn_multiplies_bytes_exactly": precisions.onednn_is_exact(),
        "precisions": [asdict(each) for each in forms],
        "attention_difference": difference,
    }
    if as_json:
        print(json.dumps(found))
    else:
        _tell(found, forms)
    if missing or difference > 1e-4:
        raise RegardError(
            f"not healthy: missing {', '.join(missing) or 'nothing'}, attention difference {difference:.1e}"
        )
    if not as_json:
        print("healthy")


def _tell(found: dict, forms: list[Form]) -> None:
    print(f"regard {found['regard']} · Python {found['python']} · {found['system']}")
    for name, number in found["packages"].items():
        print(f"  {name:18}{number}")
    print(f"threads {found['threads']} of {found['cores']} cores · {found['gpu']}")
    print(f"CPU {found['cpu']} · instructions: {', '.join(found['instructions']) or 'none that matter'}")
    print(f"compiled code: {found['compiled_code']}")
    exact = "exactly" if found["onednn_multiplies_bytes_exactly"] else "not exactly, so it is not used for int8"
    print(f"oneDNN multiplies bytes here: {exact}")
    rows = sorted(forms[0].rates)
    columns = "".join(f"{f'{n} row' + 's' * (n > 1):>9}" for n in rows)
    print(f"{'precision':20}{'computed as':13}{columns}  GFLOP/s")
    for each in forms:
        rates = "".join(f"{each.rates[n]:9.0f}" for n in rows)
        print(f"{f'{each.precision} ({each.use})':20}{each.computed_as:13}{rates}  {each.how}")
    print(f"fused attention agrees with the formula to {found['attention_difference']:.1e}")


def _packages() -> tuple[dict[str, str], list[str]]:
    """The versions of the packages that Regard needs, and the missing ones."""
    there, missing = {}, []
    for requirement in requires("regard") or []:
        if "extra ==" in requirement:
            continue
        name = requirement.split(";")[0].split(">")[0].split("=")[0].strip()
        try:
            there[name] = version(name)
        except PackageNotFoundError:
            missing.append(name)
    return there, missing


def _accelerator() -> str:
    import torch

    if not torch.cuda.is_available():
        return "no GPU (everything runs on the CPU)"
    return f"{torch.cuda.get_device_name()}, {torch.cuda.get_device_properties(0).total_memory / 2**30:.0f} GiB"
