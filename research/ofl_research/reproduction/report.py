"""The report: one HTML file with everything in it, for a screen of any size, in light or dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ofl_research.reproduction.document import Block, Figure, Findings, Section, Table, Text, Toned, plain_text
from ofl_research.reproduction.palette import CHART_CSS, colours, series_css

_CSS = """
*{box-sizing:border-box}html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1080px;margin:0 auto;padding:2.2rem 1.1rem 4rem}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 .3rem;letter-spacing:-.01em}
h2{font-size:1.3rem;margin:3.2rem 0 .4rem;letter-spacing:-.005em}h3{font-size:1rem;margin:1.6rem 0 .4rem}
p{max-width:72ch;margin:.5rem 0}.lead,.paper,figcaption,.caption,.facts dt{color:var(--quiet)}
.paper{border-left:3px solid var(--rule);padding-left:.8rem;font-size:.93rem}
nav{display:flex;flex-wrap:wrap;gap:.35rem .9rem;margin:1.1rem 0 0;font-size:.93rem}
a{color:var(--s-ofl);text-decoration:none}a:hover{text-decoration:underline}
.card{background:var(--panel);border:1px solid var(--rule);border-radius:10px;padding:1rem 1.1rem;margin:1rem 0}
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;font-size:.92rem;font-variant-numeric:tabular-nums;min-width:min(100%,34rem)}
.card p.caption{max-width:none;margin-bottom:.6rem;font-size:.9rem}
th{font-weight:600;text-align:right;color:var(--quiet);font-size:.82rem;vertical-align:bottom}
td,th{padding:.34rem .6rem;border-bottom:1px solid var(--rule);white-space:nowrap}
td{text-align:right}td:first-child,th:first-child{text-align:left;padding-left:0}tr:last-child td{border-bottom:0}
td.text,th.text{text-align:left;white-space:normal;min-width:11rem}td.left,th.left{text-align:left}
.good{color:var(--good)}.bad{color:var(--bad)}.open{color:var(--open)}.quiet{color:var(--quiet)}
ul.findings{list-style:none;padding:0;margin:.4rem 0}ul.findings li{padding:.24rem 0 .24rem 1.5rem;position:relative}
ul.findings li::before{content:"";position:absolute;left:.15rem;top:.78em;width:.6rem;height:.6rem;border-radius:50%;
background:var(--quiet)}ul.findings li.good::before{background:var(--good)}
ul.findings li.bad::before{background:var(--bad)}
ul.findings li.open::before{background:none;border:2px solid var(--open)}ul.findings li{color:var(--ink)}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,310px),1fr));gap:1rem 1.4rem}
.alone{max-width:520px}.card p{margin:.15rem 0}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;font-size:.88rem;margin:0 0 .6rem}
.legend span::before{content:"";display:inline-block;width:1.1rem;height:.22rem;border-radius:2px;background:var(--c);
margin-right:.4rem;vertical-align:middle}.legend .hollow::before{background:none;width:.6rem;height:.6rem;
border:1.5px solid var(--quiet);border-radius:0;transform:rotate(45deg)}
figure{margin:0}figcaption{font-size:.9rem;margin-top:.6rem;max-width:80ch}
dl.facts{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;margin:.4rem 0;font-size:.92rem}
dl.facts dd{margin:0;overflow-wrap:anywhere}code,pre{font:.88em ui-monospace,SFMono-Regular,Menlo,monospace}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.3rem 0}.warning{border-color:var(--open)}
details summary{cursor:pointer;color:var(--quiet)}
@media(max-width:560px){body{font-size:15px}dl.facts{grid-template-columns:1fr;gap:0}dl.facts dd{margin-bottom:.5rem}
h1{font-size:1.45rem}td,th{padding:.3rem .45rem}}
@media print{nav{display:none}.card{break-inside:avoid}}
"""


_LONG = 34
"""Characters from which a column's texts are broken into lines."""


@dataclass(frozen=True)
class Cover:
    """What stands before the experiments."""

    title: str
    lead: str
    facts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...] = ()
    targets: tuple[Toned, ...] = ()
    failures: tuple[tuple[str, str], ...] = ()
    """Cells that could not be computed, and why."""
    appendix: tuple[tuple[str, str], ...] = ()
    """Titles and preformatted texts at the end."""


def render(cover: Cover, sections: Sequence[Section]) -> str:
    """The whole page."""
    light, dark = colours(dark=False), colours(dark=True)
    style = f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{_CSS}{CHART_CSS}{series_css()}"
    links = "".join(f'<a href="#{section.name}">{escape(section.title)}</a>' for section in sections)
    body = [
        f"<h1>{escape(cover.title)}</h1><p class='lead'>{escape(cover.lead)}</p><nav>{links}</nav>",
        *(f"<div class='card warning'><p>{escape(text)}</p></div>" for text in cover.warnings),
        _targets(cover.targets),
        *(_section(section) for section in sections),
        _failures(cover.failures),
        _provenance(cover),
    ]
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>{escape(cover.title)}</title><style>{style}</style></head>\n<body><main>"
        + "\n".join(part for part in body if part)
        + "</main></body></html>\n"
    )


