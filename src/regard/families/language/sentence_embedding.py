"""The parts of sentence-transformers around an encoder: prompts, pooling of token vectors, and further layers.

A folder of that library lists its modules in `modules.json`. Known modules are loaded; any other is refused, because
the vectors would be wrong without it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from regard.checkpoints.folder import read_json
from regard.checkpoints.models import fill
from regard.checkpoints.weights import PICKLES, WEIGHTS, read_weights
from regard.errors import CheckpointError, UsageError

MODULES, SETTINGS, TOKENIZER = "modules.json", "config_sentence_transformers.json", "tokenizer_config.json"
READERS = tuple(  # file names of the encoder's settings, newer and older ones
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
POOLING = "1_Pooling"
MODES = {  # of pooling, in the order in which older folders concatenate them
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS = (
    "Tanh", "Identity", "ReLU", "GELU", "SiLU", "Sigmoid", "ELU", "LeakyReLU", "Mish", "Softplus", "Softsign",
)  # fmt: skip
PLAIN: dict[str, Any] = {  # what newer folders say of a plain text encoder
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
}
VECTOR = "sentence_embedding"  # the library's name of the vector that modules pass on


@dataclass(frozen=True)
class SentenceModules:
    """How texts become vectors: the prompts, the concatenated poolings, and the layers after them."""

    modes: tuple[str, ...] = ("mean",)
    layers: nn.Sequential = field(default_factory=nn.Sequential)
    width: int | None = None  # of the vectors, if the layers change it
    longest: int | None = None  # the most tokens of a text
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""  # a name in `prompts`
    pools_prompt: bool = True  # whether the tokens of the prompt are pooled too

    def prompt(self, name: str = "") -> str:
        """The text before each input: the prompt of this name, else the folder's default."""
        if name and name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise UsageError(f"the model has no prompt called {name!r}; it has: {known}")
        return self.prompts.get(name or self.default_prompt, "")


def pool(
    hidden: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"], modes: Sequence[str], skipped: int = 0
) -> Float[Tensor, "B _"]:
    """One vector for each text, pooled from its real tokens except the first `skipped`; modes are concatenated."""
    places = torch.arange(real.shape[1], device=real.device)
    weight = (real & (places >= skipped)).to(hidden.dtype)
    return torch.cat([_pooled(hidden, weight, mode) for mode in modes], dim=-1)


def _pooled(hidden: Float[Tensor, "B T D"], weight: Float[Tensor, "B T"], mode: str) -> Float[Tensor, "B D"]:
    rows = torch.arange(len(hidden), device=hidden.device)
    places = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)
    match mode:
        case "cls":
            return hidden[rows, weight.argmax(dim=1)]
        case "lasttoken":
            return (hidden * weight[..., None])[rows, (weight * places).argmax(dim=1)]
        case "max":
            return hidden.masked_fill(weight[..., None] == 0, -torch.inf).amax(dim=1)
        case "weightedmean":
            weight = weight * places
    total = weight.sum(dim=1, keepdim=True).clamp(min=1e-9)
    summed = (hidden * weight[..., None]).sum(dim=1)
    return summed / (total.sqrt() if mode == "mean_sqrt_len_tokens" else total)


def read_sentence_modules(folder: Path, width: int, allow_pickle: bool = False) -> SentenceModules:
    """The sentence modules of a folder; `width` is that of the encoder's tokens. The default is mean pooling."""
    if not (folder / MODULES).is_file():
        if not (folder / POOLING).is_dir():
            return SentenceModules()
        modes, _ = _read_pooling(folder / POOLING, width)
        return SentenceModules(modes, width=len(modes) * width)
    modules = _modules(folder)
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or modules[0][1] != folder:
        raise CheckpointError(
            f"{folder / MODULES} lists {', '.join(kinds) or 'nothing'}; expected a Transformer, which lies beside it, "
            "and a Pooling first"
        )
    modes, pools_prompt = _read_pooling(modules[1][1], width)
    layers, width = _read_layers(modules[2:], len(modes) * width, allow_pickle)
    longest, lowercase = _read_limits(folder)
    prompts, default = _read_prompts(folder)
    return SentenceModules(modes, layers, width, longest, lowercase, prompts, default, pools_prompt)


def sentence_files(folder: Path) -> list[str]:
    """The files of a folder that define its sentence vectors, by their paths relative to it."""
    places = [path for _, path in _modules(folder)] if (folder / MODULES).is_file() else [folder / POOLING]
    parts = [place / name for place in places if place != folder for name in ("config.json", WEIGHTS, *PICKLES)]
    files = [*(folder / name for name in (MODULES, SETTINGS, *READERS)), *parts]
    return [file.relative_to(folder).as_posix() for file in files if file.is_file()]


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """The kind and the folder of each module, in order."""
    file = folder / MODULES
    try:
        listed = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}") from None
    found = []
    for entry in listed if isinstance(listed, list) else [listed]:
        match entry:
            case {"type": str(kind), "path": str(path)} if _is_inside(path):
                if not kind.startswith("sentence_transformers."):
                    raise CheckpointError(f"{file} has the module {kind}, which is code of its own and is not run")
                found.append((kind.rpartition(".")[2], folder / path))
            case _:
                raise CheckpointError(f"{file} has the entry {entry!r}; expected a type, and a path inside the folder")
    return found


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path)
    return not parts.is_absolute() and ".." not in parts.parts and "\\" not in path


