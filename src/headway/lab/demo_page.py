"""The demo's report: figures and time lines of both clients on one page."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Sequence
from decimal import Decimal

from headway.lab.demo_figures import (
    Arm,
    Figures,
    figures_of,
    grid,
    sends_over_time,
    success_over_time,
    ttft_over_time,
)
from headway.lab.demo_story import FLEET, PRICE_PER_MTOK, Story
from headway.lab.report_page import (
    bullets,
    figure,
    headline,
    notice,
    page,
    paragraphs,
    row,
    section,
    stack,
    table,
)
from headway.lab.report_svg import (
    BLUE,
    GREY,
    SKY,
    VERMILION,
    Bar,
    Series,
    bar_chart,
    line_chart,
    share_chart,
)

STEP_S = 0.5
WINDOW_S = 2.0


def seconds(value: float) -> str:
    """A duration for people."""
    if not math.isfinite(value):
        return "never" if value > 0 else "none"
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.0f} ms"


def money(value: Decimal | None, *, per: int = 1) -> str:
    """USD, or that there is no figure."""
    return "none" if value is None else f"${value * per:.3f}"


def percent(value: float) -> str:
    """A share for people; never rounded up to 100."""
    text = f"{100 * value:.1f}"
    return "99.9 %" if text == "100.0" and value < 1 else f"{text} %"


def ratio(before: Decimal | None, after: Decimal | None) -> str:
    """How much less, in words."""
    if before is None or after is None or not before:
        return ""
    change = 1 - after / before
    return f"{abs(change):.0%} {'less' if change > 0 else 'more'}"


def table_rows(plain: Figures, wrapped: Figures) -> list[tuple[str, str, str]]:
    """The side-by-side figures, for the page and the terminal."""

    def errors(figures: Figures) -> str:
        # A count and its name stay on one line.
        return ", ".join(f"{n}\N{NO-BREAK SPACE}{name}" for name, n in figures.errors) or "none"

    def both(label: str, get: Callable[[Figures], object]) -> tuple[str, str, str]:
        return label, str(get(plain)), str(get(wrapped))

    return [
        both("Tasks", lambda f: f.tasks),
        both("Succeeded", lambda f: f"{f.succeeded} ({percent(f.success_rate)})"),
        both("Task time, median *", lambda f: seconds(f.task_p50)),
        both("Task time, p95 *", lambda f: seconds(f.task_p95)),
        both("Time to first token, median", lambda f: seconds(f.ttft_p50)),
        both("Time to first token, p95", lambda f: seconds(f.ttft_p95)),
        both("Calls", lambda f: f.calls),
        both("Attempts per call", lambda f: f"{f.attempts_per_call:.3f}"),
        both("Prompt tokens from cache", lambda f: percent(f.cached_share)),
        both("Cost", lambda f: money(f.cost)),
        both("Of it wasted", lambda f: f"{money(f.waste)} ({percent(f.waste_share)})"),
        both("Cost per 1,000 successes", lambda f: money(f.cost_per_success, per=1000)),
        both("Failures", errors),
    ]


def books_sentence(arm: Arm, figures: Figures) -> str:
    """How the client's own books compare with what the endpoints would bill."""
    if arm.own_cost is None:
        return "It keeps no books."
    off = abs(arm.own_cost / figures.cost - 1) if figures.cost else Decimal(0)
    text = (
        f"Its own books say {money(arm.own_cost)}, against {money(figures.cost)} in the endpoints' "
        f"ledgers: {percent(float(off))} apart."
    )
    if arm.own_wasted is not None:
        text += (
            f" Of it, {money(arm.own_wasted)} is booked as wasted. The difference is attempts that "
            "broke before they reported usage: those it estimates, without knowing what was cached."
        )
    return text


