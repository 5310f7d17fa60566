"""Annotated images: COCO and Pascal VOC are read alike, what is wrong is named, and boxes follow their images."""

import io
import json
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from regard.data.synthetic.shapes import scenes
from regard.errors import DataError
from regard.families.detection.annotations import open_regions
from regard.families.detection.data import FittedImage, fit, padded
from regard.families.detection.recipe import BoxAugmentation
from regard.families.detection.view import coco_document

BOXES = [[2, 3, 10, 8], [12, 1, 6, 14]]  # COCO's x, y, width, height
XML = """<annotation><filename>{name}</filename><object><name>dog</name><bndbox><xmin>3</xmin><ymin>4</ymin>
<xmax>12</xmax><ymax>11</ymax></bndbox></object><object><name>cat</name><difficult>1</difficult><bndbox><xmin>13</xmin>
<ymin>2</ymin><xmax>18</xmax><ymax>15</ymax></bndbox></object></annotation>"""


def write_images(folder, names=("a.png", "b.png")):
    folder.mkdir(parents=True)
    for name in names:
        Image.new("RGB", (20, 16), "red").save(folder / name)


def coco(tmp_path, boxes=BOXES, **changes):
    document = {
        "images": [{"id": 7, "file_name": "a.png"}, {"id": 3, "file_name": "b.png"}],
        "categories": [{"id": 4, "name": "cat"}, {"id": 9, "name": "dog"}],
        "annotations": [
            {"image_id": 7, "category_id": 9 if n == 0 else 4, "bbox": box, "iscrowd": int(n == 1)}
            for n, box in enumerate(boxes)
        ],
        **changes,
    }
    path = tmp_path / "train.json"
    path.write_text(json.dumps(document))
    return path


def test_coco_and_voc_say_the_same(tmp_path):
    write_images(tmp_path / "train_images")
    first = list(open_regions(coco(tmp_path)).examples())
    voc = tmp_path / "voc"
    write_images(voc / "JPEGImages")
    (voc / "Annotations").mkdir()
    (voc / "ImageSets" / "Main").mkdir(parents=True)
    (voc / "Annotations" / "a.xml").write_text(XML.format(name="a.png"))
    (voc / "ImageSets" / "Main" / "some.txt").write_text("a\n")
    for path in (voc, voc / "ImageSets" / "Main" / "some.txt"):
        files = open_regions(path)
        assert files.names == ("cat", "dog")
        (second,) = files.examples()
        assert len(first) == 2 and not len(first[0].truth.boxes)  # in the order of their numbers
        np.testing.assert_array_equal(second.truth.boxes, first[1].truth.boxes)
        np.testing.assert_array_equal(second.truth.boxes, [[2, 3, 12, 11], [12, 1, 18, 15]])
        assert second.truth.labels.tolist() == first[1].truth.labels.tolist() == [1, 0]
        assert second.truth.ignored.tolist() == first[1].truth.ignored.tolist() == [False, True]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_of_photographs_on_their_side_stay_on_their_objects(orientation, tmp_path):
    """A box is drawn into the stored pixels; where the size says that they were annotated, it must be found again."""
    pixels = np.zeros((16, 20, 3), np.uint8)
    pixels[3:11, 2:12] = 255
    exif = Image.Exif()
    exif[0x112] = orientation
    (tmp_path / "train_images").mkdir()
    for name in ("a.png", "b.png"):
        Image.fromarray(pixels).save(tmp_path / "train_images" / name, exif=exif)
    shown = np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / "train_images" / "a.png")))[..., 0]
    (top, bottom), (left, right) = ((places.min(), places.max() + 1) for places in np.nonzero(shown))
    upright = [int(left), int(top), int(right - left), int(bottom - top)]
    for size, box in (((20, 16), [2, 3, 10, 8]), (shown.shape[::-1], upright)):
        if size == (20, 16) and 2 <= orientation <= 4:
            box = upright  # nothing tells that the stored pixels were meant
        images = [{"id": 7, "file_name": "a.png", "width": size[0], "height": size[1]}]
        (found,) = open_regions(coco(tmp_path, [box], images=images)).examples()
        assert found.truth.boxes.tolist() == [[left, top, right, bottom]]


