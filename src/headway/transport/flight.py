# long: what the drivers share of a call, to be read in one sitting
"""One managed call on its way: what the sync and the async driver share above a single attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from headway import quirks
from headway.collecting import outside
from headway.core.model import INFINITY, Attempt, CallFacts, Finish, Outcome, Send
from headway.core.snapshot import Endpoint
from headway.credentials import CredentialUnavailable
from headway.errors import DeadlineExceeded, no_api_error, rejection_error, upstream_error
from headway.task import unanswered
from headway.task.unanswered import Unanswered
from headway.transport import body as bodies
from headway.transport.aim import Shot, limited
from headway.transport.bystander import Bystander, Watcher
from headway.transport.disguise import is_disguised, is_page, page, unmasked
from headway.transport.keys import credential_refused
from headway.transport.limits import Limits
from headway.transport.redirects import HOP, PLAIN, forbidden
from headway.transport.resends import is_retried_by_sdk, sends_before
from headway.transport.trial import State, Trial

if TYPE_CHECKING:
    import httpx2

    from headway.core.call import Call
    from headway.record import CallRecord
    from headway.transport.body import BodyFacts
    from headway.transport.desk import Desk
    from headway.transport.form import Form, FormBody
    from headway.transport.home import Place
    from headway.transport.ports import CallHost
    from headway.transport.surfaces import Surface

INJECTABLE = frozenset({"chat", "completions"})
"""Surfaces whose streams tell their usage only when asked."""


NOTE = "headway_note"
"""The extension of an error's response that says what was tried, for the exception made of it."""


class Intake(NamedTuple):
    """What a request is, before anything is decided about it."""

    request: httpx2.Request
    surface: Surface
    place: Place
    body: bytes
    body_facts: BodyFacts
    facts: CallFacts
    form: Form | None = None
    """The body, where it is a multipart form; `body` is empty then."""


