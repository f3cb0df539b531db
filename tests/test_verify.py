"""What `capemix verify` finds: whatever is changed in a release, by whomever, is found, or said to
be beyond what can be checked."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents import AgentsEngine, allowing
from capemix import documents, folder
from capemix.api import synthesize
from capemix.data import partition
from capemix.data.arrays import cells_of_columns
from capemix.data.rows import LabeledRows
from capemix.data.schema import Category, Number, Table
from capemix.facts import Facts
from capemix.identity import Identity, identity_at, new_identity
from capemix.ledger import Ledger, Limit
from capemix.methods import method_named
from capemix.methods.class_gaussian import ClassGaussian
from capemix.methods.image_clusters import ImageClusters
from capemix.plan import make_plan
from capemix.protocol.consents import CONSENTS, Consents
from capemix.queries import Relation
from capemix.release import read_release
from capemix.run import run as carry_out
from capemix.signature import signature_of
from capemix.sums.steps import PublicMap
from capemix.verify import Outcome, Trusted, Verdict, verify
from conftest import Capemix
from world import labeled_rows

TABLE = Table((Number("a", -4, 5), Category("b", ("u", "v", "w"))), Category("y", ("no", "yes")))


def table_rows(count: int = 300) -> LabeledRows:
    rng = np.random.default_rng(0)
    label = np.arange(count) % 2
    columns = {"a": rng.normal(size=count).tolist(), "b": ["uvw"[at % 3] for at in range(count)]}
    words = np.array(["no", "yes"])[label]
    return TABLE.rows(cells_of_columns(columns, TABLE.names, "y", words))


def signer(place: Path, name: str = "clinic") -> Identity:
    return identity_at(new_identity(name, place)[0])


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return signer(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def signed(key: Identity, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table's release, counted in a ledger."""
    place, rows = tmp_path_factory.mktemp("signed"), table_rows()
    ledger = Ledger.open(place / "ledger.db")
    ledger.set_limit("people", Limit(9.0, 1e-5, Relation.ADD_REMOVE))
    plan = make_plan(Facts.of(rows), method_named("tables")(samples=12)).calibrate(5.0)
    release = synthesize(plan, rows, ledger=ledger, lineage="people")
    return release.save(place / "release", identity=key, csv=True)


@pytest.fixture
def copy(signed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(signed, tmp_path / "copy"))


def manifest_of(release: Path) -> Any:
    return json.loads((release / "manifest.json").read_text())


def rewrite(release: Path, found: Any, key: Identity | None = None) -> None:
    """Another manifest, signed anew if there is a key for it."""
    text = json.dumps(found, indent=2) + "\n"
    (release / "manifest.json").write_text(text)
    if key is not None:
        (release / "signature.json").write_text(signature_of(text.encode(), key))


def failed(verdict: Verdict) -> set[str]:
    return {each.about for each in verdict.of(Outcome.FAILED)}


