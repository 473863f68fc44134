"""The sync transport: performs what calls ask for, with plain blocking I/O."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headway import collecting
from headway.core.model import Send, Wait
from headway.credentials import CredentialUnavailable
from headway.transport import hedged
from headway.transport.desk import Desk, Detour
from headway.transport.family import byte_stream_class
from headway.transport.flight import Flight
from headway.transport.home import origin_of
from headway.transport.keys import credential_refused, declared_credential
from headway.transport.light import HELD_BYTES_MAX, Light, depart, replay
from headway.transport.overheard import OverheardStream
from headway.transport.pools import Pools
from headway.transport.redirects import HOPS_MAX, REDIRECTS, onward
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
    from headway.transport.signer import Signer

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
        self._overheard_class = byte_stream_class(OverheardStream, home.family.SyncByteStream)

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
            return self._pass(request)
        if isinstance(arrival, Detour):
            return self._detour(arrival, request)
        light: Light | None = None
        try:
            light = depart(self._desk, arrival)
            if light is not None:
                return self._carry(light, request)
        except BaseException:
            if light is not None:
                light.drop()
            raise
        flight = self._desk.begin(arrival)
        if flight is None:
            return self._pass(request)
        if flight.call.route.shares and not flight.is_observed:
            return share(flight, self._sharing, self._fly)
        try:
            if flight.is_observed:
                return self._observe(flight)
            return flight.present(self._fly(flight))
        except BaseException:
            flight.abandon()
            raise

    def _forward(self, request: httpx2.Request, signer: Signer | None = None) -> httpx2.Response:
        pools = self._pools_for(signer)
        response: httpx2.Response = pools.sync(request.url).handle_request(request)
        return response

    def _pools_for(self, signer: Signer | None) -> Pools[Any]:
        """A client that is an endpoint has connections of its own."""
        if signer is None or signer is self._desk.home.signer:
            return self._pools
        return signer.pools

    def _carrier(self, trial: Trial, request: httpx2.Request) -> object:
        """The transport that an attempt's request went through."""
        signer = self._desk.aim.target(trial.endpoint).signer
        return self._pools_for(signer).sync(request.url)

    def _pass(self, request: httpx2.Request) -> httpx2.Response:
        response = self._forward(self._desk.passing(request))
        answer = self._desk.passed(request, response)
        if answer is not response:
            response.close()
        return answer

    def _heard(self, detour: Detour, response: httpx2.Response) -> httpx2.Response:
        ear = self._desk.ear(detour, response)
        if ear is not None:
            overheard: Any = self._overheard_class(response.stream, ear)
            response.stream = overheard
        return response

    def _detour(self, detour: Detour, request: httpx2.Request) -> httpx2.Response:
        if detour.endpoint is None:
            return self._heard(detour, self._pass(request))
        try:
            secret = self._secret(detour.endpoint)
            request = self._desk.detoured(detour, request, secret)
            signer = self._signed(detour.endpoint, request)
        except CredentialUnavailable as exc:
            raise credential_refused(exc, detour.endpoint, request) from exc
        response = self._forward(request, signer)
        response = self._follow(detour.endpoint, request, response, secret)
        answer = self._desk.returned(detour, response)
        if answer is not response:
            response.close()
        return self._heard(detour, answer)

    def _follow(
        self,
        endpoint: Endpoint,
        request: httpx2.Request,
        response: httpx2.Response,
        secret: tuple[str, str] | None,
    ) -> httpx2.Response:
        """The answer at the end of what redirects may be followed."""
        for _ in range(HOPS_MAX):
            following = onward(self._desk, endpoint, request, response, secret)
            if following is None:
                break
            response.close()
            request, response = following, self._forward(following)
        return self._desk.unsigned(origin_of(request.url), response)

    def _signed(
        self, endpoint: Endpoint, request: httpx2.Request, left_s: float | None = None
    ) -> Signer | None:
        """Have a request signed by the client that is its endpoint, if there is one."""
        signer = self._desk.aim.target(endpoint).signer
        if signer is not None:
            signer.check(endpoint, self._desk.home)
            signer.sign(request, self._desk.home, left_s)
        return signer

    def _secret(self, endpoint: Endpoint) -> tuple[str, str] | None:
        if self._desk.aim.target(endpoint).signer is not None:
            return None
        credential = declared_credential(self._host, endpoint)
        if credential is None:
            return None
        return credential.header_for(credential.get(), dialect=endpoint.dialect)

    # -- a call

    def _fly(self, flight: Flight) -> Trial:
        """Perform the call's actions until it is decided; the attempt to present."""
        if flight.may_overlap and (room := hedged.workers.room()) is not None:
            finish = hedged.fly_threads(flight, self._attempt, self._carrier, room)
            return flight.chosen(finish)
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
        self._send(flight, trial, flight.outgoing(trial, None))
        return flight.present(trial)

    def _attempt(self, flight: Flight, trial: Trial) -> None:
        try:
            secret = self._secret(trial.endpoint)
            request = flight.outgoing(trial, secret)
            left_s = None if flight.is_observed else trial.limits.left_s()
            signer = None
            if request is not flight.request:
                signer = self._signed(trial.endpoint, request, left_s)
        except CredentialUnavailable as exc:
            trial.refused(exc)
        except TimeoutError as exc:
            if not trial.broke(exc):
                raise
        else:
            self._send(flight, trial, request, secret, signer)

    def _send(
        self,
        flight: Flight,
        trial: Trial,
        request: httpx2.Request,
        secret: tuple[str, str] | None = None,
        signer: Signer | None = None,
    ) -> None:
        """One attempt, up to the point where the call can go on."""
        try:
            with flight.record.sending(trial.attempt):
                response = self._forward(request, signer)
                if response.status_code in REDIRECTS and not flight.is_observed:
                    response = self._follow(trial.endpoint, request, response, secret)
        except Exception as exc:
            if not trial.broke(exc):
                raise
        else:
            self._receive(trial, response, _chunks(response))

    def _receive(self, trial: Trial, response: httpx2.Response, chunks: Iterator[bytes]) -> None:
        """Feed an attempt with its reply, up to the point where the call can go on."""
        try:
            trial.arrived(response)
            if response.is_closed:
                trial.swallow(response.content)
                return
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
            self._dock(trial, response, chunks)

    def _dock(self, trial: Trial, response: httpx2.Response, chunks: Any) -> None:
        """Give the response its body back, or close it."""
        source: Any = response.stream
        if response.is_closed:  # a mock's reply, judged and left as it is
            return
        if trial.state is State.OPEN:
            watched: Any = self._stream_class(trial, source, chunks, self._go_on)
            response.stream = watched
            return
        trial.release()
        with contextlib.suppress(Exception):
            source.close()
        if trial.state in (State.WHOLE, State.FAILED):
            response.stream = trial.flight.desk.home.family.ByteStream(trial.body())

    def _go_on(self, trial: Trial, error: BaseException) -> Trial:
        """The attempt that brings the rest of an answer; raises `error` where there is none."""
        flight = trial.flight
        try:
            onward = self._fly(flight)
        except BaseException as exc:
            flight.abandon()
            if isinstance(exc, Exception):
                raise error from exc
            raise
        return flight.onward(onward, error)

    # -- a light call (see `light`)

    def _carry(self, light: Light, request: httpx2.Request) -> httpx2.Response:
        """Send as it is, and make a flight of it if anything but the answer comes back."""
        response: httpx2.Response | None = None
        chunks: Iterator[bytes] = iter(())
        held: list[bytes] = []
        failure: Exception | None = None
        try:
            arrived: httpx2.Response = self._pools.sync(request.url).handle_request(request)
            response = arrived
            headers = light.is_plain(response)
            chunks = _chunks(response)
            if headers is not None:
                size = 0
                for chunk in chunks:
                    held.append(chunk)
                    size += len(chunk)
                    if size > HELD_BYTES_MAX:
                        break
                else:
                    body = b"".join(held)
                    if light.is_answered(headers, body):
                        source: Any = response.stream
                        with contextlib.suppress(Exception):
                            source.close()
                        response.stream = self._desk.home.family.ByteStream(body)
                        return response
        except Exception as exc:  # noqa: BLE001 - judged in flight, as any call's
            failure = exc
        except BaseException:
            self._drop(light, response, chunks)
            raise
        return self._grow(light, request, response, replay(held, chunks, failure), failure)

    def _grow(
        self,
        light: Light,
        request: httpx2.Request,
        response: httpx2.Response | None,
        chunks: Iterator[bytes],
        failure: Exception | None,
    ) -> httpx2.Response:
        flight: Flight | None = None
        trial: Trial | None = None
        try:
            flight = light.grown()
            trial = flight.trial(light.call.attempt)
            trial.request = request
            self._catch_up(flight, trial, response, chunks, failure)
            return flight.present(trial if flight.is_settled_by(trial) else self._fly(flight))
        except BaseException:
            if flight is None:
                light.call.cancel(self._desk.host.clock())
            else:
                flight.abandon()
            if response is not None and (trial is None or trial.response is None):
                with contextlib.suppress(Exception):
                    response.close()
            raise

    def _catch_up(
        self,
        flight: Flight,
        trial: Trial,
        response: httpx2.Response | None,
        chunks: Iterator[bytes],
        failure: Exception | None,
    ) -> None:
        """Tell the attempt what has become of it so far, and feed it what follows."""
        if response is None:
            if failure is not None and not trial.broke(failure):
                raise failure
            return
        try:
            if response.status_code in REDIRECTS:
                response = self._follow(trial.endpoint, flight.request, response, None)
                chunks = _chunks(response)
        except Exception as exc:
            if not trial.broke(exc):
                raise
        else:
            self._receive(trial, response, chunks)

    def _drop(
        self, light: Light, response: httpx2.Response | None, chunks: Iterator[bytes]
    ) -> None:
        """The caller gave up."""
        if light.call.attempt.ended or response is None:
            light.drop()
            return
        flight = light.grown()
        try:
            self._dock(flight.trial(light.call.attempt), response, chunks)
        finally:
            flight.abandon()

    # -- closing

    def close(self) -> None:
        """Close the user's client, as closing any of the SDK's own copies does."""
        for copy in self._pools.stand_ins():
            copy.close()
        if not self._pools.forsake():
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


def _chunks(response: httpx2.Response) -> Iterator[bytes]:
    """The body, piece by piece; nothing of one that is in memory (a mock's)."""
    body: Any = response.stream
    return iter(()) if response.is_closed else iter(body)
