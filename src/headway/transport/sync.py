"""The sync transport: performs what calls ask for, with plain blocking I/O."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headway.core.model import Send, Wait
from headway.credentials import CredentialUnavailable
from headway.transport import collecting
from headway.transport.desk import Desk, Detour
from headway.transport.family import byte_stream_class
from headway.transport.flight import Flight
from headway.transport.hedged import fly_threads, threads_left
from headway.transport.keys import credential_refused, declared_credential
from headway.transport.pools import Pools
from headway.transport.shared import Sharing
from headway.transport.shared_drivers import share
from headway.transport.shared_streams import SharedStream
from headway.transport.trial import State, Trial
from headway.transport.wake import sleep
from headway.transport.watch import WatchedStream

if TYPE_CHECKING:
    import httpx2

    from headway.core.snapshot import Endpoint
    from headway.transport.home import Home
    from headway.transport.ports import CallHost

CLOSED = "Cannot send a request, as the client has been closed."
"""What the http libraries say, word for word."""


class Transport:
    """Stands where the user's transport stood, and sends through it."""

    def __init__(self, host: CallHost, http: httpx2.Client, home: Home) -> None:
        self._host = host
        self._http = http
        self._desk = Desk(host, home)
        self._pools = Pools(http)
        collecting.watch()
        self._stream_class = byte_stream_class(WatchedStream, home.family.SyncByteStream)
        self._sharing = Sharing("sync", byte_stream_class(SharedStream, home.family.SyncByteStream))

    @property
    def host(self) -> CallHost:
        """What this client shares with the process."""
        return self._host

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request: managed, bound to an endpoint, or as it is."""
        if self._pools.is_closed:
            raise RuntimeError(CLOSED)
        arrival = self._desk.receive(request)
        if arrival is None:
            return self._forward(request)
        if isinstance(arrival, Detour):
            return self._forward(self._detoured(arrival, request))
        flight = self._desk.begin(arrival)
        if flight is None:
            return self._forward(request)
        if flight.call.route.shares and not flight.is_observed:
            return share(flight, self._sharing, self._fly)
        try:
            if flight.is_observed:
                return self._observe(flight)
            return flight.present(self._fly(flight))
        except BaseException:
            flight.abandon()
            raise

    def _forward(self, request: httpx2.Request) -> httpx2.Response:
        response: httpx2.Response = self._pools.sync(request.url).handle_request(request)
        return response

    def _detoured(self, detour: Detour, request: httpx2.Request) -> httpx2.Request:
        try:
            secret = self._secret(detour.endpoint)
        except CredentialUnavailable as exc:
            raise credential_refused(exc, detour.endpoint, request) from exc
        return self._desk.detoured(detour, request, secret)

    def _secret(self, endpoint: Endpoint) -> tuple[str, str] | None:
        credential = declared_credential(self._host, endpoint)
        if credential is None:
            return None
        return credential.header_for(credential.get(), dialect=endpoint.dialect)

    # -- a call

    def _fly(self, flight: Flight) -> Trial:
        """Perform the call's actions until it is decided; the attempt to present."""
        if flight.may_overlap and threads_left():
            return flight.chosen(fly_threads(flight, self._attempt))
        call = flight.call
        while True:
            action = call.next_action(flight.clock())
            if isinstance(action, Send):
                trial = flight.trial(action.attempt)
                self._attempt(flight, trial)
                if flight.is_settled_by(trial):
                    return trial
            elif isinstance(action, Wait):
                sleep(call, action.until - flight.clock())
            else:
                return flight.chosen(action)

    def _observe(self, flight: Flight) -> httpx2.Response:
        """Send what the plain client sends, and watch what becomes of it."""
        trial = flight.observed()
        self._send(flight, trial, None)
        return flight.present(trial)

    def _attempt(self, flight: Flight, trial: Trial) -> None:
        try:
            secret = self._secret(trial.endpoint)
        except CredentialUnavailable as exc:
            trial.refused(exc)
        else:
            self._send(flight, trial, secret)

    def _send(self, flight: Flight, trial: Trial, secret: tuple[str, str] | None) -> None:
        """One attempt, up to the point where the call can go on."""
        request = flight.outgoing(trial, secret)
        response: httpx2.Response | None = None
        chunks: Iterator[bytes] = iter(())
        try:
            with flight.record.sending(trial.attempt):
                response = self._forward(request)
            trial.arrived(response)
            if response.is_closed:
                trial.swallow(response.content)
                return
            body: Any = response.stream
            chunks = iter(body)
            if not trial.is_decided:
                for chunk in chunks:
                    if trial.take(chunk):
                        break
                else:
                    trial.ended()
        except Exception as exc:
            if not trial.broke(exc):
                raise
        finally:
            if response is not None:
                self._dock(trial, response, chunks)

    def _dock(self, trial: Trial, response: httpx2.Response, chunks: Any) -> None:
        """Give the response its body back, or close it."""
        source: Any = response.stream
        if response.is_closed:  # a mock's reply, judged and left as it is
            return
        if trial.state is State.OPEN:
            watched: Any = self._stream_class(trial, source, chunks)
            response.stream = watched
            return
        trial.release()
        with contextlib.suppress(Exception):
            source.close()
        if trial.state in (State.WHOLE, State.FAILED):
            response.stream = trial.flight.desk.home.family.ByteStream(trial.body())

    # -- closing

    def close(self) -> None:
        """Close the user's client, as closing any of the SDK's own copies does."""
        for copy in self._pools.stand_ins():
            copy.close()
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.close()