class Flight:
    """One call. The driver asks it what to send, and lets it make the answer presentable."""

    __slots__ = (
        "_extensions",
        "_is_left",
        "body",
        "body_facts",
        "call",
        "clock",
        "desk",
        "facts",
        "form",
        "host",
        "is_continued",
        "is_delegated",
        "is_observed",
        "place",
        "record",
        "request",
        "said",
        "surface",
        "timeouts",
        "trials",
        "watcher",
    )

    def __init__(
        self, desk: Desk, intake: Intake, record: CallRecord, call: Call, *, mode: str
    ) -> None:
        self.desk = desk
        self.host: CallHost = desk.host
        self.clock: Callable[[], float] = desk.host.clock
        self.request = intake.request
        self.surface = intake.surface
        self.place = intake.place
        self.body = intake.body
        self.body_facts = intake.body_facts
        self.form = intake.form
        self.facts = intake.facts
        self.record = record
        self.call = call
        self.watcher: Watcher = call
        """Who is told what becomes of attempts."""
        self.is_observed = mode == "observe"
        self.is_delegated = intake.facts.delegated and not self.is_observed
        self.timeouts = desk.timeouts
        self.trials: dict[int, Trial] = {}
        self._extensions: dict[str, Any] = intake.request.extensions
        self._is_left = False
        self.is_continued = False
        """Its answer broke off: what is sent now asks for the rest."""
        self.said = ""
        """What the application has of the answer from attempts that broke off."""
        if self.is_delegated or self.is_observed:
            record.hold()  # the SDK may send it again, and it would be the same call
        if self.is_observed:
            record.runs_at = self._own_endpoint()

    # -- an attempt

    def trial(self, attempt: Attempt, endpoint: Endpoint | None = None) -> Trial:
        """Begin the books of an attempt that is about to be sent."""
        endpoint = endpoint or self.call.snapshot.endpoints[attempt.endpoint_id]
        record = self.record.attempt(attempt)
        injected = not self.is_observed and self._asks_for_usage(endpoint)
        record.usage_injected = injected
        trial = Trial(
            self,
            attempt,
            endpoint,
            record,
            Limits(attempt, self.clock),
            transparent=self.is_delegated or self.is_observed,
            injected=injected,
            origin=self.desk.home.origin
            if self.is_observed
            else self.desk.aim.target(endpoint).origin,
        )
        self.trials[attempt.number] = trial
        return trial

    def outgoing(self, trial: Trial, secret: tuple[str, str] | None) -> httpx2.Request:
        """The request to send: the SDK's own object where nothing changes."""
        if self.is_observed:
            trial.request = self.request
            return self.request
        endpoint, attempt = trial.endpoint, trial.attempt
        is_same = attempt.model == self.facts.model
        target = self.desk.aim.target(endpoint)
        extra_headers = self.record.propagation_headers(attempt)
        extensions = self._extensions
        if trial.limits.until != INFINITY or (attempt.number > 1 and self.had_stale(trial)):
            extensions = limited(extensions, trial.limits)
        is_changed = secret or extra_headers or trial.injected or self.is_continued
        # Signatures have a time; what the SDK sends again, it signs again.
        is_late = target.signer is not None and attempt.number > 1 and not self.is_delegated
        if is_same and target.is_plain and not (is_changed or is_late):
            self.request.extensions = extensions
            trial.request = self.request
            return self.request
        shot = Shot(
            body=self._rewritten(trial, None if is_same else attempt.model),
            secret=secret,
            extra_headers=extra_headers,
            plain_encoding=self.facts.stream,
            other_model=not is_same,
        )
        trial.request = self.desk.aim.request(
            self.request, target, self.place, attempt.model, shot, extensions
        )
        return trial.request

    def _rewritten(self, trial: Trial, model: str | None) -> bytes | FormBody | None:
        """The body for an endpoint; None: as it is."""
        endpoint = trial.endpoint
        if self.form is not None:
            return self.form.rewritten(
                model=model,
                drop=endpoint.params_drop,
                rename=endpoint.params_rename,
                set_=endpoint.params_set,
            )
        body = bodies.rewrite(
            self.body,
            self.body_facts,
            model=model,
            include_usage=trial.injected,
            drop=endpoint.params_drop,
            rename=endpoint.params_rename or None,
            set_=endpoint.params_set or None,
        )
        return None if body is self.body and not self.is_continued else body

    def had_stale(self, trial: Trial) -> bool:
        """Whether an earlier attempt's connection to the same place was taken for a stale one."""
        number = trial.attempt.number
        return any(
            t.attempt.number < number
            and t.origin == trial.origin
            and t.outcome is not None
            and t.outcome.free_retry
            for t in self.trials.values()
        )

    def _asks_for_usage(self, endpoint: Endpoint) -> bool:
        facts = self.body_facts
        return (
            facts.stream
            and facts.include_usage is None
            and not facts.stream_options
            and self.facts.surface in INJECTABLE
            and endpoint.id not in self.desk.mute
            and (self.record.wants_usage or self.call.route.shares)
        )

    @property
    def reads_raw(self) -> bool:
        """The application reads the body itself, piece by piece."""
        return self.request.headers.get("x-stainless-raw-response") == "stream"

    @property
    def may_overlap(self) -> bool:
        """Whether a hedge may run beside the first attempt."""
        facts = self.facts
        return (
            (facts.hedge is True or (facts.hedge is None and self.call.route.hedge.enabled))
            and facts.repeatable
            and facts.pinned_to is None
            and not facts.delegated
            and (self.form is None or self.form.is_shareable)
        )

    def is_settled_by(self, trial: Trial) -> bool:
        """Whether what this attempt brought goes up as it is, and the SDK decides about another."""
        if not self.is_delegated:
            return False
        is_broken = trial.error is not None  # the SDK sends again by itself, free of charge or not
        return is_broken or trial.outcome is None or not trial.outcome.free_retry

    def observed(self) -> Trial:
        """Observing: the attempt that would be made now, for the books; where none would be, one
        that only they are told of.

        The request goes where the plain client sends it, and costs what it costs there. What comes
        of it is learned only if that is where it would have gone.
        """
        own = self.record.runs_at
        assert own is not None
        action = self.call.next_action(self.clock())
        if isinstance(action, Send):
            trial = self.trial(action.attempt)
            trial.is_elsewhere = own is not trial.endpoint
            return trial
        self.call.cancel(self.clock())
        bystander = Bystander(self.record, self.call, self.facts, own, self.clock())
        self.watcher = bystander
        return self.trial(bystander.attempt, own)

    def _own_endpoint(self) -> Endpoint:
        own = self.call.snapshot.endpoints.get(self.desk.own_endpoint() or "")
        return own or Endpoint(id="default", base_url=self.desk.home.base_url)

    # -- what attempts teach this side

    def settled(self, outcome: Outcome) -> Outcome:
        """What the call is told: one whose body can't be had again is over."""
        if self.form is None or not self.form.is_spent:
            return outcome
        return outcome._replace(should_retry=False, free_retry=False)

    def learned(self, trial: Trial, outcome: Outcome, body: bytes) -> Outcome:
        """An endpoint that refuses `stream_options` isn't asked again; the call goes on at once."""
        if (
            trial.injected
            and outcome.status in (400, 422)
            and quirks.names_parameter(body, "stream_options")
        ):
            self.desk.mute.add(trial.endpoint.id)
            return outcome._replace(free_retry=True)
        return outcome

    # -- the answer

    def chosen(self, finish: Finish) -> Trial:
        """The attempt to surface; raises where the call was refused."""
        if finish.attempt is not None:
            return self.trials[finish.attempt.number]
        assert finish.rejection is not None
        raise rejection_error(finish.rejection, self.request, model=self.facts.model)

    def present(self, trial: Trial) -> httpx2.Response:
        """The response the application gets, or raises what it gets instead."""
        if self.is_delegated or self.is_observed:
            disguised = self.is_delegated and is_disguised(trial)
            if disguised and not is_page(trial):
                trial.response = unmasked(trial)
            self._leave_to_sdk(trial)
            if disguised and is_page(trial):
                raise self._no_api(trial)
            response = self._plain_answer(trial)
        else:
            response = self._answer(trial)
        if trial.state is not State.OPEN:
            self.forget()
        return response

    def onward(self, trial: Trial, error: BaseException) -> Trial:
        """An attempt that brings the rest of an answer; raises the `error` there was, if it
        doesn't."""
        if trial.is_winner and not trial.record.continued:
            return trial
        error.add_note(self.note())
        raise error

    def forget(self) -> None:
        """Nothing more will be asked about the attempts. They know the call and the call knows
        them: left in place, all this and the reply would wait for the garbage collector."""
        self.trials.clear()

    def _answer(self, trial: Trial) -> httpx2.Response:
        if trial.error is not None:
            raise self._failure(trial, trial.error)
        response = trial.response
        assert response is not None
        if 300 <= response.status_code < 400:
            response = forbidden(self.desk, response, trial.endpoint)
        elif is_disguised(trial):
            if is_page(trial):
                raise self._no_api(trial)
            response = unmasked(trial)
        self._stamp(response, trial)
        return response

    def _leave_to_sdk(self, trial: Trial) -> None:
        """The call is over, unless the SDK sends it again: which it does not say."""
        if not (self._is_granted and is_retried_by_sdk(trial)):
            self.record.release()
            return
        sent = sends_before(self.request)
        is_open = sent + 1 < (self.facts.attempts_max or 1)
        unanswered.leave(Unanswered(self.record, self.desk, sent, is_open=is_open))
        self._is_left = True
        if not is_open:
            self.record.release()

    @property
    def _is_granted(self) -> bool:
        return self.is_observed or self.call.retry_granted

    def _plain_answer(self, trial: Trial) -> httpx2.Response:
        granted = self._is_granted
        if trial.error is not None:
            if granted:
                raise trial.error
            raise self._failure(trial, trial.error)
        response = trial.response
        assert response is not None
        if 300 <= response.status_code < 400:
            if not self.is_observed:
                return forbidden(self.desk, response, trial.endpoint)
            self.request.extensions = {**self.request.extensions, HOP: PLAIN}
        elif not granted and trial.state is State.FAILED and response.status_code >= 400:
            response.headers["x-should-retry"] = "false"
        return response

    def _failure(self, trial: Trial, exc: BaseException) -> BaseException:
        if isinstance(exc, CredentialUnavailable):
            return credential_refused(exc, trial.endpoint, self.request)
        kind = trial.outcome.error_type if trial.outcome is not None else None
        if kind == "deadline":
            error: BaseException = DeadlineExceeded(
                f"The call's deadline passed while endpoint {trial.endpoint.id!r} was answering "
                f"(attempt {trial.attempt.number}).",
                request=self.request,
            )
            error.__cause__ = exc
            error.add_note(self.note())
            return error
        late, told = isinstance(exc, self.timeouts), quirks.describe(exc)
        return upstream_error(exc, self.request, self.note(), timed_out=late, detail=told)

    def _no_api(self, trial: Trial) -> BaseException:
        reply = page(trial)
        if not self.is_delegated:
            self._stamp(reply, trial)
        return no_api_error(reply, reply.text, self.note(), endpoint=trial.endpoint.id)

    def note(self) -> str:
        """Which endpoints were tried and how each ended."""
        tried = ", ".join(
            f"{t.endpoint.id} ({t.outcome.error_type or t.outcome.kind.value})"
            if t.outcome is not None
            else t.endpoint.id
            for t in self.trials.values()
        )
        n = len(self.trials)
        return f"Headway: {n} attempt{'s' if n != 1 else ''}: {tried}"

    def _stamp(self, response: httpx2.Response, trial: Trial) -> None:
        snapshot, attempt = self.call.snapshot, trial.attempt
        dropped = _STAMPED if trial.is_inflated else _STAMPED_PLAIN
        if trial.origin != self.desk.home.origin:
            dropped |= _PERSONAL  # the http client would keep them as this client's own host's
        headers = [(n, v) for n, v in response.headers.raw if n.lower() not in dropped]
        headers += (
            (b"x-should-retry", b"false"),
            (b"x-headway-endpoint", trial.endpoint.id.encode("utf-8")),
            (b"x-headway-attempts", b"%d" % len(self.trials)),
            (b"x-headway-policy-version", b"%d" % snapshot.version),
            (b"x-headway-decision", f"{attempt.kind.value}; {attempt.reason}".encode()),
        )
        response.headers = self.desk.home.family.Headers(headers)
        if response.status_code >= 400:
            response.extensions[NOTE] = self.note()

    def abandon(self) -> None:
        """The caller gave up, or something that is not ours to judge came up."""
        outside(self._abandon)

    def _abandon(self) -> None:
        self.watcher.cancel(self.clock())
        if not self._is_left:
            self.record.release()


_STAMPED_PLAIN = frozenset(
    {
        b"x-should-retry",
        b"x-headway-endpoint",
        b"x-headway-attempts",
        b"x-headway-policy-version",
        b"x-headway-decision",
    }
)
_STAMPED = _STAMPED_PLAIN | {b"content-encoding", b"content-length"}
_PERSONAL = frozenset({b"set-cookie"})
