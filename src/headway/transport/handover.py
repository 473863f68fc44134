"""An attempt in the application's hands: what to hand on, and when it has ended. No I/O.

From here on the attempt is the answer; whatever breaks it is told to the application, with what it
had been given by then, and never repaired behind its back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headway.core.model import OK, FailureClass, Outcome
from headway.transport import notes
from headway.transport.interrupted import interruption

if TYPE_CHECKING:
    from headway.transport.trial import Trial

Step = tuple[bytes, BaseException | None]
"""Bytes to hand on, and what to raise after them."""


class Handover:
    """The rules by which a watched stream goes on and ends. One per response handed over."""

    __slots__ = (
        "_feed", "_is_observed", "_observer", "_surface", "goes_on", "limits", "quick", "trial",
    )  # fmt: skip

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.limits = trial.limits
        self._observer = trial.observer
        self._feed = trial.feed if trial.observer is not None else bytes
        self.quick: Callable[[bytes], bytes] = trial.quick
        """What goes on of a piece that is plain content; empty: `passed` has to take it."""
        self.goes_on = False
        """The answer broke off, and another attempt may bring the rest of it."""
        self._is_observed = trial.flight.is_observed
        self._surface = trial.flight.facts.surface

    def passed(self, chunk: bytes) -> Step:
        """A piece came that isn't plain content."""
        observer, trial = self._observer, self.trial
        if observer is None:
            self.limits.progressed()
            return chunk, None
        before = observer.content_events
        out = self._feed(chunk)
        if observer.content_events != before:
            self.limits.progressed()
            if not before:
                self.quick = trial.quick
                if trial.transparent:
                    trial.flight.watcher.on_first_token(trial.attempt, trial.flight.clock())
        if observer.done:
            self.limits.drain()
        if self._is_observed:
            return chunk, None
        if observer.error is None or trial.finished:
            return out, None
        # The server reported an error inside the stream. Applications of the Responses API read of
        # failure in events, so those are handed on, unless what came is none: that would only break
        # the SDK's decoder. So is everything that is merely watched.
        notes.stream(trial, observer)
        is_readable = observer.error.error_type != "malformed_event"
        if trial.transparent or (self._surface == "responses" and is_readable):
            trial.report(observer.error)
            return out + observer.error_event, None
        return out, self._broke_off(None, observer.error)

    def exhausted(self) -> Step:
        """The body ended."""
        observer, trial = self._observer, self.trial
        if observer is None:
            trial.report(notes.with_tokens(OK, trial.record.usage, trial.record.status))
            return b"", None
        tail = b"" if self._is_observed else observer.finish()
        outcome = observer.outcome()
        if outcome.kind is FailureClass.OK or trial.transparent or observer.error is not None:
            trial.report_stream(outcome)
            return tail, None
        notes.stream(trial, observer)
        counted = notes.with_tokens(outcome, trial.record.usage, trial.record.status)
        return tail, self._broke_off(None, counted)

    def interrupted(self, exc: BaseException) -> BaseException | None:
        """A read failed: what to raise; None where only the end was awaited."""
        observer, trial = self._observer, self.trial
        if observer is not None and observer.done:
            trial.report_stream(observer.outcome())  # the answer was complete
            return None
        outcome = trial.classified(exc, "stream")
        if outcome is None:
            trial.closed()
            return exc
        if observer is not None:
            notes.stream(trial, observer)
        if trial.transparent:
            trial.report(outcome)
            return trial.native(exc)
        return self._broke_off(exc, outcome)

    def _broke_off(self, exc: BaseException | None, outcome: Outcome) -> BaseException:
        """What to raise, unless the call goes on: see `goes_on`."""
        trial = self.trial
        error = interruption(trial, exc, outcome)
        self.goes_on = trial.interrupted(outcome)
        return error

    @property
    def wants_drain(self) -> bool:
        """The answer is complete, and the connection is worth waiting a moment for."""
        observer = self._observer
        return (
            observer is not None
            and observer.done
            and observer.error is None
            and self.trial.reads_are_limited
        )
