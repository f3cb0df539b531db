"""Keys: each serves one stream of AES once, each box has its nonce once, and what has served is
overwritten. No randomness outside its room."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capemix.data import LabeledRows
from capemix.engines.in_process import InProcessEngine
from capemix.errors import BudgetError, EpsilonError, InputError
from capemix.methods.mixing.planning import plan_mixtures
from capemix.plan import Plan
from capemix.protocol import dealing
from capemix.protocol.wire import ProtocolError
from capemix.randomness import source as source_module
from capemix.randomness.source import ByteStream, SeededSource, SystemSource, derive_key, erase
from capemix.run import run
from capemix.zerosum import masks as masks_module
from world import World, counting_plan, signed_request

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "src" / "capemix", ROOT / "research" / "capemix_research")
SOURCES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))


LONG = 400
"""Lines of a module that needs no reason."""


def inside(path: Path) -> Path:
    """A source file's path in its package; the laboratory's start with its name."""
    product, laboratory = PACKAGES
    return path.relative_to(product if path.is_relative_to(product) else laboratory.parent)


class Watched(ByteStream):
    """Every AES key that is made, with how much of its stream is read."""

    __slots__ = ("place",)
    made: list[tuple[bytes, list[int]]]

    def __init__(self, key: Any) -> None:
        super().__init__(key)
        self.place = [0]
        Watched.made.append((bytes(key), self.place))

    def fill(self, out: np.ndarray) -> None:
        self.place[0] += out.nbytes
        super().fill(out)


class WatchedBox:
    """Every (key, nonce) that something is encrypted under."""

    sealed: list[tuple[bytes, bytes]]

    def __init__(self, key: Any) -> None:
        self._key, self._box = bytes(key), _BOX(bytes(key))

    def encrypt(self, nonce: bytes, data: Any, more: None) -> bytes:
        WatchedBox.sealed.append((self._key, nonce))
        return self._box.encrypt(nonce, data, more)

    def decrypt(self, nonce: bytes, data: bytes, more: None) -> bytes:
        return self._box.decrypt(nonce, data, more)


_BOX = dealing.ChaCha20Poly1305


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, list[int]]:
    """Watches AES and the boxes; gives, for every key of a mask, the signs it was added with."""
    Watched.made, WatchedBox.sealed = [], []
    signs: dict[bytes, list[int]] = {}
    for module in (source_module, masks_module):
        monkeypatch.setattr(module, "ByteStream", Watched)
    monkeypatch.setattr(dealing, "ChaCha20Poly1305", WatchedBox)

    def seen(kind: str, plain: Any) -> Any:
        def add(self: Any, block: np.ndarray, key: Any, label: Any, sign: int) -> None:
            signs.setdefault(bytes(derive_key(key, kind, *label)), []).append(sign)
            plain(self, block, key, label, sign)

        return add

    for cls, kind in ((masks_module.RingMasks, "ring"), (masks_module.GaussianMasks, "gaussian")):
        for name in ("add_pair", "add_own"):
            monkeypatch.setattr(cls, name, seen(kind, getattr(cls, name)))
    return signs


def several_blocks(masks: str) -> Plan:
    """Two classes, of two blocks each."""
    return plan_mixtures(
        width=400,
        class_sizes=(40, 30),
        samples=(2700, 2650),
        mixture=4,
        scheme="cape",
        sites=4,
        colluding=1,
        dropouts=1,
        masks=masks,
        noise=1.0,
    )


def sites_rows(plan: Plan) -> list[LabeledRows]:
    labels = np.arange(8, dtype=np.int64) % 2
    features, names = np.zeros((8, plan.facts.width)), plan.facts.features
    return [LabeledRows(features, labels, (0, 1), names)] * plan.federation.sites


def check_streams(signs: dict[bytes, list[int]]) -> Counter[bytes]:
    """A mask's stream serves twice, put on and taken off; any other key once. Every stream starts
    at counter 0, so a key that is made once has no counter twice."""
    made = Counter(key for key, _ in Watched.made)
    assert signs
    for key, used in signs.items():
        assert sorted(used) == [-1, 1]
        assert made[key] == 2
    others = {key: count for key, count in made.items() if key not in signs}
    assert set(others.values()) == {1}
    for _, place in Watched.made:
        assert place[0] < 16 << 32  # far from where a 128-bit counter comes round
    return made


@pytest.mark.parametrize("masks", ["ring", "gaussian"])
def test_no_aes_key_serves_twice_in_a_whole_run(
    masks: str, watched: dict[bytes, list[int]]
) -> None:
    plan = several_blocks(masks)
    run(plan, InProcessEngine(sites_rows(plan)))
    blocks, sites = 4, plan.federation.sites
    made = check_streams(watched)
    assert len(watched) == blocks * (sites + sites * (sites - 1) // 2)
    # Beside the masks: noise and selection for each block, two polynomials, a few ties.
    assert len(made) - len(watched) >= sites * (2 * blocks + 2)
    first, boxes = set(made), set(WatchedBox.sealed)
    assert len(boxes) == len(WatchedBox.sealed) == sites * (sites - 1)
    assert len({key for key, _ in boxes}) == sites * (sites - 1) // 2
    # And another run has other keys throughout.
    Watched.made.clear()
    watched.clear()
    run(plan, InProcessEngine(sites_rows(plan)))
    assert not first & set(check_streams(watched))
    again = set(WatchedBox.sealed[sites * (sites - 1) :])
    assert len(again) == sites * (sites - 1)
    assert not {key for key, _ in boxes} & {key for key, _ in again}


def test_what_is_shared_with_a_lost_site_is_put_on_and_taken_off_once(
    tmp_path: Path, watched: dict[bytes, list[int]]
) -> None:
    world = World(counting_plan(4, 1, 1), tmp_path)
    world.drive(drop=lambda site, round_: site == 3 and round_ == "upload")
    made = Counter(key for key, _ in Watched.made)
    for key, used in watched.items():
        assert sorted(used) == [-1, 1]
        assert made[key] == 2


def test_aes_is_made_in_one_place_and_boxes_in_another() -> None:
    def users(pattern: str) -> set[str]:
        return {inside(path).as_posix() for path in SOURCES if re.search(pattern, path.read_text())}

    assert users(r"algorithms\.AES|AESGCM|import AES\b") == {"randomness/source.py"}
    assert users(r"ChaCha20Poly1305\(") == {"protocol/dealing.py"}
    streams = {"randomness/source.py", "zerosum/masks.py"}
    streams |= {"protocol/agreement.py", "protocol/shamir.py"}  # of public numbers, by their digest
    assert users(r"\bByteStream\(") == streams


def test_the_product_knows_nothing_of_its_laboratory() -> None:
    """Neither by import nor by the path of a file of its results."""
    product = [path for path in SOURCES if path.is_relative_to(PACKAGES[0])]
    assert len(product) > 100
    for path in product:
        assert not re.search(r"capemix_research|golden|peers\.csv", path.read_text()), path
    assert not {"experiments", "report"} & {path.name for path in PACKAGES[0].iterdir()}


# -- erased after use ------------------------------------------------------------------------------


def test_erasing_overwrites() -> None:
    key = bytearray(b"secret")
    erase(key)
    assert key == bytes(6)


def test_a_stream_and_a_source_overwrite_their_keys_when_they_go() -> None:
    source = SystemSource()
    stream, child = source.stream("a"), source.child("b")
    stream.tie_words(1)
    kept = [stream._key, stream._ties._key, child._key, source._key]  # type: ignore[union-attr]
    assert all(any(key) for key in kept)
    del stream, child, source
    assert not any(any(key) for key in kept)


def test_an_erased_source_gives_nothing_more() -> None:
    source = SeededSource(1)
    source.erase()
    for draw in (source.key, source.stream, source.child):
        with pytest.raises(RuntimeError, match="erased"):
            draw("a")


def secrets_of(site: Any) -> list[bytearray]:
    return [
        site._own_mask,
        site._mask_secret,
        site._source._key,
        *(share for shares in site._held.values() for share in shares),
        *(share for shares in site._dealt.values() for share in shares),
    ]


def test_a_site_forgets_what_unmasks_it_once_its_upload_is_made(tmp_path: Path) -> None:
    world = World(counting_plan(4, 1, 1), tmp_path)
    given: list[Any] = []
    for site in world.sites:
        plain = site._make_share
        site._make_share = lambda plan, keys, plain=plain: given.append(keys) or plain(plan, keys)  # type: ignore[func-returns-value]
    while world.run.round is not None:
        for number, raw in list(world.run.requests()):
            answer = world.ask(number, raw)
            assert answer is not None
            world.bring(number, answer)
        site: Any = world.sites[0]
        if world.run.round == "shares":
            assert any(site._own_mask)
            assert any(site._mask_secret)
            assert not any(site._source._key)
        if world.run.round in ("upload", "agree"):
            assert not any(site._own_mask)
            assert not any(site._mask_secret)
            assert site._box is None
            assert all(any(share) for shares in site._held.values() for share in shares)
        world.run.close()
    for site in world.sites:
        assert not any(any(secret) for secret in secrets_of(site))
    assert len(given) == 4
    for keys in given:
        assert not any(keys.own)
        assert not any(any(key) for key in keys.pair.values())


def test_a_site_that_leaves_a_run_forgets_everything(tmp_path: Path) -> None:
    world = World(counting_plan(4, 1, 1), tmp_path)
    while world.run.round != "check":
        for number, raw in list(world.run.requests()):
            answer = world.ask(number, raw)
            assert answer is not None
            world.bring(number, answer)
        world.run.close()
    site: Any = world.sites[0]
    assert any(any(secret) for secret in secrets_of(site))
    with pytest.raises(ProtocolError):
        site.answer(b"nonsense\n")
    assert any(any(secret) for secret in secrets_of(site))  # nobody signed that
    with pytest.raises(ProtocolError):
        site.answer(signed_request(world, "check", {}))
    assert not any(any(secret) for secret in secrets_of(site))


# -- no randomness outside its room ----------------------------------------------------------------


def ruff(folder: Path) -> str:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise"]
    command += ["--config", str(ROOT / "pyproject.toml"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


PLANTED = {
    "numpy": "import numpy as np\n\nx = np.random.default_rng(1)\n",
    "from_numpy": "from numpy.random import default_rng\n\nx = default_rng(1)\n",
    "from_numpy_import": "from numpy import random\n\nx = random.default_rng(1)\n",
    "standard": "import random\n\nx = random.random()\n",
    "from_standard": "from random import randint\n\nx = randint(1, 2)\n",
}


@pytest.mark.parametrize("name", PLANTED)
def test_randomness_planted_in_a_room_is_caught(name: str, tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED[name])
    assert "TID251" in ruff(tmp_path)
    (tmp_path / "planted.py").write_text("x = 1\n")
    assert "TID251" not in ruff(tmp_path)


def test_the_ban_is_lifted_in_the_room_of_randomness_alone() -> None:
    lifted = [path for path in SOURCES if re.search(r"noqa:[^\n]*TID251", path.read_text())]
    assert [path.parent.name for path in lifted] == ["randomness"]


OTHER_RANDOMNESS = re.compile(
    r"\.rvs\(|torch\.(?:rand|manual_seed|Generator|normal|bernoulli|multinomial)|random_state=(?!0\b)"
)


def test_other_libraries_randomness_is_for_evaluation_only() -> None:
    """scipy's, torch's and scikit-learn's generators: never where noise or a selection is made."""
    found = {
        inside(path).parent.as_posix()
        for path in SOURCES
        if OTHER_RANDOMNESS.search(path.read_text())
    }
    assert found <= {"evaluate", "capemix_research/experiments", "capemix_research/trainer"}
    assert OTHER_RANDOMNESS.search("x = norm.rvs(3)")
    assert OTHER_RANDOMNESS.search("torch.randn(3)")


@pytest.mark.parametrize(
    "error",
    [
        InputError("samples", "must be above 0", value=-1, fix="give 1000, say"),
        EpsilonError(100.0, 43.2),
        BudgetError("the budget of people", "would be overspent", fix="ask for less"),
    ],
)
def test_an_error_comes_whole_from_another_process(error: InputError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert (str(found), vars(found)) == (str(error), vars(error))


def test_a_module_of_more_lines_has_a_reason_in_the_contributing_page() -> None:
    page = (ROOT / "docs" / "contributing.md").read_text()
    section = page.partition("## Long modules")[2].partition("\n## ")[0]
    reasons = re.findall(r"^\| `([\w/.]+\.py)` \| .{10,} \|$", section, re.MULTILINE)
    long = [path for path in SOURCES if len(path.read_text().splitlines()) > LONG]
    assert reasons == sorted(inside(path).as_posix() for path in long)
