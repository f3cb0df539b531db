"""The idx format: what is whole is read, what is not is refused."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capemix.data.idx import parse_idx, read_gzip_idx
from capemix.errors import InputError


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, array.ndim))
    return header + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
WHOLE = idx_bytes(IMAGES)


def test_images_and_labels_come_back_as_written() -> None:
    np.testing.assert_array_equal(parse_idx(WHOLE, dims=3), IMAGES)
    labels = np.array([3, 1, 2], dtype=np.uint8)
    np.testing.assert_array_equal(parse_idx(idx_bytes(labels), dims=1), labels)


def test_the_array_is_read_only() -> None:
    assert not parse_idx(WHOLE, dims=3).flags.writeable


@pytest.mark.parametrize("kept", range(len(WHOLE)))
def test_every_truncation_is_refused(kept: int) -> None:
    with pytest.raises(InputError, match="cut short"):
        parse_idx(WHOLE[:kept], dims=3)


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(InputError, match="bytes after"):
        parse_idx(WHOLE + b"\0", dims=3)


@pytest.mark.parametrize("magic", [b"\0\0\x08\x01", b"\0\0\x0d\x03", b"\1\0\x08\x03", b"PK\3\4"])
def test_a_wrong_magic_is_refused(magic: bytes) -> None:
    with pytest.raises(InputError, match="does not begin as an idx file"):
        parse_idx(magic + WHOLE[4:], dims=3)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2**32 - 1,) * 3])
def test_impossible_dimensions_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="impossible dimensions"):
        parse_idx(WHOLE[:4] + struct.pack(">3I", *shape) + WHOLE[16:], dims=3)


@given(data=st.binary(max_size=64), dims=st.sampled_from([1, 3]))
def test_arbitrary_bytes_are_refused_or_valid(data: bytes, dims: int) -> None:
    try:
        array = parse_idx(data, dims=dims)
    except InputError:
        return
    assert idx_bytes(array) == data


@given(
    shape=st.tuples(*[st.integers(0, 3)] * 3),
    body=st.binary(max_size=30),
    dims=st.sampled_from([1, 3]),
)
def test_bytes_with_a_true_header_are_refused_or_valid(
    shape: tuple[int, int, int], body: bytes, dims: int
) -> None:
    data = bytes((0, 0, 8, dims)) + struct.pack(f">{dims}I", *shape[:dims]) + body
    try:
        array = parse_idx(data, dims=dims)
    except InputError:
        return
    assert idx_bytes(array) == data


@given(at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_flipped_byte_of_a_gzip_file_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, at: int, flip: int
) -> None:
    packed = bytearray(gzip.compress(WHOLE, mtime=0))
    packed[at % len(packed)] ^= flip
    path = tmp_path_factory.getbasetemp() / "flipped.gz"
    path.write_bytes(packed)
    try:
        array = parse_idx(read_gzip_idx(path, dims=3), dims=3)
    except InputError:
        return
    np.testing.assert_array_equal(array, IMAGES)


@pytest.mark.parametrize("kept", [0, 5, 20, -1])
def test_a_truncated_gzip_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(WHOLE)[:kept])
    with pytest.raises(InputError, match=r"a\.gz"):
        read_gzip_idx(path, dims=3)


def test_no_more_than_declared_and_one_byte_is_decompressed(tmp_path: Path) -> None:
    path = tmp_path / "long.gz"
    path.write_bytes(gzip.compress(WHOLE + bytes(10**6)))
    assert len(read_gzip_idx(path, dims=3)) == len(WHOLE) + 1


def test_a_header_that_declares_more_than_the_file_can_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(WHOLE[:4] + struct.pack(">3I", 10**5, 100, 100)))
    with pytest.raises(InputError, match="more than it can hold"):
        read_gzip_idx(path, dims=3)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a readable gzip file"):
        read_gzip_idx(tmp_path / "none.gz", dims=1)