def leaves(found: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a document that has no parts."""
    parts = found.items() if isinstance(found, dict) else enumerate(found)
    for key, value in parts:
        if isinstance(value, (dict, list)) and value:
            yield from leaves(value, (*way, key))
        else:
            yield (*way, key)


def kinds(found: Any) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """One leaf of each kind: of a list's items the last one that has it."""
    return {tuple("*" if type(s) is int else s for s in way): way for way in leaves(found)}


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return "other" if value is None else value + "x" if isinstance(value, str) else ["x"]


def edited(found: Any, way: tuple[Any, ...], change: Callable[[Any], Any] = changed) -> Any:
    made = json.loads(json.dumps(found))
    at = made
    for step in way[:-1]:
        at = at[step]
    at[way[-1]] = change(at[way[-1]])
    return made


# -- what holds ------------------------------------------------------------------------------------


def test_a_signed_release_holds_by_its_signers_key(
    capemix: Capemix, signed: Path, key: Identity, tmp_path: Path
) -> None:
    public = tmp_path / "clinic.json"
    public.write_text(json.dumps(documents.as_json(key.member)))
    for said in (public, key.member.identity, str(key.member).partition(", ")[2].upper()):
        ran = capemix("verify", signed, "--key", said)
        assert (ran.code, ran.err) == (0, ""), ran.out
        assert ran.out.count("held:") == 6
    ran = capemix("verify", signed, "--json")
    assert ran.code == ran.json["exit_code"] == 3  # whose key it is nobody can tell from here
    assert not ran.json["holds"]
    assert [each["about"] for each in ran.json["findings"] if each["outcome"] != "held"] == ["key"]


def test_a_manifest_names_its_making(signed: Path, key: Identity) -> None:
    how = read_release(signed).manifest.how_made
    assert how is not None
    assert how.date == time.strftime("%Y-%m-%d", time.gmtime())
    assert (how.counted, how.lineage) == ("in a ledger", "people")
    ledger = Ledger.open(signed.parent / "ledger.db")
    assert how.ledger_heads == (str(ledger.head()),)
    assert (how.schema, how.curator_saw) == ("written by hand", "every record")
    assert read_release(signed).manifest.signer == key.member


@pytest.mark.parametrize("name", ["mixing", "class-gaussian", "images", "seeded", "no privacy"])
def test_what_any_method_promises_follows_from_its_plan(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    label = np.arange(200) % 2
    rows = labeled_rows(rng.normal(size=(200, 3)), np.array(["no", "yes"])[label], ("no", "yes"))
    facts, epsilon = Facts.of(rows), 4.0
    method: Any = method_named("mixing" if name == "mixing" else "class-gaussian")(samples=12)
    if name == "images":
        names = tuple(map(str, range(64)))
        grey = rng.uniform(0, 16, size=(200, 64))
        rows = LabeledRows(grey, label, ("no", "yes"), names, image_shape=(8, 8))
        facts = Facts.of(rows, normalise=PublicMap.of_range(0, 16))
        method = ImageClusters(samples=12, soft_labels=True)
    if name == "no privacy":
        facts, epsilon = Facts.of(rows, class_sizes=(100, 100), normalise=PublicMap()), np.inf
    from capemix.randomness.source import SeededSource

    source = SeededSource(1) if name == "seeded" else None
    release = synthesize(make_plan(facts, method).calibrate(epsilon), rows, source=source)
    found = verify(release.save(tmp_path / "release"))
    assert not failed(found), found
    assert found.exit_code == 3  # nobody signed


# -- what is found, one change at a time -----------------------------------------------------------


def test_every_part_of_a_signed_manifest_is_the_signers(copy: Path) -> None:
    written = manifest_of(copy)
    found = kinds(written)
    assert len(found) > 100
    for way in found.values():
        rewrite(copy, edited(written, way))
        assert verify(copy).exit_code == 1, way
    for name in written:
        rewrite(copy, {part: value for part, value in written.items() if part != name})
        assert verify(copy).exit_code == 1, name
    rewrite(copy, written)
    (copy / "manifest.json").write_text((copy / "manifest.json").read_text() + " ")
    assert failed(verify(copy)) == {"signature"}


FOLLOW = ("guarantee", "facts", "outline", "steps", "budget", "clip", "rows", "sha256")
"""Parts of a manifest that follow from others, or from what lies beside it."""


def test_what_follows_from_the_plan_is_found_whoever_signed(copy: Path, key: Identity) -> None:
    written = manifest_of(copy)
    for kind, way in kinds({name: written[name] for name in FOLLOW}).items():
        rewrite(copy, edited(written, way), key)
        assert failed(verify(copy)), kind
    rewrite(copy, written, key)
    assert not failed(verify(copy))


def test_a_plan_that_was_changed_is_another_promise(copy: Path, key: Identity) -> None:
    """All that a plan says is in what follows from it, but for what no sum depends on."""
    written, mine, missed = manifest_of(copy), Trusted.of(key.member.identity), set()
    for kind, way in kinds({"plan": written["plan"]}).items():
        rewrite(copy, edited(written, way), key)
        if verify(copy, mine).exit_code == 0:
            missed.add(".".join(map(str, kind[1:])))
    unused = {"chosen.bins", "chosen.slices", "federation.pair_ratio", "method.samples"}
    assert missed <= unused | {"epsilon"}, missed  # what was asked for may be more than it costs


def test_an_epsilon_that_was_written_down_is_found(copy: Path, capemix: Capemix) -> None:
    written = manifest_of(copy)
    written["guarantee"]["epsilon"], written["signer"] = 0.1, None
    written["guarantee"]["views"]["public"]["epsilon"] = 0.1
    (copy / "signature.json").unlink()
    rewrite(copy, written)
    ran = capemix("verify", copy)
    assert ran.code == 1
    assert "epsilon says 0.1, and it comes to 4.9999" in ran.out
    written["plan"]["epsilon"] = 0.1  # nor with the plan's own
    rewrite(copy, written)
    assert verify(copy).exit_code == 1


def test_every_file_that_is_changed_added_or_removed_is_found(copy: Path) -> None:
    files = [each for each in copy.rglob("*") if each.is_file() and each.name != "manifest.json"]
    assert len(files) > 3
    for path in files:
        kept = path.read_bytes()
        path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        assert failed(verify(copy)), path
        path.unlink()
        assert failed(verify(copy)), path
        path.symlink_to(path.with_name("kept"))
        path.with_name("kept").write_bytes(kept)
        assert failed(verify(copy)), path
        path.unlink()
        path.with_name("kept").rename(path)
    for name in ("more.txt", ".hidden", "statistics/more.parquet", "deep/er/and/deeper/x"):
        more = copy / name
        more.parent.mkdir(parents=True, exist_ok=True)
        more.write_text("more")
        assert "files" in failed(verify(copy)), name
        shutil.rmtree(copy / "deep", ignore_errors=True)
        more.unlink(missing_ok=True)
    assert not failed(verify(copy))


def test_a_signature_by_another_key_or_none_is_found(
    copy: Path, key: Identity, tmp_path: Path
) -> None:
    written, other = manifest_of(copy), signer(tmp_path, "clinic")
    mine = Trusted.of(key.member.identity)
    rewrite(copy, written, other)
    assert "signature" in failed(verify(copy))
    # Signed anew as another's own: all agrees, and only the key tells.
    rewrite(copy, {**written, "signer": documents.as_json(other.member)}, other)
    assert verify(copy).exit_code == 3
    assert failed(verify(copy, mine)) == {"key"}
    rewrite(copy, written, key)
    assert verify(copy, mine).exit_code == 0
    (copy / "signature.json").unlink()
    assert failed(verify(copy)) == {"signature"}
    rewrite(copy, {**written, "signer": None})
    found = verify(copy)
    assert found.exit_code == 3
    assert "nobody signed" in found.of(Outcome.OPEN)[0].says
    assert failed(verify(copy, mine)) == {"key"}


def test_a_release_of_the_format_before_is_accounted_for(copy: Path) -> None:
    written = manifest_of(copy)
    before = {name: written[name] for name in written if name not in ("how_made", "signer")}
    before["format"] = "capemix-release/2"
    (copy / "signature.json").unlink()
    rewrite(copy, before)
    found = verify(copy)
    assert (found.exit_code, len(found.of(Outcome.HELD))) == (3, 4), found
    before["guarantee"]["epsilon"] = 0.1
    rewrite(copy, before)
    assert failed(verify(copy)) == {"guarantee"}


# -- a federation ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def federated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AgentsEngine]:
    place, rows = tmp_path_factory.mktemp("federated"), table_rows()
    method = ClassGaussian(samples=12)
    plan = make_plan(Facts.of(rows), method, scheme="cape", sites=4).calibrate(5.0)
    engine = AgentsEngine(place / "agents", allowing(plan), partition(rows, 4, "iid", seed=1))
    release = carry_out(plan, engine)
    beside = {CONSENTS: Consents(engine.roster, tuple(engine.consents)).text()}
    coordinator = identity_at(place / "agents" / "coordinator.key")
    return release.save(place / "release", identity=coordinator, beside=beside), engine


def test_each_sites_consent_to_each_sum_is_there_and_holds(
    federated: tuple[Path, AgentsEngine],
) -> None:
    release, engine = federated
    roster = Trusted(engine.roster.digest().hex())
    found = verify(release, roster)
    assert found.exit_code == 0, found
    assert {each.about for each in found.findings} >= {"sites", "key"}
    how = read_release(release).manifest.how_made
    assert how is not None
    assert how.counted == "by each site in its own ledger"
    assert how.curator_saw == "no record: noisy sums over all sites alone"
    # By the coordinator's key alone, nothing is known of the sites'.
    assert verify(release, Trusted(engine.roster.coordinator.identity)).exit_code == 3


def test_every_part_of_the_consents_is_the_sites(
    federated: tuple[Path, AgentsEngine], tmp_path: Path
) -> None:
    """Though the coordinator signs what it changed."""
    whole, engine = federated
    release = Path(shutil.copytree(whole, tmp_path / "copy"))
    coordinator = identity_at(engine._folder / "coordinator.key")
    written, said = manifest_of(release), json.loads((release / CONSENTS).read_text())
    roster = Trusted(engine.roster.digest().hex())

    def found(consents: Any) -> Verdict:
        text = json.dumps(consents)
        (release / CONSENTS).write_text(text)
        digests = folder.Contents()
        with folder.Folder.at(release) as opened:
            digests = opened.contents()
        sha256 = {**written["sha256"], CONSENTS: digests.sha256[CONSENTS]}
        rewrite(release, {**written, "sha256": sha256}, coordinator)
        return verify(release, roster)

    assert found(said).exit_code == 0
    for kind, way in kinds(said).items():
        assert found(edited(said, way)).exit_code == 1, kind
    stripped = json.loads(json.dumps(said))
    for site in ("0", "1"):
        del stripped["sums"][-1]["sites"][site]
    assert failed(found(stripped)) == {"sites"}
    assert failed(found({**said, "sums": said["sums"][:-1]})) == {"sites"}
    del written["sha256"][CONSENTS]
    (release / CONSENTS).unlink()
    rewrite(release, written, coordinator)
    assert "rows" in failed(verify(release))


# -- the certificate -------------------------------------------------------------------------------


def test_a_certificate_says_what_is_promised_and_what_a_check_found(
    capemix: Capemix, copy: Path, key: Identity, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    ran = capemix("certificate", copy, "--key", key.member.identity, "--out", page)
    assert (ran.code, ran.err) == (0, "")
    said = page.read_text()
    manifest = manifest_of(copy)
    for words in (
        *manifest["guarantee"]["assumptions"],
        "epsilon 5, delta 1e-05",
        "in a ledger, as people, head 2-",
        "signed by clinic",
        "it is the key that you gave",
        time.strftime("%Y-%m-%d", time.gmtime()),
    ):
        assert escape(words) in said
    assert not re.search(r"<script|<img|https?://|url\(", said)
    assert "@page" in said
    for out in (page, copy / "page.html", tmp_path / "page.pdf"):
        assert capemix("certificate", copy, "--out", out).code == 2
    (copy / "more.txt").write_text("more")
    assert capemix("certificate", copy, "--out", tmp_path / "other.html").code == 2
    assert not (tmp_path / "other.html").exists()


def test_words_of_a_release_are_no_markup_on_its_certificate(
    copy: Path, key: Identity, capemix: Capemix, tmp_path: Path
) -> None:
    written = manifest_of(copy)
    written["how_made"]["lineage"] = "<script>people</script>"
    rewrite(copy, written, key)
    assert capemix("certificate", copy, "--out", tmp_path / "page.html").code == 0
    assert "<script" not in (tmp_path / "page.html").read_text()


# -- a folder that means ill -----------------------------------------------------------------------


def test_nothing_in_a_folder_leads_out_of_it_or_stops_the_look(copy: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("not to be read")
    (copy / "up").symlink_to(tmp_path)
    (copy / "link.txt").symlink_to(secret)
    os.mkfifo(copy / "pipe")
    written = manifest_of(copy)
    named = {"../secret.txt", str(secret), "up/secret.txt", "link.txt", "pipe"}
    rewrite(copy, {**written, "sha256": {**written["sha256"], **dict.fromkeys(named, "0" * 64)}})
    found = verify(copy)
    assert {"files", "signature"} <= failed(found)
    opened = []
    real = os.open

    def watched(path: Any, *args: Any, **how: Any) -> int:
        opened.append(os.fspath(path))
        return real(path, *args, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watched)
        verify(copy)
    assert opened
    assert not [each for each in opened if "secret" in each or each in ("up", "link.txt", "pipe")]


@pytest.mark.parametrize("name", ["manifest.json", "signature.json", "synthetic.parquet"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "long", "deep", "no text"])
def test_a_document_that_is_none_is_found_at_once(copy: Path, name: str, kind: str) -> None:
    place = copy / name
    place.unlink()
    if kind == "link":
        place.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "long":
        place.touch()
        os.truncate(place, folder.MOST_BYTES + 1)
    elif kind == "deep":
        place.write_text("[" * 200_000)
    else:
        place.write_bytes(b"\xff\xfe")
    if name == "manifest.json" and kind in ("link", "pipe", "folder", "long"):
        with pytest.raises(ValueError, match="has no readable"):
            verify(copy)
    else:
        assert verify(copy).exit_code == 1


@pytest.mark.parametrize("way", [("method", "samples"), ("federation", "sites"), ("multiplier",)])
@pytest.mark.parametrize("value", [10**18, -1, 0, 1e99, "x", None])
def test_numbers_that_ask_for_the_world_are_answered(
    copy: Path, way: tuple[str, ...], value: Any
) -> None:
    rewrite(copy, edited(manifest_of(copy), ("plan", *way), lambda _: value))
    start = time.process_time()
    assert verify(copy).exit_code == 1
    assert time.process_time() - start < 5


# -- when a release is made ------------------------------------------------------------------------


def test_a_key_that_cannot_sign_costs_nothing(capemix: Capemix, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = tmp_path / "people.csv"
    data.write_text("a,y\n" + "".join(f"{rng.random():.3f},{'ny'[k % 2]}\n" for k in range(90)))
    words = ["synth", data, "--label", "y", "--public-range", "0,1", "--epsilon", 1]
    words += ["--classes", "n,y"]
    words += ["--lineage", "people", "--out", tmp_path / "release"]
    assert capemix("ledger", "set-limit", "people", "--epsilon", 5).code == 0
    own = Path(os.environ["XDG_STATE_HOME"]) / "capemix" / "curator.key"
    own.write_text("no key")
    for more, says in (
        ([], "cannot be had: identity is not a key file"),
        (["--key", tmp_path / "none.key"], "--identity cannot be read"),
        (["--unsigned", "--key", own], "--unsigned contradicts --key"),
    ):
        ran = capemix(*words, *more)
        assert ran.code == 2
        assert says.replace("--identity", "identity") in ran.err
        assert not (tmp_path / "release").exists()
        assert len(capemix("ledger", "show", "--json").json["lines"]) == 1
    own.unlink()
    ran = capemix(*words)
    assert ran.code == 0, ran.err
    assert "This is your own new key" in ran.out
    assert own.stat().st_mode & 0o777 == 0o600
    shown = capemix("key", "--json").json
    assert shown["identity"] == manifest_of(tmp_path / "release")["signer"]["identity"]
    assert not shown["new"]
    assert capemix("verify", tmp_path / "release", "--key", shown["public"]).code == 0


def test_an_unsigned_release_says_so(capemix: Capemix, tmp_path: Path) -> None:
    words = ["synth", "digits", "--epsilon", 5, "--samples", 20, "--unsigned"]
    ran = capemix(*words, "--out", tmp_path / "release")
    assert ran.code == 0
    assert "Not signed" in ran.out
    assert not (tmp_path / "release" / "signature.json").exists()
    ran = capemix("verify", tmp_path / "release")
    assert ran.code == 3
    assert "nobody signed" in ran.out
    ran = capemix("verify", tmp_path)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