def build_page(story: Story, plain: Arm, wrapped: Arm, notices: Sequence[str] = ()) -> str:
    """The whole report as one HTML document; `notices` come first: what to know before reading."""
    p, w = figures_of(plain), figures_of(wrapped)
    return page(
        "Headway demo: the same agents, twice",
        "Recorded coding-agent sessions against four model endpoints while one dies, one turns "
        "ten times slower and one runs into its rate limit. First with plain clients, then with "
        "a wrapped one: same sessions, same arrivals, same faults.",
        notice(*notices),
        _cards(p, w),
        section("What happened", _timelines(story, plain, wrapped), _shares(story, plain, wrapped)),
        section(
            "Side by side",
            row(
                stack(
                    table(["", "plain", "headway"], table_rows(p, w)),
                    paragraphs("* A failed task counts as never done."),
                ),
                stack(*_bars(p, w), paragraphs(f"Headway: {books_sentence(wrapped, w)}")),
            ),
        ),
        section("How to read this", bullets(*_conditions(story, plain, wrapped))),
        footer=(
            f"Seed {story.seed}. Python {platform.python_version()}, {platform.machine()}, "
            f"{platform.system()}. Sessions: callanjfox/kv-cache-tester, Apache-2.0."
        ),
    )


def _cards(p: Figures, w: Figures) -> str:
    return row(
        headline(
            "Tasks that succeeded", f"{percent(p.success_rate)} plain", percent(w.success_rate)
        ),
        headline(
            "Cost per 1,000 successful tasks",
            f"{money(p.cost_per_success, per=1000)} plain",
            money(w.cost_per_success, per=1000),
            note=ratio(p.cost_per_success, w.cost_per_success),
        ),
        headline("Task time, p95 *", f"{seconds(p.task_p95)} plain", seconds(w.task_p95)),
        headline(
            "Spent on nothing", f"{percent(p.waste_share)} of cost, plain", percent(w.waste_share)
        ),
        kind="cards",
    )


def _timelines(story: Story, plain: Arm, wrapped: Arm) -> str:
    at = grid(story.workload.duration_s, STEP_S)
    arms = ((plain, "plain (dashed)", GREY), (wrapped, "headway", BLUE))
    return row(
        figure(
            "Tasks that succeed, by when they began",
            line_chart(
                [
                    Series(
                        name, color, success_over_time(arm.book.tasks, at, WINDOW_S), arm is plain
                    )
                    for arm, name, color in arms
                ],
                label="Success rate over time",
                y_format="{}%",
                y_max=100,
                bands=story.bands(),
                marks=story.marks(),
            ),
            note=f"Per cent, over the {WINDOW_S:g} s before. Shaded: what was wrong.",
        ),
        figure(
            "Time to first token, p95",
            line_chart(
                [
                    Series(
                        name,
                        color,
                        ttft_over_time(arm.book.tasks, at, WINDOW_S, 0.95),
                        arm is plain,
                    )
                    for arm, name, color in arms
                ],
                label="Time to first token over time",
                y_format="{} s",
                bands=story.bands(),
                marks=story.marks(),
            ),
            note="As the agent sees it, retries included. A call that failed counts all its time.",
        ),
    )


def _shares(story: Story, plain: Arm, wrapped: Arm) -> str:
    at = grid(story.workload.duration_s, STEP_S)
    return row(
        *(
            figure(
                f"Where attempts went: {arm.name}",
                share_chart(
                    at,
                    sends_over_time(arm.sends, list(FLEET), at, WINDOW_S),
                    label=f"Share of attempts per endpoint, {arm.name}",
                    bands=story.bands(),
                    marks=story.marks(),
                ),
            )
            for arm in (plain, wrapped)
        )
    )


