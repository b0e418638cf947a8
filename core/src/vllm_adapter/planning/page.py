"""A plan as one HTML page for people: pictures, reasons, the command. No script in it."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Final

from vllm_adapter.planning.pictures import memory_picture, roofline_picture, topology_picture
from vllm_adapter.planning.plan import ExecutionPlan
from vllm_adapter.planning.render import figure, head, shown
from vllm_adapter.planning.roofline import Phase

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1a1c20; --dim: #55596130; --soft: #555961;
  --ground: #ffffff; --card: #f4f5f7; --good: #11692f; --bad: #a3211c; --link: #0b57a4;
  --a: #2f6fb5; --b: #b5622f; --c: #6b5ca5; --d: #2a8a5c; --e: #9aa0aa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaee; --dim: #c0c4cc30; --soft: #b3b8c2;
  --ground: #14161a; --card: #1e2127; --good: #6fd08f; --bad: #ff9b94; --link: #8fc1ff;
  --a: #6fa8e6; --b: #e69a6f; --c: #a99be0; --d: #66c795; --e: #757b86; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; color: var(--ink);
  background: var(--ground); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; margin: .5rem 0; } h2 { font-size: 1.1rem; margin: 1.8rem 0 .5rem; }
.verdict { font-weight: 600; } .yes { color: var(--good); } .no { color: var(--bad); }
.skip { position: absolute; left: -100rem; } .skip:focus { position: static; }
a { color: var(--link); } :focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
svg { width: 100%; max-width: 34rem; height: auto; display: block;
  font: 13px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .soft { fill: var(--soft); }
pre { background: var(--card); padding: .7rem; overflow-x: auto; white-space: pre-wrap; }
details { border-top: 1px solid var(--dim); padding: .35rem 0; }
summary { cursor: pointer; display: flex; flex-wrap: wrap; gap: 0 .7rem; }
summary b { min-width: 11rem; font-weight: 600; } details p { margin: .3rem 0 .3rem 1rem; }
.reads { color: var(--soft); font-size: .9rem; } .owner { color: var(--bad); }
ul.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; }
ul.legend i { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; }
summary::before { content: "\\25b8"; } details[open] > summary::before { content: "\\25be"; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; overflow-wrap: normal; }
td { min-width: 4rem; } th { white-space: nowrap; }
th, td { text-align: left; padding: .2rem .7rem .2rem 0; border-bottom: 1px solid var(--dim);
  vertical-align: top; }
"""


def page(plan: ExecutionPlan, own: tuple[str, ...] = ()) -> str:
    """The whole page as text."""
    return "\n".join(_page(plan, own)) + "\n"


def _page(plan: ExecutionPlan, own: tuple[str, ...]) -> Iterator[str]:
    name = html.escape(plan.demand.name)
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f'<title>Plan: {name}</title>\n<link rel="icon" href="data:,">'
    yield f"<style>{_STYLE}</style>\n</head>\n<body>"
    yield '<a class="skip" href="#why">To the reasons</a>\n<main>'
    yield f"<h1>{name} on {html.escape(_devices(plan))}</h1>"
    lines = list(head(plan))
    word = "yes" if plan.fits else "no"
    yield f'<p class="verdict {word}">{html.escape(" ".join(lines[-1].split()))}</p>'
    for line in lines[:-1]:
        yield f"<p>{html.escape(' '.join(line.split()))}</p>"
    yield "<h2>Memory of a rank</h2>"
    yield from memory_picture(plan)
    yield "<h2>Devices and ranks</h2>"
    yield from topology_picture(plan)
    yield "<h2>Roofline</h2>"
    yield from roofline_picture(plan)
    yield from _phases(plan)
    if plan.remedies:
        yield "<h2>What would make it fit</h2>"
        yield from _remedies(plan)
    yield "<h2>Command</h2>"
    command = plan.command(own) if plan.fits else "none: the model does not fit as asked"
    yield f'<pre tabindex="0">{html.escape(command)}</pre>'
    if plan.box.container:
        flags = " \\\n  ".join(one.text for one in plan.box.container)
        yield f'<p>Container flags</p>\n<pre tabindex="0">{html.escape(flags)}</pre>'
    yield '<h2 id="why" tabindex="-1">Why</h2>'
    yield from _reasons(plan)
    yield "<h2>Products of a rank</h2>"
    yield from _products(plan)
    for who, why in plan.box.refused:
        yield f"<p>Not planned on {html.escape(who)}: {html.escape(why)}</p>"
    for note in plan.notes:
        yield f"<p>{html.escape(note)}</p>"
    yield "</main>\n</body>\n</html>"


def _devices(plan: ExecutionPlan) -> str:
    name = plan.box.capability.identity.name or plan.box.capability.identity.arch
    return f"{len(plan.box.devices)} x {name}"


def _reasons(plan: ExecutionPlan) -> Iterator[str]:
    for line in plan.lines:
        owner = "" if line.owner == "planner" else f' <span class="owner">{line.owner}</span>'
        value = html.escape(shown(line.key, line.value))
        yield f"<details><summary><b>{html.escape(line.key)}</b> {value}{owner}</summary>"
        yield f"<p>{html.escape(line.reason)}</p>"
        for one in line.reads:
            yield f'<p class="reads">{html.escape(figure(one))}</p>'
        for sentence in line.assumptions:
            yield f'<p class="reads">assumed: {html.escape(sentence)}</p>'
        yield "</details>"


def _phases(plan: ExecutionPlan) -> Iterator[str]:
    rows = [
        (
            one.name,
            f"{one.tokens:,}",
            f"{one.intensity:,.1f}",
            _bound(plan, one),
            f"{one.seconds * 1e3:.3g} ms",
            f"{one.tokens_a_second:,.0f}",
        )
        for one in plan.phases
    ]
    names = ("phase", "tokens a step", "operations a byte", "bound by", "at best", "tokens/s")
    yield from _table(names, rows)


def _bound(plan: ExecutionPlan, one: Phase) -> str:
    return "computing" if one.intensity >= plan.rates.ridge else "reading"


def _remedies(plan: ExecutionPlan) -> Iterator[str]:
    rows = [
        (one.what, str(one.value) if one.enough else "no", one.cost, " ".join(one.flags))
        for one in plan.remedies
    ]
    yield from _table(("change", "to", "cost", "flags"), rows)


def _products(plan: ExecutionPlan) -> Iterator[str]:
    rows = []
    for one in plan.to_json()["gemms"]:
        shapes = [" x ".join(map(str, one[phase]["shape"])) for phase in ("decode", "prefill")]
        found = [str(one[phase]["flops_a_byte"]) for phase in ("decode", "prefill")]
        rows.append(
            (one["name"], f"{one['calls_a_step']:g}", shapes[0], found[0], *shapes[1:], found[1])
        )
    names = ("product", "calls", "decode m x n x k", "op/byte", "prefill m x n x k", "op/byte")
    yield from _table(names, rows)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield '<div class="scroll" tabindex="0"><table><thead><tr>'
    yield "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    yield "</tr></thead><tbody>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
    yield "</tbody></table></div>"
