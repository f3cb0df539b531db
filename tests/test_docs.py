"""The documents point at things that exist: symbols, tests, files, commands, options, figures."""

from __future__ import annotations

import ast
import json
import re
import shlex
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import typer

import capemix.methods
from capemix import Synthesizer
from capemix.cli.commands import app
from capemix.data import column
from capemix.engines.flower.files import read_plan_file
from capemix.sums import statistic
from capemix_research.cli.commands import app as research_app
from conftest import Capemix

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SHELVES = ("guide", "theory", "research")
PROOFS = sorted((DOCS / "theory" / "proofs").glob("*.md"))
PAGES = [
    ROOT / "README.md",
    ROOT / "research" / "README.md",
    *sorted(DOCS.rglob("*.md")),
]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
EXAMPLES = [
    (name, example)
    for name, page in zip(NAMES, PAGES, strict=True)
    for example in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
]
PROGRAMS = {"capemix": app, "capemix-research": research_app}
CLAIMS = (DOCS / "theory" / "claims.md").read_text()
ERRATA = (DOCS / "theory" / "errata.md").read_text()

SYMBOL = re.compile(r"`(capemix[\w.]*:[\w.]+)`")
MODULE = re.compile(r"python -m\s+(capemix[\w.]+)")
TEST = re.compile(r"`(tests/[\w/]+\.py::[\w\[\]-]+)`")
ERRATUM = re.compile(r"^## (\d+)\. (.+)$", re.MULTILINE)
KINDS = ("break of privacy", "inconsistency", "silence")
FIELDS = ("Kind", "Paper", "Holds", "Consequence", "capemix", "Tests")
OF_THE_PAPER = (
    *(f"Definition {n}" for n in (1, 2, 3, 4)),
    *(f"Proposition {n}" for n in (1, 2, 3)),
    "Theorem 1",
    *(f"Remark {n}" for n in (1, 2)),
    "Algorithm 1",
    "Problem statement",
)


# -- the checkers: each returns what is wrong, nothing if nothing is -----------------------------


def symbol_problems(text: str) -> list[str]:
    """Symbols `module:name` that cannot be imported."""
    found = []
    for symbol in SYMBOL.findall(text):
        module, _, name = symbol.partition(":")
        try:
            value: object = import_module(module)
            for part in name.split("."):
                value = getattr(value, part)
        except (ImportError, AttributeError):
            found.append(symbol)
    return found


@cache
def names_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def missing_tests(text: str) -> list[str]:
    """Tests `tests/file.py::name` that are not there."""
    found = []
    for reference in TEST.findall(text):
        path, _, name = reference.partition("::")
        if not (ROOT / path).is_file() or name not in names_in(ROOT / path):
            found.append(reference)
    return found


def tables(text: str) -> list[list[list[str]]]:
    """Every table as rows of cells, without the line of dashes."""
    found: list[list[list[str]]] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not inside:
                found.append([])
            if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
                found[-1].append(cells)
        inside = line.startswith("|")
    return found


def table_problems(text: str) -> list[str]:
    """Rows with an empty cell, or with more or fewer cells than their head."""
    return [
        " | ".join(row)
        for table in tables(text)
        for row in table
        if not all(row) or len(row) != len(table[0])
    ]


def sections(text: str) -> dict[int, str]:
    """The errata by number."""
    heads = list(ERRATUM.finditer(text))
    ends = [
        match.start()
        for match in re.finditer(r"^## ", text, re.MULTILINE)
        if heads and match.start() > heads[0].start()
    ]
    return {
        int(head[1]): text[head.end() : min((e for e in ends if e > head.end()), default=len(text))]
        for head in heads
    }


def erratum_problems(text: str) -> list[str]:
    """Errata that lack a field, a kind or a test, or are not numbered one after another."""
    found = []
    numbered = sections(text)
    if list(numbered) != list(range(1, len(numbered) + 1)):
        found.append("the numbers")
    for number, section in numbered.items():
        found += [f"{number}: {field}" for field in FIELDS if f"**{field}.**" not in section]
        if not TEST.search(section):
            found.append(f"{number}: test")
        kind = re.search(r"\*\*Kind\.\*\* ([\w ]+)", section)
        if kind is None or kind[1].strip().lower() not in KINDS:
            found.append(f"{number}: kind")
    return found


def without_code(text: str) -> str:
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"\]\([^)]*\)", "", heading.strip().lower())
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(f"{anchor}-1" if anchor in found else anchor)
    return found


