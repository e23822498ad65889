"""What reports have in common: one HTML file that needs no other file and no network. It follows the system's colours
unless the reader chooses others, prints, and works without its script, which only shows values under the pointer."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from federec.reporting.figures import STYLE as FIGURES

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d0d7de; --soft: #57606a; --card: #f6f8fa; }
:root:has(#light:checked) { color-scheme: light; }
:root:has(#dark:checked) { color-scheme: dark; DARK }
@media (prefers-color-scheme: dark) { :root:not(:has(#light:checked)) { DARK } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 62rem; margin: 1.5rem auto; padding: 0 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
header { display: flex; flex-wrap: wrap; gap: .5rem 2rem; justify-content: space-between; align-items: start; }
fieldset { border: 1px solid var(--line); border-radius: .4rem; padding: 0 .6rem; margin: 0; font-size: .85rem; }
legend { padding: 0 .3rem; color: var(--soft); } fieldset label { margin-right: .6rem; }
p { margin: .5rem 0; } p.lead { font-size: 1.1rem; } p.note { color: var(--soft); }
table { border-collapse: collapse; } th, td { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; }
thead th, thead td { border-bottom: 2px solid var(--line); } tr { border-bottom: 1px solid var(--line); }
tbody th { font-weight: 400; } .scroll tbody th { min-width: 9rem; }
table.facts th { font-weight: 600; } th.part { padding-left: 1rem; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; } td.n { white-space: nowrap; }
.scroll { overflow-x: auto; } .figures { display: grid; gap: 1.2rem 2rem;
grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0; padding: 0; list-style: none; }
.cards li { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .5rem .9rem; }
.cards b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
.users { display: grid; gap: .5rem 1.5rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 16rem), 1fr)); }
h3 { font-size: 1rem; margin: 1rem 0 .3rem; } ol { margin: .3rem 0; padding-left: 1.8rem; }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--soft); }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .4rem; padding: .6rem; overflow-x: auto; }
#tip { position: fixed; pointer-events: none; background: var(--paper); border: 1px solid var(--soft);
border-radius: .4rem; padding: .3rem .6rem; font-size: .85rem; white-space: pre; max-width: 95vw; overflow: hidden; }
@media print { :root { color-scheme: light !important; --ink: #000 !important; --paper: #fff !important;
--line: #bbb !important; --soft: #333 !important; --card: #fff !important; }
fieldset, summary, input, #tip { display: none; } body { margin: 0; max-width: none; }
figure, li, .scroll { break-inside: avoid; } h2, h3 { break-after: avoid; } .scroll, pre { overflow: visible; }
pre { white-space: pre-wrap; } .figures { grid-template-columns: 1fr 1fr; }
thead { display: table-row-group; } th, td { padding-right: .5rem; } }
""".replace("DARK", "--ink: #e6edf3; --paper: #0d1117; --line: #3d444d; --soft: #9198a1; --card: #161b22;")

_SCRIPT = """
const tip = document.body.appendChild(Object.assign(document.createElement("div"), {id: "tip", hidden: true}));
for (const svg of document.querySelectorAll("svg[data-rounds]")) {
  const rounds = svg.dataset.rounds.split(" ").map(Number), from = +svg.dataset.from, to = +svg.dataset.to;
  const hair = svg.querySelector(".hair"), first = +svg.dataset.first, span = svg.dataset.last - first || 1;
  const hide = () => { tip.hidden = true; hair.style.visibility = "hidden"; };
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const at = first + ((event.clientX - box.x) / box.width * svg.viewBox.baseVal.width - from) / (to - from) * span;
    const nearest = known => known.reduce((a, b) => Math.abs(rounds[b] - at) < Math.abs(rounds[a] - at) ? b : a);
    const near = nearest([...rounds.keys()]), words = [];
    for (const series of svg.querySelectorAll("g[data-values]")) {  // a curve may have no value in this round
      const values = series.dataset.values.split(" "), known = [...rounds.keys()].filter(i => values[i] !== "-");
      if (!known.length || getComputedStyle(series).display === "none") continue;
      const own = nearest(known), other = own === near ? "" : "  (round " + rounds[own] + ")";
      words.push(series.dataset.name + "  " + values[own] + other);
    }
    const x = from + (rounds[near] - first) / span * (to - from);
    hair.setAttribute("x1", x); hair.setAttribute("x2", x); hair.style.visibility = "visible";
    tip.textContent = ["round " + rounds[near], ...words].join("\\n");
    tip.hidden = false;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)) + "px";
  });
  svg.addEventListener("pointerleave", hide);
}
"""

_COLOURS = (
    "<fieldset><legend>Colours</legend>"
    "<label><input type='radio' name='colours' id='system' checked='checked'/> system</label>"
    "<label><input type='radio' name='colours' id='light'/> light</label>"
    "<label><input type='radio' name='colours' id='dark'/> dark</label></fieldset>"
)


def page(title: str, body: str) -> str:
    """A whole page; `body` is HTML, `title` is text."""
    name = escape(title)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'/>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'/>"
        f"<title>{name}</title><style>{_STYLE}{FIGURES}</style></head><body>"
        f"<header><h1>{name}</h1>{_COLOURS}</header><main>{body}</main><script>{_SCRIPT}</script></body></html>\n"
    )


def facts(rows: dict[str, str]) -> str:
    """Names and what they are; without those that are empty."""
    shown = "".join(
        f"<tr><th scope='row'>{escape(key)}</th><td>{escape(text)}</td></tr>" for key, text in rows.items() if text
    )
    return f"<table class='facts'><tbody>{shown}</tbody></table>"


def table(about: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], texts: int = 0) -> str:
    """A table that scrolls on a narrow screen; `about` says what it holds. The first `texts` cells of a row are text,
    the others are numbers. A name that begins with a space is a part of the row above."""
    kinds = [""] * texts + [" class='n'"] * (len(columns) - texts)
    head = "".join(f"<th scope='col'{kind}>{escape(name)}</th>" for kind, name in zip(kinds, columns, strict=True))
    body = ""
    for name, cells in rows:
        part = " class='part'" if name.startswith(" ") else ""
        inside = "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, cells, strict=True))
        body += f"<tr><th scope='row'{part}>{escape(name.strip())}</th>{inside}</tr>"
    return (
        f"<div class='scroll' role='group' tabindex='0' aria-label='{escape(about)}'><table>"
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
