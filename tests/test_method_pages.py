"""Every method and plug-in has a page of one shape, and what stands on it is that of the code and the records."""

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from federec.methods.base import DeviceMethod
from federec.methods.registry import METHODS
from federec.plugins.registry import PLUGINS
from federec.reproduction.grids import TUNED

pytest.importorskip("mkdocs", reason="pip install federec[dev]")
pytest.importorskip("matplotlib", reason="pip install federec[results]")

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((DOCS / "methods").glob("*.md"))}
CENTRAL = [name for name, method in METHODS.items() if not issubclass(method, DeviceMethod)]
SECTIONS = [
    "What is shared, what stays private, what travels",
    "The algorithm",
    "Settings",
    "When to use it",
    "How it differs from the paper",
    "Results",
    "Reference",
]


@pytest.fixture(scope="module")
def hook():
    spec = importlib.util.spec_from_file_location("method_pages", DOCS / "method_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", [*METHODS, *PLUGINS])
def test_every_method_and_plugin_has_a_place_in_the_pages(hook, name):
    page, _, section = hook.page_of(name).partition("#")
    text = PAGES[page]
    assert f"methods/{page}\n" in (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert not section or f"\n## {section}\n" in text
    assert f"<!-- settings: {name} -->" in text and f"<!-- results: {name} -->" in text
    assert f"<!-- traffic: {name} -->" in text or name in CENTRAL or name in PLUGINS


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ("index.md", "references.md")])
def test_a_page_has_every_section_an_equation_and_an_example(page):
    text = PAGES[page]
    found = re.findall(r"^## (.+)$", text, re.M)
    assert [head for head in found if head in SECTIONS] == SECTIONS
    first, _, _ = text.partition("\n## ")
    assert "```bash\n" in first and "```python\n" in first
    assert "\n$$\n" in text.partition("## The algorithm")[2].partition("\n## ")[0].replace("    $$", "$$")


@pytest.mark.parametrize("page", PAGES)
def test_every_marker_is_one_that_the_hook_knows(hook, page):
    marks = re.findall(r"^ *<!-- (?!not run).*$", PAGES[page], re.M)
    assert all(hook.MARKER.fullmatch(mark) for mark in marks), marks
    assert not hook.MARKER.search(hook.filled(PAGES[page]))


@pytest.mark.parametrize("name", [*METHODS, *PLUGINS])
def test_every_setting_is_listed_with_its_default(hook, name):
    said, class_ = hook.settings(name), {**METHODS, **PLUGINS}[name]
    about = class_.described()
    for field, info in class_.model_fields.items():
        line = next(line for line in said.splitlines() if line.startswith(f"- **`{field}`** = "))
        assert f"`{hook.written(info.default)}`" in line and " ".join(about[field].split()) in line


def test_bounds_are_said_in_words(hook):
    said = hook.settings("plgc") + hook.settings("fedrap") + hook.settings("fedals") + hook.settings("ease")
    for words in (
        "**`mix`** = `ntk`, one of `ntk`, `fixed`.",
        "**`smoothing`** = `0.9`, at least 0 and below 1.",
        "**`step_decay`** = `0.95`, above 0 and at most 1.",
        "**`dim`** = `32`, at least 1.",
        "**`negatives`** = `0`, fixed.",
        "**`l2`** = `[30, 100, 300, 1000, 3000, 10000]`, each above 0.",
    ):
        assert words in said


def test_what_cannot_be_combined_is_said_with_the_reason(hook):
    assert "It does not fit [`sam`](sam.md): its gradients are sharpness-aware already." in hook.settings("fedrecgel")
    assert "`plgc`" not in hook.settings("pfedrec").partition("does not fit")[2]


def test_the_overview_says_where_sums_are_not_enough(hook):
    rows = dict(re.findall(r"^\| \[`([\w-]+)`\]\S* \| (yes|no) \|", hook.overview(), re.M))
    assert {name for name, sums in rows.items() if sums == "no"} == {"metamf", "fedpergnn"}
    assert sorted(rows) == sorted(name for name in METHODS if name not in CENTRAL)


@pytest.mark.parametrize("mark", ["settings", "results", "traffic"])
def test_an_unknown_name_stops_the_build_with_page_and_name(hook, mark):
    from mkdocs.exceptions import PluginError

    page = SimpleNamespace(file=SimpleNamespace(src_uri="methods/mine.md"))
    with pytest.raises(PluginError, match=r"methods/mine\.md: .*'pfedrek' - did you mean 'pfedrec'"):
        hook.on_page_markdown(f"# Mine\n\n<!-- {mark}: pfedrek -->\n", page=page)


def test_a_page_gives_the_verdicts_of_the_summary(hook):
    """The same family of claims, or Holm's correction would give other verdicts."""
    from federec.reproduction.summary import summary, tell

    known = hook.known()
    page, judged = summary(TUNED.rows, TUNED.data, known.found), hook.results("pfedrec")
    told = tell(("pfedrec", "fedmf"), TUNED.data, known.claims)
    assert told and told in page and f"**pfedrec against fedmf.** {told}" in judged
    claim = known.claims["pfedrec", "fedmf", "ml-100k"]
    assert f"| ml-100k | {claim.verdict} ({claim.points}) | " in judged


def test_figures_are_means_over_seeds(hook):
    from statistics import fmean, stdev

    values = hook.known().found["ease", "ml-100k", "tuned"].values("full", "ndcg@10")
    cell = f"{fmean(values):.2f}\u00a0±\u00a0{stdev(values):.2f}"
    assert re.search(rf"^\| ml-100k \| {cell}", hook.results("ease"), re.M)


def test_the_rule_of_the_default_method_is_that_of_the_code():
    from federec.methods.default import MOST_ITEMS

    assert f"up to {MOST_ITEMS:,} items [`fedease`]" in PAGES["index.md"]


def test_what_is_not_measured_reads_well():
    from federec.reproduction.outcomes import Measured, outcome

    nothing = Measured({}, {})
    assert outcome("fedrap", nothing) == "`fedrap` has not been measured yet with tuned settings on any data set.\n"
    assert "`fedmf+plgc`, `fedncf+plgc`" in outcome("plgc", nothing)
    assert outcome("ldp", nothing, ["pfedrec-table4"]) == (
        "It is not among the rows that are tuned for the results pages.\n\n"
        "With settings that were not tuned: [PFedRec, Table 4](../results/pfedrec-table4.md).\n"
    )


def test_some_data_sets_may_be_missing(hook):
    from federec.reproduction.outcomes import Measured, outcome

    known = hook.known()
    some = {key: group for key, group in known.found.items() if key[1] == "ml-100k"}
    claims = {key: claim for key, claim in known.claims.items() if key[2] == "ml-100k"}
    said = outcome("fednext", Measured(some, claims))
    missing = [name for name in TUNED.data if name not in ("ml-100k", "filmtrust", "lastfm-listens")]
    assert f"on {', '.join(missing[:-1])} and {missing[-1]}." in said
    assert "filmtrust and lastfm-listens have no times" in said
