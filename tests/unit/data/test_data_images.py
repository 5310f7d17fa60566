"""Images from good and bad files, and preprocessing, compared with Pillow and transformers."""

import contextlib
import io
import json
import struct
import warnings
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data.images.files import PREPROCESSING
from regard.data.images.reading import Preprocessing, grid, png, read_image
from regard.errors import CheckpointError, DataError


def picture(size=(9, 6), mode="RGB", seed=0):
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    return Image.fromarray(noise, "RGBA").convert(mode) if mode != "RGBA" else Image.fromarray(noise)


def saved(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("mode", "form"), [("RGB", "PNG"), ("L", "PNG"), ("RGB", "BMP"), ("CMYK", "TIFF"), ("1", "PNG")]
)
def test_pictures_of_many_kinds_become_grey_or_colour(mode, form):
    image = Image.new(mode, (5, 4)) if mode == "1" else picture(mode="RGB").convert(mode)
    found = read_image(saved(image, form))
    assert found.mode == ("L" if mode in ("L", "1") else "RGB")
    assert np.array_equal(np.asarray(found), np.asarray(image.convert(found.mode)))


def test_what_is_transparent_lies_on_white():
    clear = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    assert read_image(saved(clear, "PNG")).getpixel((0, 0)) == (255, 255, 255)
    paletted = Image.new("P", (2, 2))
    assert read_image(saved(paletted, "GIF", transparency=0)).getpixel((1, 1)) == (255, 255, 255)
    grey = Image.new("L", (2, 2))
    assert read_image(saved(grey, "PNG", transparency=0)).convert("RGB").getpixel((1, 1)) == (255, 255, 255)


def test_sixteen_bits_keep_their_brightness():
    deep = Image.fromarray(np.array([[0, 32768], [65535, 256]], dtype=np.uint16))
    assert np.array_equal(np.asarray(read_image(saved(deep, "PNG"))), [[0, 128], [255, 1]])


def test_a_photograph_held_sideways_is_turned():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be rotated to the right
    assert read_image(saved(picture((9, 6)), "JPEG", exif=exif)).size == (6, 9)


def test_of_an_animation_the_first_frame_is_looked_at_with_a_word():
    frames = [Image.new("RGB", (3, 3), colour) for colour in ("red", "blue")]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    with pytest.warns(UserWarning, match="2 frames; only the first"):
        assert read_image(data, "dance.gif").getpixel((0, 0))[0] > 200


