"""The most probable tokens at each place of a text, beside the token that is there; and after each layer.

The logit lens says what a layer would have said, if the model had ended there (nostalgebraist 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.places import record_activations
from regard.errors import UsageError
from regard.search.candidates import truncated_distribution
from regard.search.settings import SearchSettings, Vocabulary

TOP = 10  # tokens listed for each place
Pieces = Callable[[Sequence[int]], list[str]]


class TokenProbability(NamedTuple):
    """A token and its probability at a place; `drawn`: the probability that sampling draws it with given settings."""

    token: str
    probability: float
    drawn: float | None = None


@dataclass(frozen=True)
class TokenPrediction:
    """The most probable tokens at one place of a text, and the actual token if it is known.

    `place` counts the tokens of the text from 0: for a language model, the token after which the next is predicted; for
    a masked language model, the masked token. `rank` is 1 if the actual token was the most probable; `generated` is
    True if the model itself generated it.
    """

    place: int
    choices: list[TokenProbability]
    actual: TokenProbability | None = None
    rank: int | None = None
    generated: bool = False


def check_top(top: int) -> None:
    """Refuse to list less than one token for a place."""
    if top < 1:
        raise UsageError(f"top is {top}; expected at least 1")


def predict_tokens(
    log_p: Float[Tensor, "T V"],
    actual: Sequence[int],
    *,
    first: int,
    generated_from: int,
    top: int,
    settings: SearchSettings,
    vocabulary: Vocabulary,
    pieces: Pieces,
) -> list[TokenPrediction]:
    """The predictions of the next token at the places from `first` on.

    `actual` has the tokens that followed, one fewer than there are places if the last is not known; the model generated
    those from place `generated_from` on. Of `settings` only those that shape the distribution count: temperature,
    top_k, top_p, min_p, or none of them for greedy decoding.
    """
    drawn = _drawn(log_p, settings, vocabulary)
    count = min(top, log_p.shape[1])
    best = log_p.topk(count, dim=-1).indices
    found = []
    for row, tokens in enumerate(best.tolist()):
        known = actual[row] if row < len(actual) else None
        named = [*tokens, *([] if known is None else [known])]
        shares = zip(log_p[row, named].exp().tolist(), drawn[row, named].tolist(), strict=True)
        choices = [TokenProbability(piece, *share) for piece, share in zip(pieces(named), shares, strict=True)]
        rank = None if known is None else int((log_p[row] > log_p[row, known]).sum()) + 1
        place = first + row
        own = known is not None and place + 1 >= generated_from
        found.append(TokenPrediction(place, choices[:count], None if known is None else choices[-1], rank, own))
    return found


def _drawn(log_p: Float[Tensor, "T V"], settings: SearchSettings, vocabulary: Vocabulary) -> Float[Tensor, "T V"]:
    """The probability that each token is drawn; 0 or 1 for greedy decoding."""
    possible = log_p.index_fill(
        1, torch.tensor(vocabulary.forbidden, dtype=torch.long, device=log_p.device), -torch.inf
    )
    if not settings.sample:
        return torch.zeros_like(log_p).scatter_(1, possible.argmax(dim=-1, keepdim=True), 1.0)
    weight, order = truncated_distribution(possible, settings)
    return torch.zeros_like(log_p).scatter_(1, order, weight / weight.sum(dim=-1, keepdim=True))


STREAMS = ("decoder.*.residual", "encoder.*.residual")  # those of the layers that end in the answer, best first


@runtime_checkable
class Unembeds(Protocol):
    """A model that turns a residual stream into logits: its final norm, then its output matrix."""

    def unembed(self, stream: Float[Tensor, "B T D"]) -> Tensor: ...


@dataclass(frozen=True)
class LogitLens:
    """The most probable tokens or classes after every layer, at every place."""

    places: Sequence[str]
    layers: dict[str, list[list[TokenProbability]]]  # by layer: for each place, the best first

    def to_json(self) -> dict[str, Any]:
        """The table as plain values."""
        layers = [
            {"name": name, "top": [[[each.token, round(each.probability, 5)] for each in top] for top in rows]}
            for name, rows in self.layers.items()
        ]
        return {"places": list(self.places), "layers": layers}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LogitLens:
        """The table that `to_json` wrote."""
        layers = {
            layer["name"]: [[TokenProbability(*each) for each in top] for top in layer["top"]]
            for layer in data["layers"]
        }
        return cls(data["places"], layers)

    def __str__(self) -> str:
        """The best of every layer and place, as lines of columns separated by tabs."""
        lines = ["\t".join(["layer", *map(_shown, self.places)])]
        for name, rows in self.layers.items():
            lines.append("\t".join([name, *(f"{_shown(top[0].token)} {top[0].probability:.0%}" for top in rows)]))
        return "\n".join(lines)


@torch.inference_mode()
def logit_lens(model: nn.Module, run: Callable[[], object]) -> dict[str, Tensor]:
    """The logits after every layer, by the name of the layer, while `run` runs the model in one pass.

    Those of the last layer are the model's own.
    """
    if not isinstance(model, Unembeds):
        raise UsageError(f"a {type(model).__name__} has no unembedding of its streams")
    pattern = STREAMS[0 if hasattr(model, "decoder") else 1]
    with record_activations(model, pattern) as seen:
        run()
    return {name.removesuffix(".residual"): model.unembed(stream) for name, stream in seen.items()}


def lens_of(
    model: nn.Module,
    run: Callable[[], object],
    places: Sequence[str],
    names: Callable[[Sequence[int]], Sequence[str]],
    top: int,
) -> LogitLens:
    """The most probable outputs after every layer for the first input of a pass; `names` are those of outputs."""
    layers = {}
    for layer, logits in logit_lens(model, run).items():
        rows = (logits if logits.dim() == 3 else logits[:, None])[0].float().softmax(dim=-1)
        shares, ids = rows.topk(min(top, rows.shape[-1]), dim=-1)
        layers[layer] = [
            [TokenProbability(*each) for each in zip(names(row), share, strict=True)]
            for row, share in zip(ids.tolist(), shares.tolist(), strict=True)
        ]
    return LogitLens(places, layers)


def _shown(token: str) -> str:
    return token.replace("\t", "\\t").replace("\n", "\\n")
