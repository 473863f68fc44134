"""The tables as a page of the reference: `python -m headway.quirks.render`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from headway.core.model import TRAITS, FailureClass
from headway.cost.providers import HOSTS
from headway.quirks.exceptions import EXCEPTIONS
from headway.quirks.hints import RESET_BUCKETS
from headway.quirks.table import QUIRKS, Quirk

_HEAD = """\
# What replies mean

Generated from `headway/quirks/` (`python -m headway.quirks.render`); a test keeps it current.

An attempt ends in one of these classes. *Blame* is what the verdict applies to, *health* what it
teaches about the endpoint; the last two columns say what may follow.

"""

_REPLIES = """
## Refusals

Rows are tried in order, the first match wins. A row applies if all of its columns match; an empty
column matches anything. Names are compared with the error's `code`, `type`, `status` and inner
code, in any vendor's shape. In-band errors have no status: there, names and texts decide. What no
row knows is `bad_request` (4xx) or `server_error` (5xx).

"""

_DISGUISES = """
## A 200 that is none

| body | class | `error.type` |
|---|---|---|
| an `error` and nothing else; a failed Responses object | as the error says | as the error says |
| HTML | not_found | `html_body` |
| an event stream where JSON was asked for | server_error | `event_stream` |
| JSON where an event stream was asked for | server_error | `not_event_stream` |
| no JSON, or cut short | incomplete_stream | `invalid_json`, `empty_body`, `not_an_object` |
| a stream that ends without its end | incomplete_stream | `truncated_stream` |
| a stream that ends without anything | incomplete_stream | `empty_stream` |
| an event that is no JSON object | incomplete_stream | `malformed_event` |
"""

_EXCEPTIONS = """
## Exceptions

By class name along the MRO, for httpx, httpx2, httpcore, aiohttp, anyio, ssl and the socket layer.
A certificate that does not verify is configuration (`not_found`), whatever class carries it. An
exception that is not listed is not the transport's: it propagates untouched.

"""

_HINTS = """
## How long to wait

In this order, the first usable one counts: `retry-after-ms`, `Retry-After` (seconds, or a date read
against the server's own `Date`), the reset of the bucket that is empty (below; the later one when
unsure), and a wait in the text ("try again in 1.2s", "retry after 3 seconds", `retryDelay`).
Resets are read as `6m0s`, `500ms`, `42`, `1764500000`, `PT1M30S` or `2026-11-30T12:00:00Z`. What is
negative, not finite or not readable is no hint.

"""

_HOSTS = """
## Whose host

Used for `gen_ai.provider.name`, and to find the price list, when the policy does not name the
provider. Anything else is called `openai`, and a price found for it is an estimate.

"""


def render_reference() -> str:
    """The whole page, as Markdown."""
    return "".join(
        [
            _HEAD,
            _table(
                ("class", "blame", "health", "retry here", "move elsewhere"),
                (
                    (
                        kind.value,
                        row.blame.value,
                        row.health.value,
                        _yes(row.retry_here),
                        _yes(row.move_elsewhere),
                    )
                    for kind, row in TRAITS.items()
                ),
            ),
            _REPLIES,
            _table(
                ("row", "seen at", "status", "names", "text", "class", "`error.type`", "note"),
                (_quirk_cells(quirk) for quirk in QUIRKS),
            ),
            _DISGUISES,
            _EXCEPTIONS,
            _table(
                ("exception", "before the head", "after it", "mid-stream", "may have run", "note"),
                (
                    (
                        name,
                        row.before.value,
                        _after(row.after).value,
                        _after(row.streaming or row.after).value,
                        _yes(row.sent),
                        row.note,
                    )
                    for name, row in EXCEPTIONS.items()
                ),
            ),
            _HINTS,
            _table(("left", "refilled"), RESET_BUCKETS),
            _HOSTS,
            _table(("host", "provider"), ((host, name) for host, name, _ in HOSTS)),
        ]
    )


def _quirk_cells(quirk: Quirk) -> tuple[str, ...]:
    kind = quirk.kind.value + (" (soft)" if quirk.soft else "")
    return (
        quirk.name,
        quirk.provider,
        " ".join(str(status) for status in sorted(quirk.status)),
        " ".join(f"`{code}`" for code in sorted(quirk.codes)),
        "" if quirk.text is None else f"`{quirk.text}`",
        kind,
        f"`{quirk.error_type}`" if quirk.error_type else "status",
        quirk.note,
    )


def _after(kind: FailureClass) -> FailureClass:
    return FailureClass.INCOMPLETE_STREAM if kind is FailureClass.CONNECT else kind


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


if __name__ == "__main__":
    sys.stdout.write(render_reference())
