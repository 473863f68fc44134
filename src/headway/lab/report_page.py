"""Self-contained report pages: HTML blocks as strings, around the charts of `report_svg`.

No scripts, no fonts, no network: one file that opens anywhere and prints. Every function is pure;
text is escaped here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from headway.lab.report_svg import BLUE, FAINT, INK, LEFT, ORANGE, RULE, VERMILION


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str = "") -> str:
    """A table; the first column names the row, the others are figures."""
    top = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def figure(title: str, *content: str, note: str = "") -> str:
    """A titled figure with a note under it."""
    below = f"<figcaption>{escape(note)}</figcaption>" if note else ""
    return f"<figure><h3>{escape(title)}</h3>{''.join(content)}{below}</figure>"


def headline(label: str, before: str, after: str, *, note: str = "") -> str:
    """One large figure with what it is compared with."""
    return (
        f'<div class="card"><p class="what">{escape(label)}</p><p class="now">{escape(after)}</p>'
        f'<p class="was">{escape(before)}</p><p class="why">{escape(note)}</p></div>'
    )


def row(*blocks: str, kind: str = "two") -> str:
    """Blocks side by side: `two` columns, or `cards`."""
    return f'<div class="{escape(kind)}">{"".join(blocks)}</div>'


def stack(*blocks: str) -> str:
    """Blocks one under the other, as one cell of a `row`."""
    return f"<div>{''.join(blocks)}</div>"


def section(title: str, *blocks: str, lead: str = "") -> str:
    """A heading, an optional lead, and blocks."""
    text = f"<p>{escape(lead)}</p>" if lead else ""
    return f"<section><h2>{escape(title)}</h2>{text}{''.join(blocks)}</section>"


def paragraphs(*texts: str) -> str:
    """Plain paragraphs."""
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def bullets(*texts: str) -> str:
    """A list."""
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def notice(*texts: str) -> str:
    """What a reader has to know before the figures; nothing where there is nothing."""
    return f'<div class="notice" role="note">{paragraphs(*texts)}</div>' if texts else ""


def page(title: str, lead: str, *blocks: str, footer: str = "") -> str:
    """The whole document."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p></header>'
        f"{''.join(blocks)}<footer>{escape(footer)}</footer></main></body></html>\n"
    )


_STYLE = f"""
:root{{color-scheme:light}}
body{{margin:0;background:#fff;color:{INK};font:15px/1.5 system-ui,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;-webkit-print-color-adjust:exact;print-color-adjust:exact}}
main{{max-width:1160px;margin:0 auto;padding:36px 28px 48px}}
h1{{font-size:27px;line-height:1.2;margin:0 0 8px;letter-spacing:-.01em}}
h2{{font-size:18px;margin:34px 0 6px;padding-top:14px;border-top:1px solid {RULE}}}
h3{{font-size:14px;margin:0 0 4px}}
p{{margin:6px 0;max-width:78ch}}
.lead{{font-size:16px;color:{FAINT}}}
.notice{{border-left:4px solid {VERMILION};background:#FDF3EC;padding:8px 16px;margin:18px 0 0}}
.cards{{display:grid;grid-template-columns:repeat(4,1fr);gap:14px;margin:22px 0 6px}}
.card{{border:1px solid {RULE};border-radius:8px;padding:12px 16px}}
.card p{{margin:0}}
.what{{font-size:13px;color:{FAINT}}}
.now{{font-size:30px;font-weight:650;color:{BLUE};letter-spacing:-.02em;line-height:1.25}}
.was{{font-size:14px}}
.why{{font-size:12px;color:{FAINT}}}
.two{{display:grid;grid-template-columns:1fr 1fr;gap:10px 28px}}
figure{{margin:12px 0;break-inside:avoid}}
figcaption{{font-size:12.5px;color:{FAINT};max-width:78ch}}
svg{{width:100%;height:auto;display:block}}
svg text{{font:11px system-ui,"Segoe UI",Roboto,Arial,sans-serif;fill:{FAINT}}}
svg .in{{fill:#fff;font-weight:600;paint-order:stroke;stroke:rgba(0,0,0,.35);stroke-width:2px}}
svg .name{{fill:{INK};font-size:12.5px}}
svg .bl{{fill:#6b4a00;font-size:10.5px}}
.band{{fill:{ORANGE};fill-opacity:.14}}
.grid{{stroke:{RULE};stroke-width:1}}
.axis{{stroke:{FAINT};stroke-width:1}}
.mark{{stroke:{INK};stroke-width:1;stroke-dasharray:2 3}}
.line{{fill:none;stroke-width:2;stroke-linejoin:round}}
.area{{fill-opacity:.85;stroke:#fff;stroke-width:.6}}
.legend{{font-size:12.5px;margin:2px 0 0 {LEFT}px}}
.legend span{{margin-right:16px}}
.legend i{{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}}
table{{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}}
caption{{text-align:left;font-weight:600;padding-bottom:6px}}
th,td{{padding:5px 10px;border-bottom:1px solid {RULE};text-align:right}}
th[scope=row],thead th:first-child{{text-align:left;font-weight:400;white-space:nowrap}}
thead th{{font-weight:600;border-bottom:2px solid {INK}}}
ul{{margin:6px 0;padding-left:20px}}
li{{margin:3px 0;max-width:92ch}}
footer{{margin-top:34px;font-size:12.5px;color:{FAINT}}}
@media screen and (max-width:760px){{.two,.cards{{grid-template-columns:1fr}}}}
@media print{{@page{{margin:14mm}}main{{max-width:none;padding:0}}body{{font-size:9.5pt}}
table{{font-size:8.5pt}}th,td{{padding:3px 6px}}.two{{gap:4px 14px}}.now{{font-size:20pt}}
h2{{break-after:avoid;margin-top:16px}}.card{{padding:6px 10px}}figcaption{{font-size:8pt}}}}
"""
