"""The datasets known by name, from a folder or a mirror, always checked."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from capemix.data import DATASETS, DEFAULT_DATASET, Table, load_dataset, open_data
from capemix.data.registry import DataFile, DatasetInfo, FilePair
from capemix.data.schema import Category, Number
from capemix.errors import InputError

NAME = "mnist"
LABELS = {"train": [0, 1, 1, 0, 1], "t10k": [1, 0]}


def idx_bytes(array: np.ndarray) -> bytes:
    sizes = np.array(array.shape, dtype=">u4").tobytes()
    return bytes((0, 0, 8, array.ndim)) + sizes + array.astype(np.uint8).tobytes()


def small_files() -> dict[str, bytes]:
    files = {}
    for part, labels in LABELS.items():
        images = np.arange(len(labels) * 6).reshape(len(labels), 2, 3)
        files[f"{part}-images-idx3-ubyte.gz"] = idx_bytes(images)
        files[f"{part}-labels-idx1-ubyte.gz"] = idx_bytes(np.array(labels))
    return files


def small_info(*mirrors: str) -> DatasetInfo:
    """A dataset of seven images of 2 x 3 under the name of a large one."""
    contents = small_files()

    def pair(part: str) -> FilePair:
        images, labels = (
            DataFile(
                name,
                hashlib.sha256(contents[name]).hexdigest(),
                tuple(f"{mirror}/{name}" for mirror in mirrors),
            )
            for name in (f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz")
        )
        return FilePair(images, labels)

    return replace(
        DATASETS[NAME],
        image_shape=(2, 3),
        classes=(0, 1),
        class_sizes=(2, 3),
        train=pair("train"),
        test=pair("t10k"),
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with the four small files."""
    monkeypatch.setitem(DATASETS, NAME, small_info())
    monkeypatch.setenv("CAPEMIX_DATA", str(tmp_path))
    inside = tmp_path / NAME
    inside.mkdir()
    for name, content in small_files().items():
        (inside / name).write_bytes(gzip.compress(content))
    return inside


@dataclass
class Mirror:
    """A loopback server and what it was asked for."""

    url: str
    files: dict[str, bytes]
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    files = {name: gzip.compress(content) for name, content in small_files().items()}
    served = Mirror("", files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/")
            served.asked.append(name)
            found = served.files.get(name)
            self.send_response(200 if found is not None else 404)
            self.send_header("Content-Length", str(len(found or b"")))
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.delenv("CAPEMIX_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("pooch.os_cache", lambda project: tmp_path / "cache" / project)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        served.url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setitem(DATASETS, NAME, small_info(served.url))
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()


def test_digits_is_the_default_and_splits_as_declared() -> None:
    train, test = load_dataset(DEFAULT_DATASET)
    info = DATASETS["digits"]
    assert DEFAULT_DATASET == "digits"
    assert len(train) + len(test) == 1797
    assert tuple(train.class_counts().tolist()) == info.class_sizes
    assert test.class_counts().min() >= 34
    low, high = info.value_range
    assert (train.features.min(), train.features.max()) == (low, high)
    assert train.features.dtype == np.uint8
    assert train.image_shape == info.image_shape
    assert train.width == info.width == 64


def test_digits_gives_every_fifth_row_of_a_class_to_the_test_part() -> None:
    from sklearn.datasets import load_digits

    features, target = load_digits(return_X_y=True)
    test = load_dataset("digits")[1]
    for label in range(10):
        expected = features[target == label][4::5]
        np.testing.assert_array_equal(test.features[test.labels == label], expected)


@pytest.mark.parametrize("name", list(DATASETS))
def test_what_is_declared_hangs_together(name: str) -> None:
    info = DATASETS[name]
    assert info.name == name
    assert len(info.class_sizes) == len(info.classes)
    assert info.source
    assert info.licence
    for pair in (info.train, info.test):
        for file in (pair.images, pair.labels) if pair else ():
            assert len(file.sha256) == 64
            assert len(file.urls) >= 2
            assert all(url.endswith("/" + file.name) for url in file.urls)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_large_datasets_declare_sixty_thousand_rows(name: str) -> None:
    assert sum(DATASETS[name].class_sizes) == 60_000
    assert DATASETS[name].value_range == (0, 255)


@pytest.mark.usefixtures("folder")
def test_files_in_the_data_folder_are_read() -> None:
    train, test = load_dataset(NAME)
    assert train.labels.tolist() == LABELS["train"]
    assert test.labels.tolist() == LABELS["t10k"]
    assert train.features.tolist() == np.arange(30).reshape(5, 6).tolist()
    assert train.feature_names[-1] == "pixel_1_2"


def test_another_gzip_packing_of_the_same_content_is_accepted(folder: Path) -> None:
    for name, content in small_files().items():
        (folder / name).write_bytes(gzip.compress(content, compresslevel=1, mtime=123))
    assert len(load_dataset(NAME)[0]) == 5


def test_changed_content_is_refused_by_name(folder: Path) -> None:
    name = "train-images-idx3-ubyte.gz"
    content = bytearray(small_files()[name])
    content[-1] ^= 1
    (folder / name).write_bytes(gzip.compress(bytes(content)))
    with pytest.raises(InputError, match=rf"{name} does not have .*fetch the file again"):
        load_dataset(NAME)


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>not here</html>", gzip.compress(b"short")],
    ids=["empty", "another kind", "cut short"],
)
def test_a_broken_file_is_refused_by_name(folder: Path, content: bytes) -> None:
    name = "t10k-labels-idx1-ubyte.gz"
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name} .*fetch the file again"):
        load_dataset(NAME)


