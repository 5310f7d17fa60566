"""Every claim of the lectures that a command can put to the test: one row a claim."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from regard.claims.claim import Claim, ClaimOptions, Verdict
from regard.errors import UsageError


def _from(module: str, test: str) -> Callable[[ClaimOptions], Verdict]:
    """A test by name; its module, and all of training with some, is imported only when it runs."""

    def run(options: ClaimOptions) -> Verdict:
        verdict: Verdict = getattr(import_module(f"regard.claims.{module}"), test)(options)
        return verdict

    return run


def _structural(name: str, lecture: str, statement: str, test: str) -> Claim:
    return Claim(name, lecture, statement, _from("structural_claims", test))


def _measured(name: str, lecture: str, statement: str, test: str) -> Claim:
    return Claim(name, lecture, statement, _from("measured_claims", test))


def _trained(name: str, lecture: str, statement: str, test: str) -> Claim:
    return Claim(name, lecture, statement, _from("trained_claims", test), trains=True)


CLAIMS = (
    _measured(
        "gradient-flow",
        "1 recurrent networks",
        "Gradients explode or vanish with the largest singular value; not along open gates of a GRU or an LSTM.",
        "gradient_flow",
    ),
    _trained(
        "gradient-flow-trained",
        "1 recurrent networks",
        "Trained GRUs and LSTMs remember over more steps than a trained RNN.",
        "gradient_flow_trained",
    ),
    _structural(
        "gru-unrolled",
        "14 from GRU to attention",
        "An unrolled GRU is a weighted sum of all earlier candidates.",
        "gru_unrolled",
    ),
    _trained(
        "fixed-context",
        "3 RNN + attention",
        "One context vector is a bottleneck: attention translates long sentences better.",
        "fixed_context",
    ),
    _trained(
        "alignment",
        "3 RNN + attention",
        "Attention learns to align words, crossings too, from translations alone.",
        "alignment",
    ),
    _structural(
        "attention-is-unsupervised",
        "3 RNN + attention",
        "Gradients flow through the attention weights without any supervision of them.",
        "gradients_reach_attention",
    ),
    _trained(
        "do-not-supervise",
        "3 RNN + attention",
        "Attention need not be supervised: translations are as good without it.",
        "guidance",
    ),
    _trained("soft-or-hard", "4 captioning", "Soft attention learns better than hard attention.", "hard_attention"),
    _structural(
        "content-or-location", "14 kinds of attention", "Attention is by content or by location.", "content_or_location"
    ),
    _structural(
        "worked-example",
        "5 the attention layer",
        "Scores [31, 27, 22] / √3 give the weights .6, .2, .2 (a slide).",
        "worked_example",
    ),
    _structural(
        "permutation",
        "5 the attention layer",
        "Self-attention without positions is permutation equivariant; positions break it.",
        "permutation",
    ),
    _structural(
        "mask-by-a-number", "5 the attention layer", "A score of -1e9 masks as -∞ does.", "masked_by_a_large_number"
    ),
    _measured(
        "scaling",
        "5 the attention layer",
        "Large dot products saturate the softmax; the division by √d prevents it.",
        "scaling",
    ),
    _trained(
        "scaling-trained",
        "5 the attention layer",
        "A Transformer learns better if scores are divided by √d.",
        "scaling_trained",
    ),
    _measured(
        "heads-cost",
        "5 the attention layer",
        "All heads together cost about as much as one head of full width.",
        "heads_cost",
    ),
    _structural(
        "one-weighted-sum",
        "14 why many heads",
        "One weighted sum loses resolution; several heads keep it.",
        "one_weighted_sum",
    ),
    _trained("many-heads", "5 the attention layer", "Several heads translate better than one wide head.", "many_heads"),
    _structural(
        "similarity-search",
        "14 misconceptions",
        "Attention is a vector similarity search (a misconception).",
        "similarity_search",
    ),
    _structural(
        "layer-by-layer",
        "14 misconceptions",
        "Decoder layer i reads encoder layer i (a misconception).",
        "memory_of_layers",
    ),
    _trained(
        "positions",
        "6 position",
        "Sinusoidal positions are better than linear, learned, rotary and concatenated ones.",
        "positions",
    ),
    _measured(
        "three-ways",
        "7 the Transformer",
        "Recurrence is sequential, convolution needs depth to see far, attention sees all at once.",
        "three_ways_of_sequences",
    ),
    _trained(
        "three-ways-trained",
        "7 the Transformer",
        "At equal cost, attention translates better than convolution and recurrence.",
        "three_ways_trained",
    ),
    _structural(
        "layer-norm",
        "7 the Transformer",
        "The σ of layer norm is the root of the sum of squares (a slide).",
        "layer_norm_deviation",
    ),
    _structural(
        "crossing", "14 complexity per layer", "Self-attention is cheaper than recurrence while n < d.", "crossing"
    ),
    _trained(
        "pretraining",
        "8 pre-training",
        "BERT and GPT learn more from few labels after pre-training than from scratch.",
        "pretraining",
    ),
    _structural(
        "memory-of-pixels",
        "9 attention inside CNNs",
        "Attention between all pixels of 128 x 128 needs 768 GB.",
        "memory_of_pixels",
    ),
    _structural(
        "patch-is-convolution", "10 ViT", "The patch embedding is a strided convolution.", "patch_is_convolution"
    ),
    _structural(
        "feed-forward-is-convolution",
        "14 equivalences",
        "The feed-forward part is two 1 x 1 convolutions.",
        "feed_forward_is_convolution",
    ),
    _trained("little-data", "10 ViT", "With little data a ResNet is better than a ViT.", "little_data"),
    _measured(
        "equal-flops",
        "14 two lectures disagree",
        "A ViT is faster than a ConvNet at equal FLOPs (another lecture: dearer to train and run).",
        "equal_flops",
    ),
    _structural(
        "hierarchical", "14 shapes of stages", "CNNs and Swins are hierarchical, a ViT is isotropic.", "hierarchical"
    ),
    _trained("swin-or-vit", "11 Swin", "A Swin is more accurate than a ViT that is trained alike.", "swin_or_vit"),
    _measured(
        "windows",
        "11 Swin",
        "Attention in windows grows linearly, attention between all patches quadratically.",
        "windows",
    ),
    _measured(
        "superposition",
        "13 reading models",
        "Networks represent more features than they have neurons.",
        "more_features_than_neurons",
    ),
)


def find_claim(name: str) -> Claim:
    """A claim by its name."""
    for claim in CLAIMS:
        if claim.name == name:
            return claim
    raise UsageError(f"there is no claim {name!r}; `regard claims` lists {len(CLAIMS)} of them")
