"""Files of captions, the images that they belong to, and the words that are compared."""

import gzip
import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from regard.data.captions import caption_words, captioned_images, images_beside, read_captions
from regard.data.synthetic.shapes import scenes
from regard.errors import DataError


def picture(path):
    Image.fromarray(np.zeros((4, 5, 3), dtype=np.uint8)).save(path)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A man 's dog runs .", "a man 's dog runs"),
        ("The dog's ball, isn't it?", "the dog 's ball is n't it"),
        ("T-shirt at 3.5 metres!", "t-shirt at 3.5 metres"),
        ("...", ""),
        ("Two  children\u2019s toys", "two children 's toys"),
    ],
)
def test_words_are_lowercase_without_punctuation(text, words):
    assert caption_words(text) == words


def test_four_forms_of_files_say_the_same(tmp_path):
    expected = {"a.jpg": ["a dog", "the dog runs"], "b.jpg": ["a cat"]}
    (tmp_path / "one.tsv").write_text("a.jpg\t0\tA dog .\na.jpg\t1\tThe dog runs\nb.jpg\t0\tA cat\n")
    (tmp_path / "two.txt").write_text("a.jpg#0\tA dog .\na.jpg#1\tThe dog runs\nb.jpg#0\tA cat\n")
    (tmp_path / "three.csv").write_text('image,caption\na.jpg,"A dog ."\na.jpg,The dog runs\nb.jpg,A cat\n')
    rows = [("a.jpg", "A dog ."), ("a.jpg", "The dog runs"), ("b.jpg", "A cat")]
    names = {"a.jpg": 1, "b.jpg": 2}
    coco = {
        "images": [{"id": number, "file_name": f"val/{name}"} for name, number in names.items()],
        "annotations": [{"image_id": names[name], "caption": text} for name, text in rows],
    }
    (tmp_path / "four.json").write_text(json.dumps(coco))
    (tmp_path / "five.tsv.gz").write_bytes(gzip.compress((tmp_path / "one.tsv").read_bytes()))
    for name in ("one.tsv", "two.txt", "three.csv", "four.json", "five.tsv.gz"):
        assert read_captions(tmp_path / name) == expected, name


def test_images_are_found_beside_their_captions(tmp_path):
    captions = tmp_path / "dev_captions.tsv"
    captions.write_text("a.png\t0\tA dog\n")
    with pytest.raises(DataError, match="not beside it"):
        images_beside(captions)
    (tmp_path / "dev_images").mkdir()
    picture(tmp_path / "dev_images" / "a.png")
    assert images_beside(captions) == tmp_path / "dev_images"
    (tmp_path / "annotations").mkdir()
    (tmp_path / "val2014").mkdir()
    assert images_beside(tmp_path / "annotations" / "captions_val2014.json") == tmp_path / "val2014"


@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        ({"image_id": 2, "caption": "A dog"}, "annotation 2 is of image 2, which the file does not list"),
        ({"image_id": "a", "caption": None}, "annotation 2 has the caption None; expected a text"),
        ({"image_id": "a"}, "not COCO's JSON of captions .KeyError"),
    ],
)
def test_a_wrong_annotation_is_named(annotation, told, tmp_path):
    document = {"images": [{"id": "a", "file_name": "a.png"}], "annotations": [{"image_id": "a", "caption": "A cat"}]}
    document["annotations"].append(annotation)
    (tmp_path / "captions.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match=told):
        read_captions(tmp_path / "captions.json")


def test_an_archive_is_read_in_one_pass(tmp_path):
    captions = tmp_path / "x_captions.tsv"
    captions.write_text("b.png\t0\tA cat\na.png\t0\tA dog\na.png\t1\tTwo dogs\n")
    with tarfile.open(tmp_path / "x_images.tar.gz", "w:gz") as archive:
        for name in ("a.png", "b.png"):
            data = picture(tmp_path / name).read_bytes()
            member = tarfile.TarInfo(f"train/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    found = list(captioned_images(captions, problems=[]))
    assert [(each.name, each.captions) for each in found] == [("a.png", ["a dog", "two dogs"]), ("b.png", ["a cat"])]


def test_a_second_image_of_a_name_and_a_giant_are_left_out_by_name(tmp_path, monkeypatch):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        picture(tmp_path / folder / "a.png")
    picture(tmp_path / "one" / "b.png")
    captions = tmp_path / "captions.tsv"
    captions.write_text("a.png\t0\tA dog\nb.png\t0\tA cat\n")
    problems = []
    assert len(list(captioned_images(captions, tmp_path, problems=problems, skip_bad=True))) == 2
    assert len(problems) == 1 and "second image of this name" in problems[0]
    monkeypatch.setattr("regard.data.images.reading.MOST_PIXELS", 10)
    with pytest.raises(DataError, match="make it smaller"):
        list(captioned_images(captions, tmp_path / "one", problems=[]))


def test_scenes_have_an_owner_for_every_pixel_and_all_true_captions():
    for scene in scenes(part="train", count=40, seed=2, size=32):
        assert ((scene.owners > 0) == (scene.mask > 0)).all()
        for number, thing in enumerate(scene.things, start=1):
            rows, columns = np.nonzero(scene.owners == number)
            assert len(rows) and np.hypot(columns.mean() + 0.5 - 32 * thing.x, rows.mean() + 0.5 - 32 * thing.y) < 4
        others = len(scene.things) - 1
        assert scene.caption in scene.captions and 1 <= len(scene.captions) <= [1, 1, 2, 6][others]