def _read_pooling(place: Path, width: int) -> tuple[tuple[str, ...], bool]:
    """The pooling modes, and whether the tokens of a prompt are pooled too."""
    file = place / "config.json"
    values = read_json(file)
    known = {*MODES, "pooling_mode", "include_prompt", "word_embedding_dimension", "embedding_dimension"}
    _refuse_unknown(file, values, known)
    modes = values.get("pooling_mode") or [mode for key, mode in MODES.items() if values.get(key)] or ["mean"]
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    if unknown := [mode for mode in modes if mode not in MODES.values()]:
        raise CheckpointError(f"{file} asks for the pooling {unknown[0]!r}; known are {', '.join(MODES.values())}")
    expected = values.get("embedding_dimension", values.get("word_embedding_dimension", width))
    if expected != width:
        raise CheckpointError(f"{file} pools vectors of {expected} numbers, but the model's have {width}")
    return modes, bool(values.get("include_prompt", True))


def _read_layers(modules: Sequence[tuple[str, Path]], width: int, allow_pickle: bool) -> tuple[nn.Sequential, int]:
    """The layers after the pooling, and the width of their result."""
    layers = nn.Sequential()
    for kind, place in modules:
        match kind:
            case "Dense":
                dense = _read_dense(place, width, allow_pickle)
                layers.append(dense)
                width = dense.linear.out_features
            case "LayerNorm":
                layers.append(_filled(nn.ModuleDict({"norm": nn.LayerNorm(width)}), place, allow_pickle)["norm"])
            case "Normalize":
                _require_vector(place / "config.json", _optional(place / "config.json"))
                layers.append(Normalize())
            case "Dropout":
                pass  # has no effect outside training
            case _:
                raise CheckpointError(f"{place} has type {kind} of sentence-transformers, which is not supported")
    return layers.eval().requires_grad_(False), width


class Dense(nn.Module):
    """A linear layer with an activation and optionally a residual connection."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool, activation: nn.Module, residual: bool):
        super().__init__()
        self.linear, self.activation = nn.Linear(inputs, outputs, bias=bias), activation
        self.adds = residual
        self.residual = nn.Linear(inputs, outputs, bias=False) if residual and inputs != outputs else nn.Identity()

    def forward(self, x: Float[Tensor, "B I"]) -> Float[Tensor, "B O"]:
        y = self.activation(self.linear(x))
        return y + self.residual(x) if self.adds else y


class Normalize(nn.Module):
    """Scale vectors to length 1."""

    def forward(self, x: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        return functional.normalize(x, dim=-1)


def _read_dense(place: Path, width: int, allow_pickle: bool) -> Dense:
    file = place / "config.json"
    values = read_json(file)
    names = {"module_input_name", "module_output_name"}
    _refuse_unknown(
        file, values, {"in_features", "out_features", "bias", "activation_function", "use_residual", *names}
    )
    _require_vector(file, values)
    inputs, outputs = values.get("in_features"), values.get("out_features")
    if inputs != width or not isinstance(outputs, int) or outputs < 1:
        raise CheckpointError(f"{file} makes {outputs!r} numbers of {inputs!r}; what comes has {width}")
    activation = str(values.get("activation_function", "torch.nn.Tanh"))
    name = activation.rpartition(".")[2]
    if not activation.startswith("torch.nn.") or name not in ACTIVATIONS:
        raise CheckpointError(f"{file} has the activation {activation}; known are {', '.join(ACTIVATIONS)} of torch.nn")
    options = {"bias": bool(values.get("bias", True)), "residual": bool(values.get("use_residual", False))}
    return _filled(Dense(inputs, outputs, activation=getattr(nn, name)(), **options), place, allow_pickle)


def _filled(layer: Any, place: Path, allow_pickle: bool) -> Any:
    fill(layer, read_weights(place, allow_pickle), place)
    return layer


def _read_limits(folder: Path) -> tuple[int | None, bool]:
    """The most tokens of a text, and whether it is lowercased."""
    file = next((folder / name for name in READERS if (folder / name).is_file()), folder / READERS[0])
    values = _optional(file)
    for key in values.keys() - {"max_seq_length", "do_lower_case"}:
        if values[key] and values[key] != PLAIN.get(key):
            raise CheckpointError(f"{file} has {key} {values[key]!r}, which is not supported")
    longest = values.get("max_seq_length") or _optional(folder / TOKENIZER).get("model_max_length")
    if longest is not None and (isinstance(longest, bool) or not isinstance(longest, int | float) or longest < 1):
        raise CheckpointError(f"{file} has max_seq_length {longest!r}; expected a number of tokens")
    return None if longest is None else int(longest), bool(values.get("do_lower_case"))


def _read_prompts(folder: Path) -> tuple[dict[str, str], str]:
    """The prompts by name, and the name of the default."""
    file = folder / SETTINGS
    values = _optional(file)
    if (kind := values.get("model_type") or "SentenceTransformer") != "SentenceTransformer":
        raise CheckpointError(f"{file} says that the model is a {kind}, which gives no sentence vectors")
    prompts, default = values.get("prompts") or {}, values.get("default_prompt_name") or ""
    if not isinstance(prompts, dict) or not all(isinstance(each, str | None) for each in prompts.values()):
        raise CheckpointError(f"{file} has the prompts {prompts!r}; expected a text for each name")
    if default and default not in prompts:
        raise CheckpointError(f"{file} has the default prompt {default!r}, which is none of its prompts: {[*prompts]}")
    return {name: text or "" for name, text in prompts.items()}, default


def _optional(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def _require_vector(file: Path, values: Mapping[str, Any]) -> None:
    for key in ("module_input_name", "module_output_name"):
        if values.get(key) not in (None, VECTOR):
            raise CheckpointError(f"{file} has {key} {values[key]!r}; only {VECTOR!r} is supported")


def _refuse_unknown(file: Path, values: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(values.keys() - known):
        raise CheckpointError(f"{file} has {unknown[0]}, which is not known here")
