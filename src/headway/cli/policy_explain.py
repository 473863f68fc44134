"""`headway policy explain`: why a call would go to A and not to B."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headway.cli import NO, OK
from headway.cli.explain_call import add_call, call_of
from headway.cli.reading import add_hosts, add_json, compiled
from headway.cli.screen import say_json, say_table

if TYPE_CHECKING:
    from headway.core.views import CandidateRow, Explanation

WHY_NOT: Final = {
    "draining": "it is draining: it takes only calls bound to what it holds",
    "disabled": "it is disabled",
    "context_window": "the call doesn't fit its context (max_context_tokens)",
    "body_size": "the body is larger than it takes (max_body_bytes)",
}
CLOSE: Final = 0.02
"""Relative difference below which two figures decide nothing."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("place", metavar="FILE_OR_URL")
    add_call(parser)
    parser.add_argument("--task", metavar="NAME", help="the task it belongs to")
    parser.add_argument("--class", dest="traffic_class", metavar="NAME", help="its traffic class")
    parser.add_argument("--zone", help="the caller's zone")
    add_json(parser)
    add_hosts(parser)


def run(args: argparse.Namespace) -> int:
    """Explain it for a process that has seen nothing yet; exit status 1 if no route matches."""
    from headway.policy.traffic import explain

    call = call_of(args)
    found = explain(
        compiled(args.place, args.zone, args.allow_host),
        model=call.model,
        prompt_tokens=call.prompt_tokens,
        surface=call.surface,
        task=args.task,
        traffic_class=args.traffic_class,
        max_output_tokens=call.max_output_tokens,
        zone=args.zone,
    )
    reasons = list(_reasons(found))
    if call.bound_to is not None:
        bound = f"the {call.bound_to} that it names" if found.route else "what it names"
        reasons.insert(0, f"whatever the shares: it goes to where {bound} lives, if that is known")
    if args.json:
        rows = [row._asdict() for row in found.candidates]
        tree = {"route": found.route, "algorithm": found.algorithm, "candidates": rows}
        say_json({"call": call._asdict(), **tree, "reasons": reasons})
    elif found.route is not None:
        if call.is_estimate:
            limit = f", at most {call.max_output_tokens:,} out" if call.max_output_tokens else ""
            tokens = f"about {call.prompt_tokens:,} tokens{limit}"
            print(f"model {call.model}, {call.surface}, {tokens} (estimated from its size)")
        print(f"route {found.route}, selection {found.algorithm}")
        say_table(
            ("when", "endpoint", "weight", "share", "expected", "cost", "takes it"),
            (_cells(row) for row in found.candidates),
        )
    if not args.json:
        for reason in reasons:
            print(reason)
    return NO if found.route is None else OK


def _cells(row: CandidateRow) -> tuple[str, ...]:
    return (
        "first" if row.group == 0 else f"fallback {row.group}",
        row.endpoint_id,
        f"{row.weight:.1%}",
        f"{row.share:.1%}" if row.eligible else "-",
        "-" if row.expected_s is None else f"{row.expected_s:.3g} s",
        "-" if row.usd is None else f"${row.usd:.3g}",
        "yes" if row.eligible else f"no: {row.why_not}",
    )


def _reasons(found: Explanation) -> Iterator[str]:
    """Sentences: who comes first, and what speaks against each of the others."""
    if found.route is None:
        yield "no route matches: such a call passes through untouched"
        return
    able = [row for row in found.candidates if row.eligible]
    if not able:
        yield "nowhere: no endpoint of the route, and none of its fallbacks, takes the call"
    else:
        first = min(able, key=lambda row: (row.group, -row.share))
        yield f"most likely {first.endpoint_id} ({first.share:.1%} of such calls)"
        for row in able:
            if row is not first:
                yield f"not {row.endpoint_id}: {_against(row, first)}"
    for row in found.candidates:
        if not row.eligible:
            yield f"not {row.endpoint_id}: {WHY_NOT.get(row.why_not, row.why_not)}"


def _against(row: CandidateRow, first: CandidateRow) -> str:
    if row.group != first.group:
        return "a fallback, asked when the endpoints before it are exhausted"
    terms = [
        f"{what} {format(ours, spec)} instead of {format(theirs, spec)}"
        for what, ours, theirs, spec in (
            ("weight", row.weight, first.weight, ".1%"),
            ("expected seconds", row.expected_s, first.expected_s, ".3g"),
            ("dollars", row.usd, first.usd, ".3g"),
        )
        if ours is not None and theirs is not None and _differs(ours, theirs)
    ]
    return (", ".join(terms) or "nothing: it is as good") + f"; {row.share:.1%} of such calls"


def _differs(a: float, b: float) -> bool:
    return abs(a - b) > CLOSE * max(abs(a), abs(b))