def link_problems(text: str, folder: Path) -> list[str]:
    """Relative links and images that lead nowhere, and anchors that are no heading."""
    own, text = anchors(text), without_code(text)
    targets = re.findall(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)", text)
    targets += re.findall(r"<(?:img|a)\b[^>]*?(?:src|href)=\"([^\"]+)\"", text)
    targets += re.findall(r"^\[[^\]]+\]:\s+(\S+)", text, re.MULTILINE)
    found = []
    for target in targets:
        if re.match(r"[a-z][a-z+.-]*:|//", target):
            continue
        path, _, anchor = target.partition("#")
        page = folder / path
        if path and not page.exists():
            found.append(target)
        elif anchor and (not path or page.suffix == ".md"):
            known = anchors(page.read_text()) if path else own
            if anchor not in known:
                found.append(target)
    return found


def shown_commands(text: str) -> list[str]:
    """Command lines in fenced, indented and inline code, continued lines joined."""
    fenced = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"(?:^(?: {4}|\t).*\n?)+", text, re.MULTILINE)
    inline = re.findall(r"`([^`\n]+)`", text)
    lines = [
        line.strip()
        for block in (*fenced, *indented)
        for line in block.replace("\\\n", " ").splitlines()
    ]
    shown = []
    for line in (*lines, *inline):
        line = line.removeprefix("$ ").removeprefix(".venv/bin/")
        if re.match(r"capemix(-research)?( |$)", line) and line not in shown:
            shown.append(line)
    return shown


def words_of(line: str) -> list[str]:
    return [word for word in shlex.split(line, comments=True)[1:] if word != "..."]


def command_problems(text: str) -> list[str]:
    """Commands that are unknown or have moved, and options that their command does not have."""
    groups = {name: typer.main.get_command(program) for name, program in PROGRAMS.items()}
    found = []
    for line in shown_commands(text):
        words = words_of(line)
        known, path = groups[line.split()[0]], list(words)
        while hasattr(known, "commands") and path and not path[0].startswith("-"):
            known = known.commands.get(path.pop(0))
        if known is None or known.hidden:
            found.append(f"{line}: {' '.join(words[: len(words) - len(path)])}")
            continue
        options = {"--help"}
        parameters = known.every_option() if hasattr(known, "every_option") else known.params
        file = any(parameter.name == "file" for parameter in parameters)
        for parameter in parameters:
            if getattr(parameter, "hidden", False):  # it says where it has gone
                continue
            if file and parameter.name == "data":  # the file is shown without an option
                continue
            options |= {*parameter.opts, *parameter.secondary_opts}
        found += [
            f"{line}: {word}"
            for word in words
            if re.match(r"--?[a-zA-Z]", word) and word.partition("=")[0] not in options
        ]
    return found


def cited_errata(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"errata (\d+)", text)}


# -- the documents -------------------------------------------------------------------------------


def test_every_page_is_on_a_shelf_and_in_the_index() -> None:
    """Besides the index, docs/ has three shelves; the index names every page but single proofs, and
    so does the list at the site's side, which names those, too."""
    index, side = DOCS / "README.md", DOCS / "index.md"
    listed = re.findall(r"\]\(([^)#]+)\)", index.read_text())
    beside = side.read_text().split()
    for page in DOCS.rglob("*.md"):
        place = page.relative_to(DOCS)
        if page in (index, side) or place.parts == ("contributing.md",):
            continue
        assert place.parts[0] in SHELVES, place
        assert {str(place.with_suffix("")), f"{place.parent}/*"} & set(beside), place
        if place.parent.name != "proofs" or place.name == "README.md":
            assert place.as_posix() in listed, place


def test_pages_are_found_on_every_shelf() -> None:
    for shelf in SHELVES:
        assert sum(name.startswith(f"docs/{shelf}/") for name in NAMES) >= 3


def test_every_symbol_can_be_imported() -> None:
    assert len(SYMBOL.findall(CLAIMS)) > 50
    for page in PAGES:
        assert symbol_problems(page.read_text()) == [], page


PROVED = [page for page in PROOFS if page.name != "README.md"]


