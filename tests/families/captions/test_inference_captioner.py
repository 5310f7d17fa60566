"""The captioner as a pipeline: captions of images, alone and together, and where it looked."""

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.errors import UsageError
from regard.families.captions.pipeline import ImageCaptioner

KINDS = ["soft", "hard", "blind", "heads"]


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (20 + n, 24, 3), dtype=np.uint8)) for n in range(5)]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [*((kind, {"beam": 3, "n_best": 2}) for kind in KINDS), ("soft", {}), ("heads", {"sample": True, "seed": 4})],
    ids=str,
)
def test_images_get_the_same_captions_alone_and_together(make_captioner, images, kind, changes):
    captioner = regard.load(make_captioner(kind))
    assert isinstance(captioner, ImageCaptioner)
    together = captioner.caption(images, **changes)
    for image, found in zip(images, together, strict=True):
        (alone,) = captioner.caption(image, **changes)
        assert (alone.text, alone.ids) == (found.text, found.ids) and alone.score == pytest.approx(
            found.score, abs=1e-4
        )
        assert [each.text for each in alone.alternatives] == [each.text for each in found.alternatives]
        assert len(found.alternatives) <= changes.get("n_best", 1) - 1
        assert "<unk>" not in found.text and len(found.ids) <= 9


@pytest.mark.parametrize("kind", ["soft", "hard", "heads"])
def test_attention_is_that_of_the_model(make_captioner, images, kind):
    captioner = regard.load(make_captioner(kind))
    (found,) = captioner.caption(images[0])
    seen = captioner.attention(images[0], found.ids)
    assert seen.tokens == found.text.split() and seen.grid == (8, 8) and seen.pixels.shape == (3, 16, 16)
    heads = 2 if kind == "heads" else 1
    for weights in seen.weights.values():
        assert weights.shape == (heads, len(found.ids), 64)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    match kind:
        case "hard":
            soft, drawn = seen.weights.values()
            assert set(np.unique(drawn)) == {0.0, 1.0} and (soft.argmax(-1) == drawn.argmax(-1)).all()
        case "heads":
            assert list(seen.weights) == ["decoder.decoder.0.cross", "decoder.decoder.1.cross"] and not seen.gates
    if kind != "heads":
        pixels = captioner.preprocessing.normalise(torch.from_numpy(captioner.pixels(images[0]))[None])
        with torch.inference_mode():
            _, read = captioner.model(pixels, torch.tensor([[captioner.tokenizer.pad, *found.ids]]))
        first = next(iter(seen.weights.values()))
        np.testing.assert_allclose(first[0], read.probabilities[0, : len(found.ids)], atol=1e-6)
        assert seen.gates == pytest.approx(read.gates[0, : len(found.ids)].tolist(), abs=1e-6)


def test_what_cannot_be_is_refused(make_captioner, make_classifier, images):
    blind = regard.load(make_captioner("blind"))
    with pytest.raises(UsageError, match="no attention to look at"):
        blind.attention(images[0], [4])
    with pytest.raises(UsageError, match="expected a captioner"):
        ImageCaptioner.load(make_classifier("vit"))
