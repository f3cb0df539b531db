"""The command line: its contract, its speed to start, and one sentence for every bad input."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import Capemix

PAPER: list[object] = ["--records", 60000, "--classes", 10, "--samples", 60000, "--clip", 1]
PAPER += ["--delta", 1e-5, "--json"]


# -- account and calibrate -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "mixture", "noise"),
    [
        (10, 1, 1.155),
        (10, 4, 0.344),
        (10, 16, 0.138),
        (10, 512, 0.114),
        (20, 4, 0.322),
        (20, 512, 0.0651),
    ],
)
def test_calibrate_gives_theorem_1s_values(
    capemix: Capemix, epsilon: float, mixture: int, noise: float
) -> None:
    ran = capemix(
        "calibrate", "--accountant", "paper", "--epsilon", epsilon, "--mixture", mixture, *PAPER
    )
    assert ran.code == 0
    assert ran.json["noise"] == pytest.approx(noise, rel=0.005)
    assert ran.json["status"] == "paper claim"
    assert ran.json["noise_multiplier"] == pytest.approx(ran.json["noise"] * mixture)


@pytest.mark.parametrize(
    ("epsilon", "mixture", "draws", "multiplier", "pld"),
    [
        (10, 64, 6000, 0.7648, 0.7385),
        (10, 256, 200, 0.7247, 0.6743),
        (1, 256, 200, 2.670, 2.468),
        (1, 64, 6000, 3.441, 3.184),
    ],
)
def test_calibrate_gives_the_sound_values(
    capemix: Capemix, epsilon: float, mixture: int, draws: int, multiplier: float, pld: float
) -> None:
    asked = [
        "--records",
        60000,
        "--classes",
        10,
        "--samples",
        10 * draws,
        "--mixture",
        mixture,
        "--clip",
        1,
        "--json",
    ]
    start = time.process_time()
    ran = capemix("calibrate", "--epsilon", epsilon, *asked)
    assert time.process_time() - start < 5
    assert ran.json["noise_multiplier"] == pytest.approx(multiplier, rel=0.01)
    assert ran.json["epsilon"] == pytest.approx(epsilon, rel=1e-3)
    assert ran.json["relation"] == "add-or-remove-one"
    assert ran.json["status"] == "guarantee"
    # The noise at which the PLD figure is epsilon: the printed reference there.
    at_pld = capemix("account", "--noise", pld / mixture, *asked).json
    assert at_pld["epsilon_pld"] == pytest.approx(epsilon, rel=0.01)
    assert at_pld["epsilon"] > epsilon


def test_account_and_calibrate_invert_each_other_on_the_command_line(capemix: Capemix) -> None:
    asked = ["--mixture", 64, "--sites", 10, "--colluding", 3, "--dropouts", 1, *PAPER]
    first = capemix("calibrate", "--epsilon", 3, *asked).json
    again = capemix("account", "--noise", first["noise"], *asked).json
    assert again["epsilon"] == pytest.approx(3, rel=1e-3)
    assert again == {**first, "epsilon": again["epsilon"]}
    assert set(first["views"]) == {"public", "server"}
    assert first["price"] == pytest.approx(10 / 6)
    assert first["site_noise"] == pytest.approx(first["noise"] / 10**0.5)


def test_no_noise_is_no_privacy_and_null_in_json(capemix: Capemix) -> None:
    for words in (("account", "--noise", 0), ("calibrate", "--epsilon", "inf")):
        ran = capemix(*words, "--mixture", 4, *PAPER)
        assert ran.json["epsilon"] is None
        assert ran.json["status"] == "no privacy"
        assert "Infinity" not in ran.out
        assert "NaN" not in ran.out


def test_tables_for_people_say_the_same(capemix: Capemix) -> None:
    ran = capemix("calibrate", "--epsilon", 10, "--mixture", 64, "--sites", 4, *PAPER[:-1])
    assert ran.code == 0
    for word in ("epsilon", "noise multiplier", "price", "view: server", "guarantee"):
        assert word in ran.out


# -- synth and evaluate ----------------------------------------------------------------------------


CLASSES = "no,perhaps,yes"


def small(*words: object) -> list[object]:
    return ["synth", "--epsilon", 5, "--method", "mixing", "--mixture", 8, "--samples", 100, *words]


@pytest.mark.parametrize(
    "words",
    [
        ["--scheme", "central"],
        ["--scheme", "central", "--law", "rounded"],
        ["--scheme", "central", "--accountant", "paper"],
        ["--scheme", "conventional", "--sites", 4],
        ["--scheme", "conventional", "--sites", 4, "--accountant", "paper"],
        ["--scheme", "cape", "--sites", 10],
        ["--scheme", "cape", "--sites", 5, "--partition", "dirichlet", "--masks", "gaussian"],
        ["--scheme", "cape", "--sites", 4, "--form", "algorithm1", "--accountant", "paper"],
        ["--scheme", "cape", "--sites", 4, "--form", "algorithm1", "--class-sizes", 80],
        ["--scheme", "cape", "--sites", 60, "--colluding", 2],
    ],
)
def test_every_scheme_makes_a_release_that_can_be_evaluated(
    capemix: Capemix, tmp_path: Path, words: list[object]
) -> None:
    out = tmp_path / "release"
    ran = capemix(*small(*words), "--out", out, "--json")
    assert ran.code == 0, ran.err
    assert sorted(p.name for p in out.iterdir()) == [
        "manifest.json",
        "synthetic.npz",
        "synthetic.parquet",
    ]
    assert pq.read_table(out / "synthetic.parquet").num_rows == 100
    scores = capemix("evaluate", out, "--json").json
    assert 0 <= scores["synthetic"]["accuracy"] <= 1
    assert scores["real"]["accuracy"] > 0.9
    assert np.sum(scores["real"]["confusion"]) == 355


def test_a_test_seed_repeats_every_byte_and_says_so(capemix: Capemix, tmp_path: Path) -> None:
    words = [
        "--scheme",
        "cape",
        "--sites",
        5,
        "--partition",
        "dirichlet",
        "--test-seed",
        7,
        "--json",
    ]
    for name in ("a", "b"):
        ran = capemix(*small(*words), "--out", tmp_path / name)
        assert ran.json["status"] == "seeded: not private"
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
    ran = capemix(*small(*words[:-1]), "--out", tmp_path / "c")
    assert "Do not publish" in ran.out


def test_two_real_releases_differ(capemix: Capemix, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert capemix(*small("--out", tmp_path / name)).code == 0
    first, second = ((tmp_path / n / "synthetic.parquet").read_bytes() for n in "ab")
    assert first != second


def test_the_manifest_holds_nothing_private(capemix: Capemix, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "people.csv", rows=137)
    out = tmp_path / "release"
    words = ["--data", table, "--label", "y", "--public-range", "0,1", "--no-ledger"]
    words += ["--classes", "no,yes"]
    ran = capemix(*small(*words, "--out", out))
    assert ran.code == 0, ran.err
    text = (out / "manifest.json").read_text()
    manifest = json.loads(text)
    assert set(manifest) == {
        *("format", "guarantee", "plan", "facts", "outline", "steps", "budget", "clip", "rows"),
        *("soft_labels", "warnings", "versions", "sha256"),
    }
    assert "people" not in text  # not even the name of the file
    assert not any(found == 137 for found in every_number(manifest))
    assert manifest["guarantee"]["epsilon"] == pytest.approx(5, rel=1e-3)
    assert set(manifest["sha256"]) == {"synthetic.parquet"}


def every_number(found: object) -> list[float]:
    if isinstance(found, dict):
        return [n for value in found.values() for n in every_number(value)]
    if isinstance(found, list):
        return [n for value in found for n in every_number(value)]
    return [found] if isinstance(found, (int, float)) else []


def test_undeclared_class_sizes_are_paid_for(capemix: Capemix, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "people.csv", rows=300)
    words = ["--data", table, "--label", "y", "--public-range", "0,1", "--no-ledger"]
    words += ["--classes", CLASSES]
    capemix(*small(*words, "--out", tmp_path / "paid"))
    capemix(*small(*words, "--class-sizes", "100,100,100", "--out", tmp_path / "declared"))
    steps = {}
    for name in ("paid", "declared"):
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        steps[name] = {s["name"]: s["coverage"] for s in manifest["steps"]}["class sizes"]
        assert manifest["guarantee"]["epsilon"] <= 5
        assert manifest["guarantee"]["delta"] == pytest.approx(1e-5)
    assert steps == {"paid": "paid for", "declared": "public"}


def test_undeclared_classes_are_found_and_paid_for(capemix: Capemix, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "people.csv", rows=600)
    with table.open("a") as file:
        file.write("0.5,0.5,a diagnosis of one person\n")
    words = ["--data", table, "--label", "y", "--public-range", "0,1", "--no-ledger"]
    ran = capemix(*small(*words, "--out", tmp_path / "paid", "--json"))
    assert ran.code == 0, ran.err
    assert ran.json["status"] == "guarantee"
    assert ran.json["epsilon"] == pytest.approx(5, rel=1e-3)
    text = (tmp_path / "paid" / "manifest.json").read_text()
    manifest = json.loads(text)
    assert manifest["facts"]["classes"] == CLASSES.split(",")
    assert {"class list": "paid for"}.items() <= {
        step["name"]: step["coverage"] for step in manifest["steps"]
    }.items()
    assert "diagnosis" not in text
    ran = capemix(*small(*words, "--class-sizes", 200, "--out", tmp_path / "sizes"))
    assert_one_sentence(ran.code, ran.out, ran.err, "--classes must be declared")


def test_labels_as_they_come_are_for_releases_that_promise_nothing(
    capemix: Capemix, tmp_path: Path
) -> None:
    table = write_csv(tmp_path / "people.csv", rows=60)
    words = ["--data", table, "--label", "y", "--public-range", "0,1", "--no-ledger", "--json"]
    ran = capemix(*small(*words, "--epsilon", "inf", "--out", tmp_path / "inf"))
    assert ran.code == 0, ran.err
    assert ran.json["status"] == "no privacy"
    ran = capemix(*small(*words, "--accountant", "paper", "--out", tmp_path / "paper"))
    assert ran.code == 0, ran.err
    assert ran.json["status"] == "paper claim"


@pytest.mark.parametrize("scheme", ["cape", "conventional"])
def test_undeclared_class_sizes_are_paid_for_by_sites_too(
    capemix: Capemix, tmp_path: Path, scheme: str
) -> None:
    table = write_csv(tmp_path / "people.csv", rows=600)
    words = ["--data", table, "--label", "y", "--public-range", "0,1", "--scheme", scheme]
    words += ["--no-ledger"]
    ran = capemix(*small(*words, "--sites", 4, "--out", tmp_path / "paid"))
    assert_one_sentence(ran.code, ran.out, ran.err, "--classes must be declared for more than one")
    words += ["--classes", CLASSES]
    ran = capemix(*small(*words, "--sites", 4, "--out", tmp_path / "paid", "--json"))
    assert ran.code == 0, ran.err
    assert ran.json["epsilon"] == pytest.approx(5, rel=1e-3)
    facts = json.loads((tmp_path / "paid" / "manifest.json").read_text())["facts"]
    assert np.abs(np.array(facts["class_sizes"]) - 200).max() < 100


def test_a_files_own_columns_and_classes_come_back(capemix: Capemix, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", rows=300)
    out = tmp_path / "release"
    capemix(
        *small(
            "--data", table, "--label", "y", "--public-range", "0,1", "--no-ledger", "--out", out
        )
    )
    released = pq.read_table(out / "synthetic.parquet")
    assert released.column_names == ["a", "b", "y"]
    assert set(released["y"].to_pylist()) == {"no", "perhaps", "yes"}
    values = np.concatenate([released["a"].to_numpy(), released["b"].to_numpy()])
    assert values.min() >= 0
    assert values.max() <= 1
    assert "keep it to yourself" in capemix("evaluate", out, "--test", table).out


def test_sites_can_be_a_column_of_the_file(capemix: Capemix, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", rows=300, site=True)
    out = tmp_path / "release"
    words = ["--data", table, "--label", "y", "--public-range", "0,1", "--scheme", "cape"]
    words += ["--no-ledger"]
    words += ["--classes", CLASSES, "--partition", "site"]
    ran = capemix(*small(*words, "--site-names", "3,2,1,0,elsewhere", "--out", out, "--json"))
    assert ran.code == 0, ran.err
    assert ran.json["sites"] == 5  # those that are declared, whether they have rows or not
    assert pq.read_table(out / "synthetic.parquet").column_names == ["a", "b", "y"]


def test_sites_are_declared_by_name(capemix: Capemix, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", rows=60, site=True)
    words = ["--data", table, "--label", "y", "--public-range", "0,1", "--scheme", "cape"]
    words += ["--no-ledger", "--classes", CLASSES, "--out", tmp_path / "no"]
    column = ["--partition", "site"]
    for wrong, says in (
        (column, "--site-names must be declared with --partition COLUMN"),
        (["--site-names", "0,1"], "--site-names has no meaning"),
        (["--partition", "town", "--site-names", "0,1"], "site column names no column"),
        ([*column, "--site-names", "0,1,1.0"], "--site-names has a value twice"),
        ([*column, "--site-names", "0,,1"], "--site-names has a value twice"),
        ([*column, "--site-names", "0,1,2,3", "--sites", 3], "--sites must be 4"),
        ([*column, "--site-names", "0,1", "--data", "digits"], "--partition must be one of iid"),
    ):
        ran = capemix(*small(*words, *wrong))
        assert_one_sentence(ran.code, ran.out, ran.err, says)
        assert not (tmp_path / "no").exists()


def write_csv(path: Path, *, rows: int, site: bool = False) -> Path:
    rng = np.random.default_rng(0)
    lines = ["a,b,y" + (",site" if site else "")]
    for i in range(rows):
        a, b = rng.random(2)
        lines.append(
            f"{a:.4f},{b:.4f},{('no', 'perhaps', 'yes')[i % 3]}" + (f",{i % 4}" if site else "")
        )
    path.write_text("\n".join(lines) + "\n")
    return path


# -- bad input -------------------------------------------------------------------------------------


def bad_files(folder: Path) -> dict[str, tuple[Path, str]]:
    """name -> (file, what the sentence must mention)."""
    good = write_csv(folder / "good.csv", rows=60)
    found: dict[str, tuple[Path, str]] = {}

    def add(name: str, text: str | bytes, says: str, suffix: str = ".csv") -> None:
        path = folder / f"{name}{suffix}"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        found[name] = (path, says)

    body = good.read_text().splitlines()
    add("empty", "", "empty")
    add("open_header", '"a,b,y\n0.1,0.2,no\n', "readable")
    add("twice", "a,a,y\n0.1,0.2,no\n", "same name")
    add("no_feature", "y\nno\n", "feature")
    add("no_label", "\n".join(["a,b,z", *body[1:]]), "label")
    table = pa.table({"a": [0.1, 0.2, 0.3], "y": ["n", "y", "n"]})
    pq.write_table(table, folder / "whole.parquet")
    whole = (folder / "whole.parquet").read_bytes()
    add("cut_parquet", whole[: len(whole) // 2], "readable", ".parquet")
    np.savez(folder / "whole.npz", X=np.ones((9, 2)), y=np.arange(9) % 2)
    archive = (folder / "whole.npz").read_bytes()
    add("cut_npz", archive[: len(archive) // 2], "readable", ".npz")
    add("changed_npz", archive.replace(b"NUMPY", b"NIMPY"), "npz", ".npz")
    add("unknown", "?", ".xyz", ".xyz")
    return found


BAD_FILES = [
    "empty",
    "open_header",
    "twice",
    "no_feature",
    "no_label",
    "cut_parquet",
    "cut_npz",
    "changed_npz",
    "unknown",
]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["0.1,0.2,no"],
        ["0.1,blue,no"] * 9,
        ["nan,0.5,no", "0.5,inf,yes", "0.5,,yes"],
        ["0.1,0.2"] * 5,
        ['"0.1","0.2","n\no"'] * 5,
        ["0.1,0.2,off the list"] * 5,
        [f"0.1,0.2,id{at}" for at in range(2000)],
    ],
)
def test_whatever_the_records_are_a_release_is_made(
    capemix: Capemix, tmp_path: Path, lines: list[str]
) -> None:
    """A refusal that depends on them would tell of them."""
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["a,b,y", *lines]))
    words = ["--data", table, "--label", "y", "--public-range", "0,1", "--classes", CLASSES]
    ran = capemix(*small(*words, "--no-ledger", "--json", "--out", tmp_path / "release"))
    assert ran.code == 0, ran.err
    assert ran.json["status"] == "guarantee"
    assert pq.read_table(tmp_path / "release" / "synthetic.parquet").num_rows == 100


def assert_one_sentence(ran_code: int, out: str, err: str, says: str) -> None:
    assert ran_code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("capemix: ")
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_one_sentence_and_leaves_nothing(
    capemix: Capemix, tmp_path: Path, name: str
) -> None:
    path, says = bad_files(tmp_path)[name]
    out = tmp_path / "release"
    label = [] if name.endswith("npz") else ["--label", "y"]
    words = [*label, "--public-range", "0,1", "--no-ledger", "--classes", CLASSES]
    ran = capemix(*small("--data", path, *words, "--out", out))
    assert_one_sentence(ran.code, ran.out, ran.err, says)
    assert not out.exists()
    assert not list(tmp_path.glob(".release*"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--epsilon", 0], "--epsilon"),
        (["--epsilon", -3], "--epsilon"),
        (["--epsilon", "nan"], "--epsilon"),
        (["--delta", 0], "--delta"),
        (["--delta", 1], "--delta"),
        (["--delta", 2], "--delta"),
        (["--mixture", 500], "--mixture"),
        (["--mixture", 0], "--mixture"),
        (["--samples", 0], "--samples"),
        (["--clip", 0], "--clip"),
        (["--scheme", "cape", "--sites", 100_000], "sites"),
        (["--scheme", "cape", "--sites", 0], "sites"),
        (["--scheme", "cape", "--sites", 2, "--colluding", 2], "honest"),
        (["--scheme", "cape", "--sites", 4, "--colluding", 2, "--dropouts", 2], "honest"),
        (["--scheme", "cape", "--sites", 3, "--colluding", 1, "--dropouts", 1], "agree"),
        (["--scheme", "cape", "--sites", 4, "--colluding", 0], "--colluding"),
        (["--public-range", "5,1"], "--public-range"),
        (["--public-range", "low,high"], "--public-range"),
        (["--class-sizes", "1,2"], "--class-sizes"),
        (["--class-sizes", "many"], "--class-sizes"),
        (["--data", "no-such-thing"], "neither a dataset nor a file (got no-such-thing)"),
        (["--classes", "0,1"], "--classes does not apply to the dataset"),
        (["--normalise", "site-zscore"], "normalise"),
        (["--scheme", "cape", "--sites", 10, "--peers", 3], "--peers"),
        (["--scheme", "cape", "--sites", 10, "--peers", 2], "--peers"),
    ],
)
def test_a_bad_value_is_one_sentence_and_leaves_nothing(
    capemix: Capemix, tmp_path: Path, words: list[object], says: str
) -> None:
    out = tmp_path / "release"
    ran = capemix(*small("--data", "digits", *words), "--out", out)
    assert_one_sentence(ran.code, ran.out, ran.err, says)
    assert not out.exists()


def test_a_truncated_or_changed_idx_file_is_one_sentence(
    capemix: Capemix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gzip

    monkeypatch.setenv("CAPEMIX_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    images = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (2, 28, 28)) + bytes(1568)
    whole = gzip.compress(images)
    for content in (whole, whole[:-9], gzip.compress(images[:-1]), b"", b"not gzip"):
        for part in ("train", "t10k"):
            (tmp_path / "mnist" / f"{part}-images-idx3-ubyte.gz").write_bytes(content)
            (tmp_path / "mnist" / f"{part}-labels-idx1-ubyte.gz").write_bytes(content)
        ran = capemix(*small("--data", "mnist"), "--out", tmp_path / "release")
        assert_one_sentence(ran.code, ran.out, ran.err, "idx3-ubyte")
        assert not (tmp_path / "release").exists()


def test_a_class_smaller_than_the_mixture_is_released_all_the_same(
    capemix: Capemix, tmp_path: Path
) -> None:
    """A refusal would tell how small it is, and a release that it is not."""
    table = write_csv(tmp_path / "t.csv", rows=20)
    words = ["--data", table, "--label", "y", "--classes", CLASSES, "--no-ledger"]
    ran = capemix(*small(*words), "--out", tmp_path / "release")
    assert ran.code == 0, ran.err


def test_a_used_or_unwritable_folder_is_refused_and_untouched(
    capemix: Capemix, tmp_path: Path
) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "precious").write_text("keep")
    ran = capemix(*small(), "--out", used)
    assert_one_sentence(ran.code, ran.out, ran.err, "--out")
    assert (used / "precious").read_text() == "keep"
    afile = tmp_path / "file"
    afile.write_text("x")
    for out in (afile, afile / "below", afile / "far" / "below"):
        ran = capemix(*small(), "--out", out)
        assert_one_sentence(ran.code, ran.out, ran.err, "--out")
    if shutil.os.geteuid() != 0:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        ran = capemix(*small(), "--out", locked / "release")
        assert_one_sentence(ran.code, ran.out, ran.err, "--out")


def test_a_link_to_an_empty_folder_is_that_folder(capemix: Capemix, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert capemix(*small(), "--out", tmp_path / "link").code == 0
    assert (tmp_path / "real" / "manifest.json").exists()


def test_a_refused_run_does_not_even_make_the_parent_folder(
    capemix: Capemix, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "deep" / "release"
    assert capemix(*small("--mixture", 5000), "--out", out).code == 2
    assert not (tmp_path / "new").exists()
    assert capemix(*small(), "--out", out).code == 0
    assert (out / "manifest.json").exists()


def test_an_interrupted_write_leaves_nothing(
    capemix: Capemix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    ran = capemix(*small(), "--out", tmp_path / "release")
    assert_one_sentence(ran.code, ran.out, ran.err, "No space left")
    assert list(tmp_path.iterdir()) == []


def test_a_changed_release_is_noticed(capemix: Capemix, tmp_path: Path) -> None:
    out = tmp_path / "release"
    capemix(*small("--out", out))
    path = out / "synthetic.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    ran = capemix("evaluate", out)
    assert_one_sentence(ran.code, ran.out, ran.err, "manifest")
    ran = capemix("evaluate", tmp_path)
    assert_one_sentence(ran.code, ran.out, ran.err, "manifest.json")


def test_unknown_choices_and_options_exit_with_2(capemix: Capemix, tmp_path: Path) -> None:
    for words in (
        ["--scheme", "magic"],
        ["--normalise", "foo"],
        ["--accountant", "trust-me"],
        ["--frobnicate"],
    ):
        assert capemix(*small(*words), "--out", tmp_path / "r").code == 2


# -- the rest -------------------------------------------------------------------------------------


def test_data_lists_and_describes(capemix: Capemix, tmp_path: Path) -> None:
    names = [d["name"] for d in capemix("data", "--json").json["datasets"]]
    assert names == ["digits", "mnist", "fashion-mnist"]
    table = write_csv(tmp_path / "t.csv", rows=30)
    assert capemix("data", table, "--label", "y", "--json").json["class_sizes"] == [10, 10, 10]


def test_every_command_explains_itself_and_has_json(capemix: Capemix) -> None:
    for name in ("synth", "account", "calibrate", "evaluate", "audit", "data", "bench"):
        ran = capemix(name, "--help")
        assert ran.code == 0
        assert "--json" in ran.out


def test_every_command_of_the_laboratory_explains_itself_and_has_json(research: Capemix) -> None:
    for name in (("reproduce",), ("sweep",), ("frontier",), ("baseline",), ("federate", "measure")):
        ran = research(*name, "--help")
        assert ran.code == 0
        assert "--json" in ran.out


MOVED = ("reproduce", "sweep", "frontier", "federate measure", "federate splits")


@pytest.mark.parametrize("command", MOVED)
def test_a_command_that_has_moved_says_where_it_is(command: str, capemix: Capemix) -> None:
    for more in ((), ("--help",), ("table1", "--quick", "--no-such-option", 3)):
        ran = capemix(*command.split(), *more)
        assert (ran.code, ran.out) == (2, "")
        assert f"`capemix {command}` is now `capemix-research {command}`" in ran.err
        assert ran.err.count("\n") == 1
    group = command.split()[:-1]
    assert command.split()[-1] not in capemix(*group, "--help").out


def test_a_command_that_has_moved_imports_nothing_of_the_laboratory() -> None:
    code = (
        "import sys\nfrom capemix.cli import main\nsys.argv = ['capemix', 'sweep']\n"
        "try:\n    main()\nexcept SystemExit as stopped:\n"
        "    print(stopped.code, 'capemix_research' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["2", "False"]


def test_help_starts_in_half_a_second() -> None:
    command = [sys.executable, "-c", "from capemix.cli import main; main()", "--help"]
    best = 10.0
    for _ in range(3):  # processor time, so that a busy machine does not count
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True, env=os.environ)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = min(best, spent)
    assert best < 0.5


def test_importing_capemix_loads_nothing_heavy() -> None:
    code = (
        "import sys, capemix; print([m for m in ('numpy', 'numba', 'pandas') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "[]"