@pytest.mark.parametrize("page", PROVED, ids=lambda page: page.name)
def test_every_proof_has_its_parts(page: Path) -> None:
    """Each statement is followed by a proof that ends; the page names the code and its tests."""
    text = page.read_text()
    found = re.findall(r"^(?:\*\*|## )(Statement|Proof)\b", text, re.MULTILINE)
    assert found == ["Statement", "Proof"] * (len(found) // 2)
    assert text.count("QED") == len(found) // 2 > 0
    before, _, after = text.partition("## Checked by")
    assert len(SYMBOL.findall(before)) >= 2
    assert len(TEST.findall(after)) >= 3
    assert f"({page.name})" in (page.parent / "README.md").read_text()


def test_every_test_that_is_named_exists() -> None:
    for page in PAGES:
        assert missing_tests(page.read_text()) == [], page


def test_every_row_of_the_claims_has_a_symbol_and_a_test() -> None:
    rows = [row for table in tables(CLAIMS) for row in table]
    assert all(table[0] == ["claim", "reference", "symbol", "test"] for table in tables(CLAIMS))
    for row in rows:
        if row[0] != "claim":
            assert SYMBOL.search(row[2]), row[0]
            assert TEST.search(row[3]), row[0]


def test_no_cell_is_empty() -> None:
    for page in PAGES:
        assert table_problems(page.read_text()) == [], page


def test_every_claim_of_the_paper_is_listed() -> None:
    references = " ".join(row[1] for row in tables(CLAIMS)[0])
    assert [name for name in OF_THE_PAPER if name not in references] == []


def test_every_erratum_that_is_cited_exists() -> None:
    assert cited_errata(CLAIMS) <= set(sections(ERRATA))
    assert set(sections(ERRATA)) >= set(range(1, 13))


def test_what_is_not_yet_shown_names_no_symbol() -> None:
    _, _, rest = CLAIMS.partition("## Not yet shown")
    assert rest.strip()
    assert not SYMBOL.search(rest)
    assert not TEST.search(rest)


def test_every_erratum_is_complete() -> None:
    assert erratum_problems(ERRATA) == []


def test_the_table_of_errata_agrees_with_the_sections() -> None:
    listed = {int(row[0]): row[2] for row in tables(ERRATA)[0] if row[0].isdigit()}
    assert list(listed) == list(sections(ERRATA))
    for number, section in sections(ERRATA).items():
        assert f"**Kind.** {listed[number].capitalize()}" in section


def test_every_test_of_the_errata_is_named_in_its_document() -> None:
    written = names_in(ROOT / "tests" / "test_errata.py")
    named = [
        reference.partition("::")[2]
        for reference in TEST.findall(ERRATA)
        if reference.startswith("tests/test_errata.py::")
    ]
    assert set(named) == written
    assert len(named) == len(set(named))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_and_image_leads_somewhere(page: Path) -> None:
    assert link_problems(page.read_text(), page.parent) == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_shown_has_its_options(page: Path) -> None:
    assert command_problems(page.read_text()) == []


def test_the_figures_beside_commands_are_what_they_print(capemix: Capemix) -> None:
    """`capemix account ...  # epsilon 9.997` prints that epsilon, to the digits shown."""
    shown = [line for line in shown_commands(ERRATA) if "#" in line]
    assert len(shown) >= 4
    for line in shown:
        name, value = line.partition("#")[2].split()
        printed = capemix(*words_of(line), "--json").json[name]
        digits = len(value.partition(".")[2])
        assert f"{printed:.{digits}f}" == value, line


@pytest.mark.parametrize(("page", "example"), EXAMPLES)
def test_every_python_example_runs(
    page: str, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # What an example adds goes with it.
    monkeypatch.setattr(capemix.methods, "_KNOWN", capemix.methods.methods())
    monkeypatch.setattr(statistic, "_KINDS", dict(statistic._KINDS))
    monkeypatch.setattr(column, "_TYPES", dict(column._TYPES))
    generator = np.random.default_rng(0)
    y = np.array(["no", "yes"])[generator.integers(2, size=400)]
    X = generator.normal(size=(400, 3)) + (y == "yes")[:, None]
    if "read_parquet" in example:
        Synthesizer(epsilon=5.0).fit(X, y).release_.save("release")
    names = {"__name__": __name__, "X": X, "y": y}
    exec(compile(example, page, "exec", dont_inherit=True), names)
    if "ClassMeans" in names:
        method = names["ClassMeans"]()
        fitted = Synthesizer(epsilon=5.0, classes=["no", "yes"], method=method).fit(X, y)
        assert len(fitted.release_) == 2


def test_python_examples_are_found() -> None:
    assert len(EXAMPLES) >= 5


def test_a_schema_that_is_shown_whole_makes_the_plan_shown_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capemix: Capemix
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = re.findall(
        r"^```json\n(\{.*?)^```\s+^```\n(capemix .*?)^```",
        (DOCS / "guide" / "federation.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert len(shown) == 1
    for schema, command in shown:
        (tmp_path / "schema.json").write_text(schema)
        ran = capemix(*words_of(command.replace("\\\n", " ")))
        assert ran.code == 0, ran.err
        facts = read_plan_file(tmp_path / "plan.json").facts
        assert [column["name"] for column in json.loads(schema)["columns"]] == list(
            facts.table.names if facts.table else ()
        )


# -- the checkers themselves ---------------------------------------------------------------------


def test_a_symbol_that_is_not_there_is_found() -> None:
    good = "`capemix.queries:QueryShape.rows`"
    assert symbol_problems(good) == []
    for bad in (
        "capemix.queries:Nothing",
        "capemix.nowhere:QueryShape",
        "capemix.queries:QueryShape.x",
    ):
        assert symbol_problems(f"{good} `{bad}`") == [bad]


def test_a_test_that_is_not_there_is_found() -> None:
    good = "`tests/test_docs.py::test_a_test_that_is_not_there_is_found`"
    assert missing_tests(good) == []
    for bad in (
        "tests/test_docs.py::test_x",
        "tests/test_no.py::test_x",
        "tests/test_docs.py::PAGES",
    ):
        assert missing_tests(f"{good} `{bad}`") == [bad]
    # Parametrised ids are not used.
    assert missing_tests(good.replace("found`", "found[1]`"))


def test_an_empty_cell_is_found() -> None:
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n"
    assert table_problems(table) == []
    assert table_problems(table + "| 3 | |\n") == ["3 | "]
    assert table_problems(table + "| 3 |\n") == ["3"]


def test_an_incomplete_erratum_is_found() -> None:
    fields = "".join(f"- **{field}.** Silence\n" for field in FIELDS)
    whole = f"## 1. One\n{fields} `tests/a.py::test_a`\n"
    assert erratum_problems(whole) == []
    assert erratum_problems(whole.replace("`tests", "tests")) == ["1: test"]
    assert erratum_problems(whole.replace("**Holds.**", "")) == ["1: Holds"]
    assert erratum_problems(whole.replace("**Kind.** Silence", "**Kind.** Odd")) == ["1: kind"]
    assert erratum_problems(whole.replace("## 1.", "## 2.")) == ["the numbers"]
    two = erratum_problems(whole + "## 2. Two\n## Rest\n" + fields)
    assert "2: test" in two
    assert "2: Holds" in two


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# What `X` is, and why\n\n## x\n")
    good = "# X\n[a](there.md) [b](there.md#x) [c](https://example.org/no) [d](#x) `[e](code.md)`"
    assert link_problems(good, tmp_path) == []
    assert link_problems("[a](there.md#what-x-is-and-why)", tmp_path) == []
    assert link_problems("[a](there.md#y) [b](#x)", tmp_path) == ["there.md#y", "#x"]
    assert link_problems(f"{good} ![f](gone.png)", tmp_path) == ["gone.png"]
    assert link_problems('<img src="gone.png">\n[g]: lost.md', tmp_path) == ["gone.png", "lost.md"]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_module_shown_can_be_run(page: Path) -> None:
    for name in MODULE.findall(page.read_text()):
        assert find_spec(name.rstrip(".")) is not None, name


def test_a_wrong_command_is_found() -> None:
    good = (
        "```\ncapemix account --noise 1 \\\n    --mixture 4  # epsilon 1\n```\n`capemix --version`"
    )
    assert command_problems(good) == []
    fenced = good.replace("--mixture", "--mixtures")
    assert len(command_problems(fenced)) == 1
    assert len(command_problems("    .venv/bin/capemix synth --frobnicate 1\n")) == 1
    assert len(command_problems("see `capemix frobnicate ...`")) == 1
    assert len(command_problems("see `capemix sweep ...` and `capemix federate splits`")) == 2
    assert len(command_problems("see `capemix audit --out found --paper`")) == 1
    assert len(command_problems("see `capemix synth --data a.csv` and `capemix synth a.csv`")) == 1
    assert len(command_problems("see `capemix synth a.csv --synthesizer moments --upright`")) == 2
    assert command_problems("see `capemix synth a.npz --soft-labels --no-deskew`") == []
    assert command_problems("see `capemix-research sweep --epsilons 1`") == []
    assert len(command_problems("see `capemix-research sweep --frobnicate 1`")) == 1
    assert command_problems("see `capemix synth ...` and `capemix.plan:Plan`") == []