def test_a_file_missing_from_the_data_folder_is_named(folder: Path) -> None:
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError, match=r"CAPEMIX_DATA has no file mnist/train-labels.*unset"):
        load_dataset(NAME)


@pytest.mark.usefixtures("folder")
def test_files_that_do_not_fit_the_declaration_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(DATASETS, NAME, replace(small_info(), image_shape=(3, 2)))
    with pytest.raises(InputError, match="do not fit"):
        load_dataset(NAME)
    monkeypatch.setitem(DATASETS, NAME, replace(small_info(), class_sizes=(3, 2)))
    with pytest.raises(InputError, match="published class sizes"):
        load_dataset(NAME)


def test_without_a_data_folder_files_are_downloaded_once(mirror: Mirror) -> None:
    train, test = load_dataset(NAME)
    load_dataset(NAME)
    assert (len(train), len(test)) == (5, 2)
    assert sorted(mirror.asked) == sorted(mirror.files)


def test_an_empty_data_folder_variable_counts_as_unset(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPEMIX_DATA", "")
    assert len(load_dataset(NAME)[0]) == 5
    assert mirror.asked


def test_the_next_mirror_is_asked_when_one_fails(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATASETS, NAME, small_info(f"{mirror.url}/gone", mirror.url))
    assert len(load_dataset(NAME)[0]) == 5
    assert mirror.asked[0].startswith("gone/")


def test_a_bad_download_is_refused_and_not_kept(mirror: Mirror) -> None:
    name = "train-images-idx3-ubyte.gz"
    good = mirror.files[name]
    mirror.files[name] = b"<html>please sign in</html>"
    with pytest.raises(InputError, match=f"{name} is not a readable gzip file"):
        load_dataset(NAME)
    mirror.files[name] = good
    assert len(load_dataset(NAME)[0]) == 5


def test_without_a_mirror_in_reach_the_way_out_is_named(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATASETS, NAME, small_info(f"{mirror.url}/gone"))
    with pytest.raises(InputError, match=r"could not be downloaded.*connect.*CAPEMIX_DATA"):
        load_dataset(NAME)


def test_open_data_gives_both_parts_and_the_public_facts() -> None:
    loaded = open_data("digits")
    assert loaded.info is DATASETS["digits"]
    assert loaded.test is not None
    assert loaded.train.read_from_rows == loaded.test.read_from_rows == ()


def test_open_data_lists_the_names_it_knows() -> None:
    with pytest.raises(InputError, match=r"got minst.*digits, mnist, fashion-mnist"):
        open_data("minst")
    with pytest.raises(InputError, match="digits, mnist, fashion-mnist"):
        load_dataset("minst")


def test_open_data_refuses_file_options_for_a_dataset() -> None:
    with pytest.raises(InputError, match="label does not apply"):
        open_data("digits", label="y")
    with pytest.raises(InputError, match="classes does not apply"):
        open_data("digits", classes=(0, 1))
    table = Table((Number("a", 0, 1),), Category("y", ("u",)))
    with pytest.raises(InputError, match="schema does not apply"):
        open_data("digits", table=table)


def test_rows_show_neither_values_nor_counts() -> None:
    assert repr(load_dataset("digits")[0]) == "LabeledRows(width=64, classes=10)"


def test_importing_the_data_room_loads_no_heavy_library() -> None:
    heavy = ("sklearn", "pandas", "pyarrow", "pooch", "scipy", "numba")
    code = f"import sys, capemix.data; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
