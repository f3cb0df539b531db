"""The public datasets that capemix knows by name."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from capemix.data.idx import parse_idx, read_gzip_idx
from capemix.data.rows import LabeledRows, pixel_names
from capemix.errors import InputError

DATA_FOLDER = "CAPEMIX_DATA"
"""The environment variable that names a folder with ``<dataset>/<file>``."""

DEFAULT_DATASET = "digits"


@dataclass(frozen=True)
class DataFile:
    """A gzip idx file.

    ``sha256`` is that of the content after decompression: mirrors pack the same content into
    different gzip files.
    """

    name: str
    sha256: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class FilePair:
    """The images and the labels of one part."""

    images: DataFile
    labels: DataFile


@dataclass(frozen=True)
class DatasetInfo:
    """What is publicly known of a dataset, declared here and not computed from its rows.

    ``class_sizes`` are those of the train part. ``train`` and ``test`` are None where the rows
    come with an installed package.
    """

    name: str
    image_shape: tuple[int, int]
    classes: tuple[int, ...]
    value_range: tuple[int, int]
    class_sizes: tuple[int, ...]
    source: str
    licence: str
    train: FilePair | None = None
    test: FilePair | None = None
    handwriting: bool = False

    @property
    def width(self) -> int:
        """How many features a row has."""
        return self.image_shape[0] * self.image_shape[1]


def _pair(part: str, images: str, labels: str, *mirrors: str) -> FilePair:
    def file(name: str, sha256: str) -> DataFile:
        return DataFile(name, sha256, tuple(mirror + name for mirror in mirrors))

    return FilePair(
        file(f"{part}-images-idx3-ubyte.gz", images), file(f"{part}-labels-idx1-ubyte.gz", labels)
    )


_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FASHION_MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
)

_DIGITS = DatasetInfo(
    name="digits",
    image_shape=(8, 8),
    classes=tuple(range(10)),
    value_range=(0, 16),
    class_sizes=(143, 146, 142, 147, 145, 146, 145, 144, 140, 144),
    source="E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI (1998),"
    " the part that scikit-learn ships",
    licence="CC BY 4.0",
)
_MNIST = DatasetInfo(
    name="mnist",
    handwriting=True,
    image_shape=(28, 28),
    classes=tuple(range(10)),
    value_range=(0, 255),
    class_sizes=(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    source="Y. LeCun, C. Cortes and C. J. C. Burges, The MNIST database of handwritten digits",
    licence="CC BY-SA 3.0",
    train=_pair(
        "train",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        *_MNIST_MIRRORS,
    ),
    test=_pair(
        "t10k",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        *_MNIST_MIRRORS,
    ),
)
_FASHION_MNIST = DatasetInfo(
    name="fashion-mnist",
    image_shape=(28, 28),
    classes=tuple(range(10)),
    value_range=(0, 255),
    class_sizes=(6000,) * 10,
    source="H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST (2017), Zalando SE",
    licence="MIT",
    train=_pair(
        "train",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        *_FASHION_MIRRORS,
    ),
    test=_pair(
        "t10k",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        *_FASHION_MIRRORS,
    ),
)

DATASETS: dict[str, DatasetInfo] = {info.name: info for info in (_DIGITS, _MNIST, _FASHION_MNIST)}


def dataset_info(name: str) -> DatasetInfo:
    """What is publicly known of the dataset of this name."""
    try:
        return DATASETS[name]
    except KeyError:
        known = ", ".join(DATASETS)
        raise InputError(
            "dataset", "is unknown", value=name, fix=f"choose one of {known}"
        ) from None


def load_dataset(name: str) -> tuple[LabeledRows, LabeledRows]:
    """The train and the test rows of a dataset."""
    info = dataset_info(name)
    if info.train is None or info.test is None:
        train, test = _load_digits(info)
    else:
        train, test = _load_pair(info, info.train), _load_pair(info, info.test)
    if tuple(train.class_counts().tolist()) != info.class_sizes:
        raise InputError(
            f"dataset {name}",
            "does not have the published class sizes",
            fix="report this with the version of scikit-learn that is installed",
        )
    return train, test


def _load_digits(info: DatasetInfo) -> tuple[LabeledRows, LabeledRows]:
    """Every fifth row of each class is for testing."""
    from sklearn.datasets import load_digits

    features, target = load_digits(return_X_y=True)
    test = np.zeros(len(target), dtype=bool)
    for label in info.classes:
        test[np.flatnonzero(target == label)[4::5]] = True
    rows = _rows(info, features.astype(np.uint8), target)
    return rows.take(~test), rows.take(test)


def _load_pair(info: DatasetInfo, pair: FilePair) -> LabeledRows:
    images = _load_file(info, pair.images, dims=3)
    labels = _load_file(info, pair.labels, dims=1)
    if images.shape[1:] != info.image_shape or len(images) != len(labels):
        raise InputError(
            pair.images.name,
            f"and {pair.labels.name} do not fit each other or the dataset {info.name}",
            fix="fetch both files again",
        )
    return _rows(info, images.reshape(len(images), -1), labels)


def _rows(
    info: DatasetInfo, features: npt.NDArray[np.uint8], labels: npt.NDArray[np.integer]
) -> LabeledRows:
    return LabeledRows(
        features=features,
        labels=labels.astype(np.int64),
        classes=info.classes,
        feature_names=pixel_names(info.image_shape),
        image_shape=info.image_shape,
    )


def _load_file(info: DatasetInfo, file: DataFile, *, dims: int) -> npt.NDArray[np.uint8]:
    folder = os.environ.get(DATA_FOLDER)
    if folder:
        path = Path(folder) / info.name / file.name
        if not path.is_file():
            raise InputError(
                DATA_FOLDER,
                f"has no file {info.name}/{file.name}",
                value=folder,
                fix=f"put the file there, or unset {DATA_FOLDER} to download it",
            )
        return _checked(path, file, dims=dims)
    path = _download(info, file)
    try:
        return _checked(path, file, dims=dims)
    except InputError:
        path.unlink(missing_ok=True)  # so that the next run fetches it again
        raise


def _checked(path: Path, file: DataFile, *, dims: int) -> npt.NDArray[np.uint8]:
    data = read_gzip_idx(path, dims=dims)
    found = hashlib.sha256(data).hexdigest()
    if found != file.sha256:
        raise InputError(
            f"file {path}",
            "does not have the published content",
            value=f"sha256 {found[:16]}..., expected {file.sha256[:16]}...",
            fix="fetch the file again",
        )
    return parse_idx(data, dims=dims, name=file.name)


def _download(info: DatasetInfo, file: DataFile) -> Path:
    """The file in the user's cache, from the first mirror that answers."""
    import pooch

    reason = "no mirror is known"
    for url in file.urls:
        cache = pooch.create(
            path=pooch.os_cache("capemix") / info.name,
            base_url="",
            registry={file.name: None},
            urls={file.name: url},
        )
        try:
            return Path(cache.fetch(file.name))
        except (OSError, ValueError) as error:
            reason = type(error).__name__
    raise InputError(
        f"file {info.name}/{file.name}",
        "could not be downloaded",
        value=reason,
        fix=f"connect to the network, or set {DATA_FOLDER} to a folder that holds this file",
    )