def bomb(width, height):
    """A small PNG whose header declares a huge size."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(50_000, 50_000), (10_000, 10_000), (8193, 8192)])
def test_a_picture_too_large_is_refused_before_it_is_unpacked(size):
    with pytest.raises(DataError, match="at most 67,108,864 are read"):
        read_image(bomb(*size), "bomb.png")


def test_bad_files_are_refused_by_name(tmp_path):
    whole = saved(picture((64, 64)), "PNG")
    for cut in (0, 1, 20, len(whole) // 2):
        with pytest.raises(DataError, match=r"cat\.png"):
            read_image(whole[:cut], "cat.png")
    (tmp_path / "text.jpg").write_text("hello")
    with pytest.raises(DataError, match=r"text\.jpg is no image; expected PNG"):
        read_image(tmp_path / "text.jpg")
    (tmp_path / "phone.jpg").write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    with pytest.raises(DataError, match=r"phone\.jpg is an HEIC image, which is not read; save it as PNG or JPEG"):
        read_image(tmp_path / "phone.jpg")
    with pytest.raises(DataError, match=r"cat\.png is empty"):
        read_image(b"", "cat.png")
    with pytest.raises(DataError, match="no file"):
        read_image(tmp_path / "nothing.png")
    with pytest.raises(DataError, match="is a folder"):
        read_image(tmp_path)
    with pytest.raises(DataError, match="fractions"):
        read_image(saved(Image.new("F", (2, 2)), "TIFF"))


def test_damage_anywhere_is_a_data_error_or_a_picture():
    rng = np.random.default_rng(3)
    for form in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"):
        data = bytearray(saved(picture((24, 24), mode="RGB"), form))
        for _ in range(60):
            broken = data.copy()
            for at in rng.integers(0, len(data), 4):
                broken[at] = rng.integers(256)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with contextlib.suppress(DataError):
                    assert read_image(bytes(broken)).mode in ("L", "RGB")


VARIANTS = {
    "stretched": {"size": (8, 8), "resize": (8, 8)},
    "cut": {"size": (8, 8), "resize": 8},
    "smaller cut": {"size": (7, 5), "resize": 10},
    "too small": {"size": (12, 12)},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_preprocessing_is_what_transformers_does_with_the_file_we_write(variant, tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = Preprocessing(**VARIANTS[variant], mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    ours.save(tmp_path)
    values = json.loads((tmp_path / PREPROCESSING).read_text())
    kind = getattr(transformers, f"{values['image_processor_type']}Pil", None) or getattr(
        transformers, values["image_processor_type"], None
    )
    if kind is None:
        pytest.skip("this transformers has no such image processor")
    try:
        theirs = kind.from_pretrained(str(tmp_path))
    except ImportError:
        pytest.skip("this transformers wants torchvision")
    image = picture((23, 17))
    expected = theirs(image, return_tensors="pt")["pixel_values"]
    found = ours.normalise(torch.from_numpy(ours.pixels(image))[None])
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_preprocessing_survives_its_file(variant, tmp_path):
    values = VARIANTS[variant]
    if values["size"][0] != values["size"][1]:
        values = {**values, "size": (7, 7)}
    ours = Preprocessing(**values, mean=(0.4,), std=(0.2,))
    ours.save(tmp_path)
    assert Preprocessing.load(tmp_path, ours.size[0], 1) == ours


@pytest.mark.parametrize(
    ("theirs", "size", "resize"),
    [
        ({"size": 224, "do_resize": True}, (224, 224), (224, 224)),
        ({"size": {"height": 256, "width": 256}, "do_center_crop": True, "crop_size": 224}, (224, 224), (256, 256)),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, (224, 224), 256),
        ({"size": {"shortest_edge": 384}, "crop_pct": 1.0}, (384, 384), (384, 384)),
    ],
)
def test_the_forms_of_other_libraries_are_understood(theirs, size, resize, tmp_path):
    (tmp_path / PREPROCESSING).write_text(json.dumps({**theirs, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}))
    found = Preprocessing.load(tmp_path, size[0], 3)
    assert (found.size, found.resize) == (size, resize)


def test_a_folder_whose_preprocessing_does_not_fit_is_refused(tmp_path):
    Preprocessing(size=(8, 8), resize=8, mean=(0.5,), std=(0.5,)).save(tmp_path)
    with pytest.raises(CheckpointError, match="for 1 channels; the model reads 3"):
        Preprocessing.load(tmp_path, 8, 3)
    assert Preprocessing.load(tmp_path, 9, 1).size == (8, 8)  # models accept other image sizes
    (tmp_path / PREPROCESSING).write_text("[]")
    with pytest.raises(CheckpointError, match="understood"):
        Preprocessing.load(tmp_path, 8, 1)


def test_normalising_is_undone():
    ours = Preprocessing(size=(4, 4), mean=(0.1, 0.2, 0.3), std=(0.9, 0.5, 0.7))
    pixels = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    assert torch.equal(ours.restored(ours.normalise(pixels)), pixels)


def test_sheets_and_files_show_the_pictures_they_were_made_of():
    pictures = torch.randint(0, 255, (5, 3, 4, 6), dtype=torch.uint8)
    sheet = grid(pictures, 2)
    assert sheet.shape == (3, 14, 13)
    assert torch.equal(sheet[:, 5:9, 7:13], pictures[3])
    again = read_image(png(pictures[0]))
    assert np.array_equal(np.asarray(again).transpose(2, 0, 1), pictures[0].numpy())
