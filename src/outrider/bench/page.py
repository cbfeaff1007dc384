"""The result of a bench as one self-contained page: speedup per category, acceptance by position, time per round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from outrider.bench.figures import (
    IDENTICAL,
    LENGTH,
    RATE,
    SPEED,
    Column,
    automatic,
    interval,
    rate,
    rules,
    share,
    times,
)
from outrider.bench.report import ALL
from outrider.bench.svg import WIDTH, Drawing, Scale, nice_end
from outrider.bench.verdict import verdicts

Entry = Mapping[str, Any]

_LEFT: Final = 100
"""Room for the names of methods."""
_RIGHT: Final = 52
"""Room for a figure past the longest mark."""
_ROW: Final = 20
_HEADING: Final = 22
_AXIS: Final = 24
_COLOURS: Final = 8
_PHASES: Final = (("draft_s", "draft"), ("verify_s", "verify"), ("other_s", "other"))
_LEAST_TESTED: Final = 5
_MOST_POSITIONS: Final = 16
_COLUMNS: Final[Sequence[Column]] = (
    *(*SPEED, LENGTH, RATE),
    ("other", lambda entry: share(entry["other_share"])),
    IDENTICAL,
)

_STYLE: Final = (
    """
:root { color-scheme: light dark; --paper: #fcfcfb; --ink: #1c1c1a; --soft: #62615c; --rule: #dddcd6;
  --c0: #8a8984; --c1: #2a78d6; --c2: #c65a11; --c3: #1a8a5a; --c4: #8a4fc4; --c5: #b8860b;
  --c6: #c2336b; --c7: #0f8f9c;
  --draft: #c65a11; --verify: #2a78d6; --other: #8a8984; }
@media (prefers-color-scheme: dark) { :root { --paper: #1a1a19; --ink: #f2f1ec; --soft: #a9a8a1; --rule: #3b3a37;
  --c0: #9b9a94; --c1: #5598e7; --c2: #e08344; --c3: #3fb27f; --c4: #b083e0; --c5: #d8a93a;
  --c6: #e26a98; --c7: #3fb8c4;
  --draft: #e08344; --verify: #5598e7; --other: #9b9a94; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto;
  max-width: 52rem; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.35rem; line-height: 1.3; margin: 0 0 .5rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .3rem; }
p, figcaption { color: var(--soft); margin: .2rem 0; } figure { margin: .8rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem 0 .25rem 1rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 500; } .name { text-align: left; padding-left: 0; }
.scroll { overflow-x: auto; margin: .8rem 0; } svg { width: 100%; max-width: 34rem; height: auto; display: block; }
.label { fill: var(--ink); font-size: 13px; } .group { fill: var(--ink); font-size: 13px; font-weight: 600; }
.soft { fill: var(--soft); font-size: 12px; paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
.rule { stroke: var(--rule); } .one { stroke: var(--soft); stroke-dasharray: 3 3; }
.key { display: inline-block; margin-right: 1.2rem; color: var(--ink); }
.key i { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px; margin-right: .35rem; }
"""
    + "".join(
        f".f{i} {{ fill: var(--c{i}); }} .s{i} {{ stroke: var(--c{i}); stroke-width: 2; fill: none; }}"
        f" .k{i} {{ background: var(--c{i}); }}"
        for i in range(_COLOURS)
    )
    + "".join(
        f".f-{name} {{ fill: var(--{name}); stroke: var(--paper); }} .k-{name} {{ background: var(--{name}); }}"
        for _, name in _PHASES
    )
)


def page(result: Mapping[str, Any]) -> str:
    """The page of a bench result; it loads no other files."""
    entries: Sequence[Entry] = result["results"]
    colours = {arm["name"]: index % _COLOURS for index, arm in enumerate(result["algorithms"])}
    parts = [_header(result)]
    for setting in dict.fromkeys(entry["setting"] for entry in entries):
        here = [entry for entry in entries if entry["setting"] == setting]
        parts += _setting(setting, here, colours)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>outrider bench: {escape(result['model']['name'])}</title><style>{_STYLE}</style></head><body>"
        + "".join(parts)
        + "</body></html>\n"
    )


def _header(result: Mapping[str, Any]) -> str:
    model, machine, work, ceiling = (result[part] for part in ("model", "machine", "workload", "ceiling"))
    reached = ceiling["share_reached"]
    told = "" if reached is None else f" Plain decoding reaches {reached:.0%} of the memory bandwidth limit."
    return (
        f"<h1>{'<br>'.join(map(_unbroken, verdicts(result['results'])))}</h1>"
        f"<p>{escape(model['name'])}, {escape(model['dtype'])} on {escape(machine['cpu'])}, "
        f"{machine['threads']} threads; {work['prompts']} prompts of {escape(work['file'])}, at most "
        f"{work['max_tokens']} tokens each, rule: {escape(rules(result['results']))}, "
        f"{escape(result['created'].partition('T')[0])}.{told}"
        f"{''.join(f' {escape(each)}.' for each in automatic(result))}</p>"
    )


def _unbroken(words: str) -> str:
    """Escaped text that does not break at the dashes of intervals."""
    return escape(words).replace("–", "\u2060–\u2060")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls on a narrow screen; its first column is text."""

    def line(kind: str, cells: Sequence[str]) -> str:
        first, *others = map(escape, cells)
        return f'<tr><{kind} class="name">{first}</{kind}>' + "".join(f"<{kind}>{each}</{kind}>" for each in others)

    body = "</tr>".join([line("th", head), *(line("td", row) for row in rows)])
    return f'<div class="scroll"><table>{body}</tr></table></div>'


def _figures(entries: Sequence[Entry]) -> str:
    rows = [[cell(entry) for _, cell in _COLUMNS] for entry in entries]
    return _table([heading for heading, _ in _COLUMNS], rows)


def _setting(setting: str, entries: Sequence[Entry], colours: Mapping[str, int]) -> list[str]:
    overall = [entry for entry in entries if entry["category"] == ALL]
    drafting = [entry for entry in entries if entry["drafted"]]
    known = [entry for entry in overall if _meaningful(entry)]
    keys = _keys([(f"k{colours[entry['algorithm']]}", entry["algorithm"]) for entry in known])
    title = escape(setting)
    phases = _keys([(f"k-{name}", name) for _, name in _PHASES])
    return [
        f"<h2>Figures, {title}</h2>{_figures(overall)}",
        f"<h2>Speedup over plain decoding, {title}</h2><p>Decoding only; lines are 95 % intervals over prompts.</p>",
        f"<figure>{speedups(drafting, colours)}</figure>",
        f"<h2>Acceptance by position, {title}</h2><p>Accepted over tested drafts at each depth. The table also shows "
        f"the number tested. Depths with fewer than {_LEAST_TESTED} tests or past {_MOST_POSITIONS} are left out.</p>",
        f"<figure>{keys}{acceptance(known, colours)}</figure>{_positions(known)}",
        f"<h2>Time per round, {title}</h2><p>“Other” is the engine's own: scheduling, sampling, acceptance.</p>",
        f"<figure>{phases}{time_split(overall)}</figure>",
    ]


def _positions(entries: Sequence[Entry]) -> str:
    depth = max((len(_meaningful(entry)) for entry in entries), default=0)
    rows = []
    for entry in entries:
        cells = [
            rate(value, tested) for value, tested in zip(_meaningful(entry), entry["tested_by_position"], strict=False)
        ]
        rows.append((entry["algorithm"], *cells, *["–"] * (depth - len(cells))))
    return _table(("α (tested) at", *map(str, range(1, depth + 1))), rows) if rows else ""


def _keys(pairs: Sequence[tuple[str, str]]) -> str:
    spans = "".join(f'<span class="key"><i class="{style}"></i>{escape(name)}</span>' for style, name in pairs)
    return f"<figcaption>{spans}</figcaption>"


def speedups(entries: Sequence[Entry], colours: Mapping[str, int]) -> str:
    """A dot with its interval per method, grouped by category; a single category is not shown twice."""
    shown = [entry for entry in entries if entry["speedup"] is not None]
    kinds = dict.fromkeys(entry["category"] for entry in shown)
    groups = {ALL: None} if len(kinds) == 2 and ALL in kinds else kinds
    shown = [entry for entry in shown if entry["category"] in groups]
    highest = max((max(entry["speedup"], *(entry["speedup_interval"] or (0,))) for entry in shown), default=1.0)
    scale = Scale(nice_end(max(highest, 1.2)), _LEFT, WIDTH - _RIGHT)
    height = len(shown) * _ROW + len(groups) * _HEADING + _AXIS
    drawing = Drawing(WIDTH, height, "speedup per category and method")
    _axis(drawing, scale, height - _AXIS, "×")
    drawing.line(scale(1), 0, scale(1), height - _AXIS, "one")
    y = 0.0
    for category in groups:
        drawing.text(0, y + 15, _counted(category, shown), "group")
        y += _HEADING
        for entry in (entry for entry in shown if entry["category"] == category):
            _gain(drawing, scale, y + _ROW / 2, entry, colours[entry["algorithm"]])
            y += _ROW
    return drawing.render()


def _counted(category: str, entries: Sequence[Entry]) -> str:
    """A category and its number of prompts."""
    count = max(entry["prompts"] for entry in entries if entry["category"] == category)
    return f"all {count} prompts" if category == ALL else f"{category} ({count} prompt{'' if count == 1 else 's'})"


def _gain(drawing: Drawing, scale: Scale, y: float, entry: Entry, colour: int) -> None:
    ends = entry["speedup_interval"]
    drawing.text(_LEFT - 10, y + 4, entry["algorithm"], anchor="end")
    if ends:
        drawing.line(scale(ends[0]), y, scale(ends[1]), y, f"s{colour}")
    tip = f"{entry['algorithm']}, {entry['category']}: {times(entry['speedup'])} ({interval(ends)})"
    drawing.dot(scale(entry["speedup"]), y, f"f{colour}", tip)
    last = scale(max(entry["speedup"], ends[1] if ends else 0.0))
    drawing.text(last + 9, y + 4, times(entry["speedup"]), "soft")


def acceptance(entries: Sequence[Entry], colours: Mapping[str, int]) -> str:
    """A line per method; positions with too few tests are left out."""
    height, bottom = 230, 185
    depth = max((len(_meaningful(entry)) for entry in entries), default=1)
    across = Scale(max(depth, 2), 40, WIDTH - 10)
    up = Scale(1.0, bottom, 10)
    drawing = Drawing(WIDTH, height, "acceptance rate by position")
    for tick in (0, 0.25, 0.5, 0.75, 1):
        drawing.line(across.start, up(tick), across.end, up(tick), "rule")
        drawing.text(across.start - 8, up(tick) + 4, f"{tick:g}", "soft", "end")
    for place in range(1, depth + 1):
        drawing.text(across(place - 0.5), bottom + 17, str(place), "soft", "middle")
    drawing.text(across.end, height - 6, "position of the drafted token", "soft", "end")
    for entry in entries:
        rates, colour = _meaningful(entry), colours[entry["algorithm"]]
        points = [(across(place + 0.5), up(rate)) for place, rate in enumerate(rates)]
        drawing.path(points, f"s{colour}")
        for place, ((x, y), value) in enumerate(zip(points, rates, strict=True)):
            tested = entry["tested_by_position"][place]
            drawing.dot(x, y, f"f{colour}", f"{entry['algorithm']}, position {place + 1}: {value:.3f} of {tested}")
    return drawing.render()


def _meaningful(entry: Entry) -> list[float]:
    """Rates of the leading positions with enough tests, at most sixteen."""
    rates: list[float] = []
    for value, tested in zip(entry["acceptance_by_position"], entry["tested_by_position"], strict=True):
        if tested < _LEAST_TESTED or len(rates) == _MOST_POSITIONS:
            break
        rates.append(value)
    return rates


def time_split(entries: Sequence[Entry]) -> str:
    """A bar per method: time per round for drafting, verifying, and the engine itself."""
    totals = [sum(entry["per_round"][phase] or 0.0 for phase, _ in _PHASES) * 1000 for entry in entries]
    scale = Scale(nice_end(max(totals, default=1.0)), _LEFT, WIDTH - _RIGHT - 14)
    height = len(entries) * (_ROW + 8) + _AXIS
    drawing = Drawing(WIDTH, height, "milliseconds per round by phase")
    _axis(drawing, scale, height - _AXIS, " ms")
    for row, (entry, total) in enumerate(zip(entries, totals, strict=True)):
        y, done = row * (_ROW + 8) + 4, 0.0
        drawing.text(_LEFT - 10, y + 14, entry["algorithm"], anchor="end")
        for phase, name in _PHASES:
            spent = (entry["per_round"][phase] or 0.0) * 1000
            tip = f"{entry['algorithm']}: {name} {spent:.2f} ms"
            drawing.bar(scale(done), y, scale(done + spent) - scale(done), _ROW, f"f-{name}", tip)
            done += spent
        drawing.text(scale(total) + 6, y + 14, f"{total:.1f} ms", "soft")
    return drawing.render()


def _axis(drawing: Drawing, scale: Scale, bottom: float, unit: str) -> None:
    for tick in scale.ticks:
        drawing.line(scale(tick), 0, scale(tick), bottom, "rule")
        drawing.text(scale(tick), bottom + 16, f"{tick:g}{unit}", "soft", "middle")