def test_boxes_of_an_image_of_another_size_are_refused(tmp_path):
    write_images(tmp_path / "train_images")
    images = [{"id": 7, "file_name": "a.png", "width": 40, "height": 32}, {"id": 3, "file_name": "b.png"}]
    told = r"a\.png: is annotated as 40 x 32 pixels but has 20 x 16, so its boxes do not fit it"
    with pytest.raises(DataError, match=told):
        list(open_regions(coco(tmp_path, images=images)).examples())
    skipped: list[str] = []
    (left,) = open_regions(coco(tmp_path, images=images)).examples(skipped)
    assert not len(left.truth.boxes) and len(skipped) == 1 and "a.png" in skipped[0]
    images[0] |= {"width": 16, "height": 20}  # no EXIF entry explains it
    with pytest.raises(DataError, match="annotated as 16 x 20"):
        list(open_regions(coco(tmp_path, images=images)).examples())
    images[0] |= {"width": 0, "height": None}  # not known
    assert len(list(open_regions(coco(tmp_path, images=images)).examples())) == 2


def test_odd_files_of_pascal_voc(tmp_path):
    write_images(tmp_path / "JPEGImages")
    (tmp_path / "Annotations").mkdir()
    xml = XML.format(name=" a.png\n").replace("<object>", "<size><width>0</width><height/></size><object>", 1)
    file = tmp_path / "Annotations" / "a.xml"
    file.write_text(xml.replace("dog", " dog\n"))
    files = open_regions(tmp_path)
    assert files.names == ("cat", "dog") and len(next(iter(files.examples())).truth.boxes) == 2
    file.write_text(xml.replace("<name>dog</name>", ""))
    with pytest.raises(DataError, match=r"a\.xml is not an annotation of Pascal VOC .*an object has no name"):
        open_regions(tmp_path)
    file.write_text(xml.replace("<width>0</width><height/>", "<width>10</width><height>8</height>"))
    with pytest.raises(DataError, match="annotated as 10 x 8 pixels but has 20 x 16"):
        list(open_regions(tmp_path).examples())


def test_a_byte_order_mark_is_no_part_of_the_annotations(tmp_path):
    write_images(tmp_path / "train_images")
    path = coco(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert open_regions(path).names == ("cat", "dog")


def test_images_may_lie_in_an_archive(tmp_path):
    write_images(tmp_path / "loose")
    with tarfile.open(tmp_path / "train_images.tar", "w") as archive:
        archive.add(tmp_path / "loose", "deep/loose")
    assert len(list(open_regions(coco(tmp_path)).examples())) == 2
    with pytest.raises(DataError, match="neither a folder nor a tar"):
        open_regions(coco(tmp_path), tmp_path / "nowhere.tar")


@pytest.mark.parametrize(
    ("box", "says"),
    [
        ([5, 5, 0, 4], r"train\.json: a\.png: box 1 of 1 is \(5, 5\) to \(5, 9\), which has no area"),
        ([5, 5, 4, -1], "which has no area"),
        ([15, 5, 9, 4], r"outside of the image of 20 x 16 pixels"),
        ([-9, -9, 4, 4], "outside of the image"),
        ([float("nan"), 5, 4, 4], "not finite numbers"),
    ],
)
def test_a_wrong_box_is_named_or_left_out(box, says, tmp_path):
    write_images(tmp_path / "train_images")
    files = open_regions(coco(tmp_path, [box]))
    with pytest.raises(DataError, match=says):
        list(files.examples())
    skipped: list[str] = []
    examples = list(files.examples(skipped))
    assert [len(each.truth.boxes) for each in examples] == [0, 0]
    assert len(skipped) == 1 and "box 1 of 1" in skipped[0]


def test_boxes_may_exceed_the_image_by_rounding(tmp_path):
    write_images(tmp_path / "train_images")
    _, example = open_regions(coco(tmp_path, [[-0.5, 2, 21, 14.4]])).examples()
    assert example.truth.boxes.tolist() == [[0, 2, 20, 16]]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"images": []}', "is not in COCO's form"),
        ("[1, 2]", "is not in COCO's form"),
        ("<html>", "is not in COCO's form"),
    ],
)
def test_another_format_is_refused(content, says, tmp_path):
    path = tmp_path / "train.json"
    path.write_text(content)
    with pytest.raises(DataError, match=says):
        open_regions(path)
    with pytest.raises(DataError, match=r"expected COCO's JSON, or a folder of Pascal VOC"):
        open_regions(path.rename(tmp_path / "train.csv"))
    with pytest.raises(DataError, match="has no annotations"):
        open_regions(tmp_path)
    (tmp_path / "yolo.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    with pytest.raises(DataError, match=r"yolo\.txt names '0', but there is no file .*0\.xml; expected COCO's JSON"):
        open_regions(tmp_path / "yolo.txt")


def test_missing_images_and_unknown_classes_are_named(tmp_path):
    write_images(tmp_path / "train_images", ["a.png"])
    with pytest.raises(DataError, match=r"b\.png: the image cannot be read"):
        list(open_regions(coco(tmp_path)).examples())
    skipped: list[str] = []
    assert len(list(open_regions(coco(tmp_path)).examples(skipped))) == 1 and len(skipped) == 1
    with pytest.raises(DataError, match="has the class 'dog'; the classes are cat, cow"):
        open_regions(coco(tmp_path), names=["cat", "cow"])
    with pytest.raises(DataError, match="of image 5, which the file does not list"):
        open_regions(coco(tmp_path, annotations=[{"image_id": 5, "category_id": 4, "bbox": [1, 1, 2, 2]}]))
    with pytest.raises(DataError, match="there is no file or folder"):
        open_regions(tmp_path / "none.json")


def test_images_are_fitted_and_padded():
    pixels, scales = fit(Image.new("RGB", (40, 30)), 20, 3)
    assert pixels.shape == (3, 15, 20) and scales == (0.5, 0.5)
    assert FittedImage(np.zeros((3, 15, 33), np.uint8), (33, 15)).canvas == (32, 64)
    assert padded(np.ones((1, 2, 3), dtype=np.uint8), (4, 4)).sum() == 6


def test_the_boxes_of_scenes_are_those_of_their_pixels():
    for scene in scenes(part="train", count=20, seed=3, size=256):
        for number, thing in enumerate(scene.things, start=1):
            rows, columns = np.nonzero(scene.owners == number)
            seen = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            assert np.abs(np.array(thing.box) * 256 - seen).max() <= 1.5, thing


# --- augmentation ---


def bright(image):
    """The box around the pixels of an image that are not black."""
    rows, columns = torch.nonzero(image.amax(0) > 0.5, as_tuple=True)
    return torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]).float()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"flip": 1.0},
        {"flip_vertical": 1.0},
        {"flip": 0.5, "flip_vertical": 0.5, "scale": (0.6, 1.4), "stretch": 1.3, "visible": 0.01},
    ],
)
def test_boxes_follow_their_images(settings):
    change = BoxAugmentation(**settings)
    draws = torch.from_numpy(change.draw(np.random.default_rng(2), 12))
    images, box = torch.zeros(12, 1, 64, 96), torch.tensor([20.0, 10.0, 50.0, 26.0])
    images[:, :, 10:26, 20:50] = 1.0
    sizes = torch.tensor([[60.0, 90.0]]).expand(12, 2)
    labels = torch.ones(12, 1, dtype=torch.long)
    moved = change.moved(images, sizes, box.expand(12, 1, 4), labels, draws)
    assert moved.labels.any()
    for image, found, label in zip(moved.images, moved.boxes[:, 0], moved.labels[:, 0], strict=True):
        if label:
            assert (bright(image) - found).abs().max() <= 1.5
    if not settings:
        torch.testing.assert_close(moved.images, images)
    if settings == {"flip": 1.0}:
        assert moved.boxes[0, 0].tolist() == [40.0, 10.0, 70.0, 26.0]  # mirrored within the image, not its canvas