def _section(section: Section) -> str:
    blocks = "\n".join(_block(block) for block in section.blocks)
    return (
        f"<section id='{section.name}'><h2>{escape(section.title)}</h2>"
        f"<p class='paper'>{escape(section.paper)}</p>{blocks}</section>"
    )


def _block(block: Block) -> str:
    draw: dict[type, Callable[[Any], str]] = {Table: _table, Figure: _figure, Findings: _findings, Text: _text}
    return draw[type(block)](block)


def _table(shown: Table) -> str:
    if not shown.rows:
        return ""
    classes = [_column_class([plain_text(row[place]) for row in shown.rows]) for place in range(len(shown.columns))]
    head = "".join(
        f"<th{_attribute(name)}>{escape(title)}</th>" for title, name in zip(shown.columns, classes, strict=True)
    )
    rows, before = [], ""
    for row in shown.rows:
        first, *rest = row
        repeated = plain_text(first) == before and len(shown.columns) > 2
        before = plain_text(first)
        cells = ["" if repeated else first, *rest]
        rows.append("".join(_cell(cell, name) for cell, name in zip(cells, classes, strict=True)))
    body = "".join(f"<tr>{cells}</tr>" for cells in rows)
    caption = f"<p class='caption'>{escape(shown.caption)}</p>" if shown.caption else ""
    return (
        f"<div class='card'>{caption}<div class='scroll'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div></div>"
    )


def _column_class(texts: Sequence[str]) -> str:
    """Numbers stand to the right, words to the left, sentences in lines."""
    if any(len(text) > _LONG for text in texts):
        return "text"
    return "left" if sum(text[:1].isalpha() for text in texts) * 2 > len(texts) else ""


def _attribute(*names: str) -> str:
    known = " ".join(filter(None, names))
    return f" class='{known}'" if known else ""


def _cell(cell: str | Toned, column: str) -> str:
    tone = cell.tone if isinstance(cell, Toned) and cell.tone != "plain" else ""
    return f"<td{_attribute(column, tone)}>{escape(plain_text(cell))}</td>"


def _figure(figure: Figure) -> str:
    legend = "".join(f"<span class='{_swatch(key)}'>{escape(label)}</span>" for key, label in figure.legend)
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>" if figure.caption else ""
    grid = "grid" if len(figure.drawings) > 1 else "alone"
    drawings = "".join(f"<div>{drawing}</div>" for drawing in figure.drawings)
    shown = f"<div class='legend'>{legend}</div>" if legend else ""
    return f"<figure class='card'>{shown}<div class='{grid}'>{drawings}</div>{caption}</figure>"


def _swatch(key: str) -> str:
    return "hollow" if key == "quoted" else f"s-{key}"


def _findings(findings: Findings) -> str:
    items = "".join(f"<li class='{item.tone}'>{escape(item.text)}</li>" for item in findings.items)
    title = f"<h3>{escape(findings.title)}</h3>" if findings.title else ""
    return f"{title}<ul class='findings'>{items}</ul>"


def _text(text: Text) -> str:
    return f"<p>{escape(text.text)}</p>"


def _targets(targets: Sequence[Toned]) -> str:
    if not targets:
        return ""
    met = sum(item.tone == "good" for item in targets)
    missed = sum(item.tone == "bad" for item in targets)
    rest = len(targets) - met - missed
    open_ = f", {rest} not measured here" if rest else ""
    heading = f"Targets: {met} met, {missed} missed{open_}"
    others = _findings(Findings(tuple(item for item in targets if item.tone != "good")))
    held = _findings(Findings(tuple(item for item in targets if item.tone == "good")))
    folded = f"<details{'' if missed else ' open'}><summary>{met} met</summary>{held}</details>" if met else ""
    shown = (others if met < len(targets) else "") + folded
    return f"<section id='targets'><h2>{heading}</h2><div class='card'>{shown}</div></section>"


def _failures(failures: Sequence[tuple[str, str]]) -> str:
    if not failures:
        return ""
    items = "".join(f"<h3>{escape(name)}</h3><pre>{escape(reason)}</pre>" for name, reason in failures)
    return (
        f"<section id='failures'><h2>What could not be computed</h2><div class='card warning'>{items}</div></section>"
    )


def _provenance(cover: Cover) -> str:
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in cover.facts)
    more = "".join(
        f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"
        for name, text in cover.appendix
    )
    return (
        "<section id='provenance'><h2>How this was made</h2>"
        f"<div class='card'><dl class='facts'>{facts}</dl>{more}</div></section>"
    )
