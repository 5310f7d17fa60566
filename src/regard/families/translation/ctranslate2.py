"""Export of translators to CTranslate2 (https://github.com/OpenNMT/CTranslate2), for its class `Translator`.

The model is described with the package's own `specs`, so its file format matches the installed version. Positions are
always exported as a table. Tokens that Regard never generates get an output bias of -1e9, so the exported model gives
the same answers as Regard without further options.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.multihead import MultiHeadAttention
from regard.attention.positions import Added, LearnedPositions
from regard.checkpoints.folder import write_folder
from regard.checkpoints.models import bare, own_tensors
from regard.data.tokenizers.pair import PairTokenizer
from regard.errors import CheckpointError, UsageError
from regard.families.conversion import Conversion
from regard.families.translation.transformer import Transformer
from regard.layers.blocks import DecoderLayer, EncoderLayer, FeedForward
from regard.optional import needed

EXTRA = "export"
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_new": "GELUTanh", "quick_gelu": "GELUSigmoid", "swish": "SWISH"}
NEVER = -1e9  # added to the logits of tokens that no answer may contain
LONGEST = 1024  # positions of the exported table if the model itself has no limit


def convert_to_ctranslate2(conversion: Conversion, target: Path) -> None:
    """Write a translator for CTranslate2, beside its tokenizer."""
    tokenizer = conversion.tokenizer
    if not isinstance(tokenizer, PairTokenizer):
        raise UsageError("CTranslate2 is given a translator's tokenizer of sentence pairs, and this model has none")
    side = tokenizer.target
    export_ctranslate2(
        conversion.loaded.model, target, source=tokenizer.source.vocabulary, target=side.vocabulary,
        start=side.start, end=side.end, unknown=side.unknown, extras=conversion.write_extras,
    )  # fmt: skip


def export_ctranslate2(
    model: nn.Module,
    folder: Path,
    *,
    source: Sequence[str],
    target: Sequence[str],
    start: int,
    end: int,
    unknown: int,
    extras: Callable[[Path], None] | None = None,
) -> None:
    """Write a Transformer for CTranslate2. `source` and `target` are the pieces of its vocabularies; the token ids are
    those of the target. `extras` adds further files (tokenizer). CTranslate2 appends the end token to a source
    itself."""
    module = bare(model)
    if not isinstance(module, Transformer):
        raise CheckpointError(f"a {type(module).__name__} cannot be exported to CTranslate2; only a Transformer can")
    _check(module)
    spec = _spec(module)
    _fill(spec, module, never=[token for token in {start, module.config.pad} if token != end])
    source, target = _named(source, module.config.source_vocab), _named(target, module.config.target_vocab)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.add_source_eos = True
    spec.config.eos_token, spec.config.unk_token = target[end], target[unknown]
    spec.config.decoder_start_token = spec.config.bos_token = target[start]
    spec.validate()
    spec.optimize()

    def write(temporary: Path) -> None:
        spec.save(str(temporary))
        if extras is not None:
            extras(temporary)

    write_folder(folder, write, needs=sum(tensor.nbytes for tensor in own_tensors(module).values()))


def _check(model: Transformer) -> None:
    """Refuse configurations for which CTranslate2 has no layer."""
    c = model.config
    if c.encoder != "attention" or c.positions == "rotary" or c.join_positions != "add":
        raise CheckpointError(
            f"CTranslate2 has no translator with encoder = {c.encoder!r}, positions = {c.positions!r} and "
            f"join_positions = {c.join_positions!r}; it needs attention and positions that are added to the embeddings"
        )


def _spec(model: Transformer) -> Any:
    """The spec, without weights, of a translator of this shape."""
    specs, c = needed("ctranslate2.specs", extra=EXTRA), model.config
    activation = needed("ctranslate2.specs.common_spec", extra=EXTRA).Activation[ACTIVATIONS[c.activation]]
    return specs.TransformerSpec.from_config(
        (c.encoder_depth, c.decoder_depth), c.heads, pre_norm=c.norm == "pre", activation=activation
    )


def _fill(spec: Any, model: Transformer, never: list[int]) -> None:
    """Copy every weight into the spec."""
    c = model.config
    scale = c.width**0.5 if c.scale_embedding else 1.0
    for side, embedding, place, norm in (
        (spec.encoder, model.source_embedding, model.source_place, model.encoder_norm),
        (spec.decoder, model.target_embedding, model.target_place, model.decoder_norm),
    ):
        side.scale_embeddings = scale
        side.position_encodings.encodings = _table(place)
        if c.norm == "pre":
            _norm(side.layer_norm, norm)
        vectors = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        vectors.weight = _array(embedding.weight)
    assert isinstance(model.encoder, nn.ModuleList)
    for theirs, ours in zip(spec.encoder.layer, model.encoder, strict=True):
        assert isinstance(ours, EncoderLayer)
        _self_attention(theirs.self_attention, ours)
        _feed_forward(theirs.ffn, ours.feed_forward, ours.after_feed_forward.norm)
    for theirs, ours in zip(spec.decoder.layer, model.decoder, strict=True):
        assert isinstance(ours, DecoderLayer)
        _self_attention(theirs.self_attention, ours)
        _norm(theirs.attention.layer_norm, ours.after_cross.norm)
        _linear(theirs.attention.linear[0], ours.cross.query)
        _linear(theirs.attention.linear[1], ours.cross.key, ours.cross.value)
        _linear(theirs.attention.linear[2], ours.cross.output)
        _feed_forward(theirs.ffn, ours.feed_forward, ours.after_feed_forward.norm)
    bias = torch.zeros(c.target_vocab) if model.output_bias is None else model.output_bias.detach().clone()
    bias[never] = NEVER
    spec.decoder.projection.weight, spec.decoder.projection.bias = _array(model.output_weight), _array(bias)


def _self_attention(spec: Any, layer: EncoderLayer | DecoderLayer) -> None:
    attention: MultiHeadAttention = layer.attention
    _norm(spec.layer_norm, layer.after_attention.norm)
    _linear(spec.linear[0], attention.query, attention.key, attention.value)
    _linear(spec.linear[1], attention.output)


def _feed_forward(spec: Any, layer: FeedForward, norm: nn.Module) -> None:
    _norm(spec.layer_norm, norm)
    _linear(spec.linear_0, layer.up)
    _linear(spec.linear_1, layer.down)


def _norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm)
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _linear(spec: Any, *layers: nn.Linear) -> None:
    """Fuse several linear layers with the same input into one."""
    spec.weight = _array(torch.cat([layer.weight for layer in layers]))
    spec.bias = _array(torch.cat([layer.bias for layer in layers]))


def _table(place: nn.Module | None) -> Any:
    """The positions as the rows of a table."""
    assert isinstance(place, Added)
    positions = place.positions
    return _array(positions(len(positions.table) if isinstance(positions, LearnedPositions) else LONGEST))


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().contiguous().numpy()


def _named(pieces: Sequence[str], size: int) -> list[str]:
    """A unique name for every token: a token whose name is missing or a duplicate is named by its id."""
    seen: set[str] = set()
    names = []
    for number in range(size):
        piece = pieces[number] if number < len(pieces) else ""
        names.append(piece if piece and piece not in seen else f"<token-{number}>")
        seen.add(piece)
    return names
