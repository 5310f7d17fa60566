"""MViT and MViTv2 against timm's, with the same weights: the same logits and feature maps."""

import pytest
import torch

from regard.families.images.mvit import PRESETS, Mvit, MvitConfig

mvitv2 = pytest.importorskip("timm.models.mvitv2", reason="timm, which needs torchvision, is not installed")

SHAPES = [
    {},
    {"depths": (2, 1), "key_stride": 2, "image_size": 24},
    {"widen": "feed_forward", "heads": 2, "width": 16},
    {"class_token": True, "classes": 5, "channels": 1},
    {"class_token": True, "positions": "absolute", "residual_pooling": False, "widen": "feed_forward"},
    {"positions": "absolute", "patch_kernel": 3, "patch_stride": 2, "image_size": 20, "depths": (1, 1, 1)},
    {"residual_pooling": False, "ffn_ratio": 2.0, "norm_eps": 1e-3, "key_stride": 1},
]


def ours_of(changes, seed):
    torch.manual_seed(seed)
    sizes = {"image_size": 32, "width": 8, "depths": (1, 2, 1), "classes": 7, "drop_path": 0.0, "key_stride": 4}
    model = Mvit(MvitConfig(**{**sizes, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # large enough to reveal a mistake
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, std=0.3)
    return model


def theirs_of(config):
    c, padding = config, config.patch_kernel // 2
    strides = [(1, 1)] + [(2, 2)] * (len(c.depths) - 1)
    cfg = mvitv2.MultiScaleVitCfg(
        depths=c.depths, embed_dim=c.width, num_heads=c.heads, mlp_ratio=c.ffn_ratio, use_cls_token=c.class_token,
        expand_attn=c.widen == "attention", use_abs_pos=c.positions == "absolute", residual_pooling=c.residual_pooling,
        rel_pos_type="spatial" if c.positions == "relative" else "", stride_q=tuple(strides),
        stride_kv_adaptive=(c.key_stride, c.key_stride), patch_kernel=(c.patch_kernel,) * 2,
        patch_stride=(c.patch_stride,) * 2, patch_padding=(padding, padding), norm_eps=c.norm_eps,
    )  # fmt: skip
    return mvitv2.MultiScaleVit(cfg, img_size=c.image_size, in_chans=c.channels, num_classes=c.classes).eval()


NAMES = {
    "attention.query_pool.filter": "attn.pool_q", "attention.query_pool.norm": "attn.norm_q",
    "attention.key_pool.filter": "attn.pool_k", "attention.key_pool.norm": "attn.norm_k",
    "attention.value_pool.filter": "attn.pool_v", "attention.value_pool.norm": "attn.norm_v",
    "attention.places.rows": "attn.rel_pos_h", "attention.places.columns": "attn.rel_pos_w",
    "attention.output": "attn.proj", "attention_norm": "norm1", "feed_forward_norm": "norm2",
    "around_attention": "shortcut_proj_attn", "around_feed_forward": "shortcut_proj_mlp",
    "feed_forward.up": "mlp.fc1", "feed_forward.down": "mlp.fc2",
}  # fmt: skip


def their_weights(ours):
    """Our weights under timm's names; timm has one matrix for queries, keys and values."""
    state, theirs = dict(ours.state_dict()), {}
    for stage, layers in enumerate(ours.stages):
        for number in range(len(layers)):
            here = f"stages.{stage}.{number}."
            for kind in ("weight", "bias"):
                parts = [state.pop(f"{here}attention.{part}.{kind}") for part in ("query", "key", "value")]
                theirs[f"stages.{stage}.blocks.{number}.attn.qkv.{kind}"] = torch.cat(parts)
    for name, tensor in state.items():
        match name.split("."):
            case ["stages", stage, number, *rest]:
                own = ".".join(rest)
                start = next(start for start in NAMES if own.startswith(start))
                theirs[f"stages.{stage}.blocks.{number}.{NAMES[start]}{own.removeprefix(start)}"] = tensor
            case ["patches", kind]:
                theirs[f"patch_embed.proj.{kind}"] = tensor
            case ["class_token"]:
                theirs["cls_token"] = tensor[None, None]
            case ["positions", "table"]:
                theirs["pos_embed"] = tensor[None]
            case ["output", kind]:
                theirs[f"head.fc.{kind}"] = tensor
            case _:
                theirs[name] = tensor
    return theirs


@pytest.mark.parametrize("seed", range(len(SHAPES)))
def test_the_same_weights_give_the_same_logits_and_maps(seed):
    ours = ours_of(SHAPES[seed], seed)
    theirs = theirs_of(ours.config)
    theirs.load_state_dict(their_weights(ours), strict=True)
    images = torch.randn(3, ours.config.channels, ours.config.image_size, ours.config.image_size)
    with torch.inference_mode():
        assert (ours(images) - theirs(images)).abs().max() <= 1e-5
        maps = theirs.forward_intermediates(images, intermediates_only=True, norm=True)
        for own, expected in zip(ours.features(images), maps, strict=True):
            assert (own - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("preset", ["v2-t", "v2-s", "v2-b", "v2-l"])
def test_the_presets_are_timms(preset):
    names = {"t": "tiny", "s": "small", "b": "base", "l": "large"}
    with torch.device("meta"):
        ours = Mvit(MvitConfig(**PRESETS[preset]))
    theirs = mvitv2.MultiScaleVit(mvitv2.model_cfgs[f"mvitv2_{names[preset[-1]]}"], device="meta")
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
