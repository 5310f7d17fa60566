"""VLN-BERT: how well an instruction describes a path through a house (Majumdar et al. 2020).

ViLBERT's two streams with the steps of a path in place of the regions of an image; a linear layer on the fused vector
gives the score of the path. Training ranks several paths for one instruction by a softmax over their scores.
Presets: tiny, small (for one GPU and Room-to-Room alone), base (the paper's six layers of each stream that are linked).
Deviations: a step is one row of geometry instead of up to 101 regions of panoramic images; row 0 is the whole path; a
masked step is predicted as numbers, not as a distribution over the classes of a detector.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from jaxtyping import Bool, Float, Int
from pydantic import PositiveInt
from torch import Tensor

from regard.families.vision_language import model as vilbert

VlnBert = vilbert.Vilbert  # the same network, with other settings
Head = Literal["pretraining", "score"]
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "width": 64, "heads": 4, "depth": 3, "ffn_width": 128, "max_length": 128,
        "region_width": 64, "region_heads": 4, "region_depth": 2, "region_ffn_width": 128,
        "link_width": 64, "link_heads": 4, "word_links": (1, 2), "region_links": (0, 1),
    },
    "small": {
        "width": 256, "heads": 4, "depth": 4, "ffn_width": 1024, "max_length": 128,
        "region_width": 256, "region_heads": 4, "region_depth": 3, "region_ffn_width": 512,
        "link_width": 256, "link_heads": 4, "word_links": (1, 2, 3), "region_links": (0, 1, 2),
    },
    "base": {},
}  # fmt: skip


class VlnbertConfig(vilbert.VilbertConfig):
    """Sizes and choices of a VLN-BERT; the defaults are the paper's."""

    region_features: PositiveInt = 51  # numbers of a step
    region_places: PositiveInt = 11  # of these, those that say where it is
    region_targets: Literal["features"] = "features"
    head: Head = "score"


def score_candidates(
    model: Callable[..., Any],
    words: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    features: Float[Tensor, "B C R F"],
    places: Float[Tensor, "B C R P"],
    step_mask: Bool[Tensor, "B C R"],
) -> Float[Tensor, "B C"]:
    """The scores of C paths for each of B instructions; -inf where there is no path.

    `model` takes tokens, features and places as ViLBERT does, and its output has a `score`.
    """
    paths = step_mask.shape[1]
    repeated = (each.repeat_interleave(paths, dim=0) for each in (words, mask))
    rows = step_mask.any(dim=-1)
    # A path that is not there keeps its first row, so that no query is without a key.
    visible = step_mask.flatten(0, 1).clone()
    visible[:, 0] = True
    scores: Tensor = model(*repeated, features.flatten(0, 1), places.flatten(0, 1), visible).score
    return scores.float().view(-1, paths).masked_fill(~rows, float("-inf"))


EXAMPLE = replace(vilbert.EXAMPLE, reads="texts of {source} tokens with {target} steps each")
