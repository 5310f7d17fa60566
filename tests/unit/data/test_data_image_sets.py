"""Labelled images in common formats, written byte by byte."""

import gzip
import io
import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

from regard.data.images.datasets import Example, ImageStore, open_images
from regard.errors import DataError

RNG = np.random.default_rng(0)


def idx(array, magic):
    return np.array([magic, *array.shape], dtype=">u4").tobytes() + array.astype(np.uint8).tobytes()


def write_idx(folder, count=7, suffix=".gz"):
    pixels, labels = RNG.integers(0, 256, (count, 5, 4)), RNG.integers(0, 3, count)
    labels[0] = 2
    pack = gzip.compress if suffix else bytes
    (folder / f"train-images-idx3-ubyte{suffix}").write_bytes(pack(idx(pixels, 2051)))
    (folder / f"train-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(labels, 2049)))
    return folder / f"train-images-idx3-ubyte{suffix}", pixels, labels


def arrays(files):
    return [(np.asarray(image), label) for image, label in files.examples]


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_idx_files(tmp_path, suffix):
    path, pixels, labels = write_idx(tmp_path, suffix=suffix)
    files = open_images(path)
    assert files.labels == ("0", "1", "2")
    found = arrays(files)
    assert [label for _, label in found] == labels.tolist()
    assert all(np.array_equal(image, one) for (image, _), one in zip(found, pixels, strict=True))
    assert open_images(path, ["a", "b", "c"]).labels == ("a", "b", "c")


def test_broken_idx_files_are_refused_in_words(tmp_path):
    path, _, labels = write_idx(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be unpacked"):
        open_images(path)
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:-1]))
    with pytest.raises(DataError, match="should hold 7 x 5 x 4 bytes, but has 139"):
        open_images(path)
    path.write_bytes(gzip.compress(b"something else"))
    with pytest.raises(DataError, match="does not begin like an IDX file"):
        open_images(path)
    path.write_bytes(whole)
    labels_file = tmp_path / "train-labels-idx1-ubyte.gz"
    labels_file.write_bytes(gzip.compress(idx(labels[:-1], 2049)))
    with pytest.raises(DataError, match=r"7 images, but .* 6 labels"):
        open_images(path)
    labels_file.unlink()
    with pytest.raises(DataError, match="has no labels"):
        open_images(path)


@pytest.mark.parametrize("head", [1, 2])
def test_cifar_files(tmp_path, head):
    rows = RNG.integers(0, 256, (6, head + 3072)).astype(np.uint8)
    rows[:, :head] %= 4
    rows[0, head - 1] = 3
    for number, part in enumerate(np.split(rows, 2), start=1):
        (tmp_path / f"data_batch_{number}.bin").write_bytes(part.tobytes())
    (tmp_path / "batches.meta.txt").write_text("ant\nbee\ncat\ndog\n\n")
    files = open_images(tmp_path)
    assert files.labels == ("ant", "bee", "cat", "dog")
    for (image, label), row in zip(arrays(files), rows, strict=True):
        assert label == row[head - 1]
        assert np.array_equal(image.transpose(2, 0, 1).reshape(-1), row[head:])
    (tmp_path / "data_batch_1.bin").write_bytes(b"\0" * 100)
    with pytest.raises(DataError, match="no whole number of images"):
        open_images(tmp_path / "data_batch_1.bin")


def write_folder_of_classes(folder):
    for label, shade in (("dark", 10), ("light", 240)):
        (folder / label).mkdir(parents=True)
        for number in range(3):
            Image.new("L", (4, 4), shade + number).save(folder / label / f"{number}.png")
    (folder / "light" / "9.jpg").write_text("no picture")
    (folder / "light" / "notes.txt").write_text("not looked at")


def test_folders_and_archives_of_classes_hold_the_same(tmp_path):
    write_folder_of_classes(tmp_path / "set")
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "set", "set")
    found = []
    for path in (tmp_path / "set", tmp_path / "set.tar.gz"):
        files = open_images(path)
        assert (files.labels, files.by_class) == (("dark", "light"), True)
        examples = list(files.examples)
        (complaint,) = [each for each in examples if isinstance(each, str)]
        assert "9.jpg is no image" in complaint
        found.append(sorted((np.asarray(e[0])[0, 0], e[1]) for e in examples if not isinstance(e, str)))
    assert found[0] == found[1] == [(10, 0), (11, 0), (12, 0), (240, 1), (241, 1), (242, 1)]
    with pytest.raises(DataError, match="has the classes dark, light"):
        open_images(tmp_path / "set", ["x", "y"])


def test_what_is_no_set_of_pictures_is_refused(tmp_path):
    with pytest.raises(DataError, match="no file or folder"):
        open_images(tmp_path / "nowhere")
    with pytest.raises(DataError, match="one folder for each class"):
        open_images(tmp_path)
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(DataError, match="is no set of images"):
        open_images(tmp_path / "a.csv")
    (tmp_path / "cut.tar.gz").write_bytes(gzip.compress(b"abc"))
    with pytest.raises(DataError, match="archive"):
        open_images(tmp_path / "cut.tar.gz")
    with tarfile.open(tmp_path / "empty.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("readme.txt"), io.BytesIO())
    with pytest.raises(DataError, match="has no images"):
        open_images(tmp_path / "empty.tar")


def test_a_store_gives_back_what_was_written_and_travels(tmp_path):
    examples = [
        Example(RNG.integers(0, 256, (3, 4, 5), dtype=np.uint8), n % 3, RNG.integers(0, 4, (4, 5), dtype=np.uint8))
        for n in range(9)
    ]
    ImageStore.write(tmp_path / "store", iter(examples), ["a", "b", "c"], by_class=True)
    for store in (ImageStore.open(tmp_path / "store"), pickle.loads(pickle.dumps(ImageStore.open(tmp_path / "store")))):
        assert len(store) == 9
        assert np.array_equal(store.pixels, [each.pixels for each in examples])
        assert np.array_equal(store.masks, [each.mask for each in examples])
        assert store.labels.tolist() == [each.label for each in examples]
        assert store.names == ("a", "b", "c")
    (tmp_path / "store" / "pixels.bin").write_bytes(b"")
    with pytest.raises(DataError, match="prepare it again"):
        ImageStore.open(tmp_path / "store")


@pytest.mark.parametrize("by_class", [True, False])
def test_the_end_is_held_out_of_the_file_or_of_each_class(tmp_path, by_class):
    labels = [0] * 5 + [1] * 5 + [2] * 5
    examples = [Example(np.zeros((1, 1, 1), dtype=np.uint8), label) for label in labels]
    ImageStore.write(tmp_path / "store", examples, "abc", by_class=by_class)
    chosen = np.flatnonzero(ImageStore.open(tmp_path / "store").held_out(6))
    assert chosen.tolist() == ([3, 4, 8, 9, 13, 14] if by_class else [9, 10, 11, 12, 13, 14])