def _bars(p: Figures, w: Figures) -> list[str]:
    arms = (("plain", p), ("headway", w))
    return [
        figure(
            "What became of the tasks",
            bar_chart(
                [
                    Bar(
                        name,
                        [(f.succeeded, BLUE), (f.tasks - f.succeeded, VERMILION)],
                        f"{f.succeeded} done, {f.tasks - f.succeeded} failed",
                    )
                    for name, f in arms
                ],
                label="Tasks succeeded and failed",
            ),
            note="Blue: succeeded. Orange: an error reached the agent, or the deadline passed.",
        ),
        figure(
            "What was paid for",
            bar_chart(
                [
                    Bar(
                        name,
                        [(float(f.cost - f.waste), BLUE), (float(f.waste), VERMILION)],
                        f"{money(f.cost)}, {money(f.waste)} wasted",
                    )
                    for name, f in arms
                ],
                label="Cost, useful and wasted",
            ),
            note="Blue: billed for successful tasks. Orange: for tasks that failed, and attempts "
            "that brought nothing. By the endpoints' own ledgers, the same way for both.",
        ),
        figure(
            "What happened to prompt tokens",
            bar_chart(
                [
                    Bar(
                        name,
                        [(f.cached_share, SKY), (1 - f.cached_share, BLUE)],
                        f"{percent(f.cached_share)} from cache",
                    )
                    for name, f in arms
                ],
                label="Prompt tokens from cache and computed",
            ),
            note="Light: found in an endpoint's prefix cache, at a tenth of the price. "
            "Dark: computed.",
        ),
    ]


def _conditions(story: Story, plain: Arm, wrapped: Arm) -> list[str]:
    load, price = story.workload, PRICE_PER_MTOK
    seen_s = wrapped.policy_seen_s
    applied = (
        "" if seen_s is None else f" It was in force {seen_s - story.publish_at_s:.1f} s later."
    )
    tasks = wrapped.book.tasks
    failed = [task.error for task in tasks if task.error is not None]
    shown = sum(error in {"StreamInterrupted", "StreamTimedOut"} for error in failed)
    text = f"""
        Plain is what people write by hand: four AsyncOpenAI clients taken in turn, with the SDK's
        own two retries. It is not a gateway, and this is no contest with one.

        A task is one turn of an agent session: up to {load.calls_max} calls with tool results in
        between. It succeeds if every call is answered before its deadline, which allows three times
        the usual duration. Both clients' agents stop at the deadline, and neither agent repeats a
        broken step.

        Of headway's {len(failed)} failed tasks, {shown} had a stream that had already shown text
        when its endpoint died or slowed down. Such a stream is never repeated behind the caller's
        back; it ends with an error that carries what had come.

        The endpoints are simulated: real HTTP on loopback in front of a model of continuous
        batching with a prefix cache, calibrated to Llama 3 8B on one H100 (alpha) and on A100s (the
        others). Engines and tool times run {load.time_scale:g} times faster than life; retries,
        breakers and Retry-After are in real seconds.

        Sessions are recorded ones (token counts and gaps, no text), all counts divided by
        {load.token_divisor}, gaps cut at {load.wait_cap_s:g} s before scaling. {load.sessions}
        sessions start at fixed instants; the next call of a session waits for the one before, so a
        slower client makes fewer calls in the same time.

        Version 1 of the policy gives all endpoints the same weight; version 2, published at
        {story.publish_at_s:.0f} s, gives the H100 three times an A100's.{applied}

        Prices: ${price["input"]} per million input tokens, ${price["cached_input"]} cached,
        ${price["output"]} output, at every endpoint. What was generated for a caller who left is
        billed too.

        One run of {load.duration_s:g} s each. Plain took {plain.elapsed_s:.0f} s to its last answer
        and {plain.cpu_s:.1f} s of CPU in the client; headway {wrapped.elapsed_s:.0f} s and
        {wrapped.cpu_s:.1f} s. The client's event loop was late by {1e3 * plain.lag_s:.0f} and
        {1e3 * wrapped.lag_s:.0f} ms at worst (p99). A single run has no error bars.
    """
    return [" ".join(item.split()) for item in text.split("\n\n")]