def test_boxes_out_of_sight_do_not_count():
    change = BoxAugmentation(scale=(3.0, 3.0), visible=0.5)
    draws = torch.zeros(1, 30)
    boxes = torch.tensor([[[0.0, 0.0, 10.0, 10.0], [40.0, 40.0, 60.0, 60.0]]])
    moved = change.moved(torch.zeros(1, 1, 64, 64), torch.tensor([[64.0, 64.0]]), boxes, torch.tensor([[1, 2]]), draws)
    assert moved.labels.tolist() == [[1, 0]] and moved.boxes[0, 0].tolist() == [0.0, 0.0, 30.0, 30.0]


def test_found_objects_are_read_back_as_coco(tmp_path):
    from regard.families.detection.pipeline import Detected, DetectedObject

    write_images(tmp_path / "train_images", ["a.png"])
    answer = Detected((DetectedObject("dog", 0.9, (2.0, 3.0, 12.0, 11.0)),), (20, 16))
    path = tmp_path / "train.json"
    path.write_text(json.dumps(coco_document([("a.png", answer)], ["cat", "dog"])))
    (example,) = open_regions(path).examples()
    assert example.truth.boxes.tolist() == [[2, 3, 12, 11]] and example.truth.labels.tolist() == [1]


def test_drawn_objects_keep_the_size_of_the_image():
    from regard.families.detection.pipeline import DetectedObject
    from regard.families.detection.view import annotated_png

    drawn = annotated_png(Image.new("L", (40, 30)), [DetectedObject("dog", 0.9, (5.0, 6.0, 20.0, 25.0))], ["dog"])
    image = Image.open(io.BytesIO(drawn))
    assert image.size == (40, 30) and image.getpixel((5, 20)) != (0, 0, 0) and image.getpixel((30, 20)) == (0, 0, 0)
