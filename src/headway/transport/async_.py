# long: the async half of one transport, to be read beside the sync one
"""The async transport: performs what calls ask for, on asyncio or trio."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio

from headway import collecting
from headway.core.model import Send, Wait
from headway.credentials import CredentialUnavailable
from headway.transport.desk import Desk, Detour
from headway.transport.family import byte_stream_class
from headway.transport.flight import Flight
from headway.transport.hedged import fly_tasks
from headway.transport.home import origin_of
from headway.transport.keys import credential_refused, declared_credential
from headway.transport.light import HELD_BYTES_MAX, Light, areplay, body_chunks, depart
from headway.transport.overheard import AsyncOverheardStream
from headway.transport.pools import Pools
from headway.transport.redirects import HOPS_MAX, REDIRECTS, onward
from headway.transport.shared import Sharing
from headway.transport.shared_drivers import ashare
from headway.transport.shared_streams import AsyncSharedStream
from headway.transport.sync import CLOSED
from headway.transport.timed import Timed, within
from headway.transport.trial import State, Trial
from headway.transport.wake import asleep, current_loop
from headway.transport.watch import AsyncWatchedStream

if TYPE_CHECKING:
    import httpx2

    from headway.core.snapshot import Endpoint
    from headway.transport.home import Home
    from headway.transport.ports import CallHost
    from headway.transport.signer import Signer


class AsyncTransport:
    """Stands where the user's transport stood, and sends through it."""

    def __init__(self, host: CallHost, http: httpx2.AsyncClient, home: Home) -> None:
        self._host = host
        self._http = http
        self._desk = Desk(host, home)
        self._pools = Pools(http)
        collecting.watch()
        self._stream_class = byte_stream_class(AsyncWatchedStream, home.family.AsyncByteStream)
        self._sharing = Sharing(
            "async", byte_stream_class(AsyncSharedStream, home.family.AsyncByteStream)
        )
        self._overheard_class = byte_stream_class(AsyncOverheardStream, home.family.AsyncByteStream)

    @property
    def host(self) -> CallHost:
        """What this client shares with the process."""
        return self._host

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request: managed, bound to an endpoint, or as it is."""
        if self._pools.is_closed:
            raise RuntimeError(CLOSED)
        arrival = self._desk.receive(request)
        if arrival is None:
            return await self._pass(request)
        if isinstance(arrival, Detour):
            return await self._detour(arrival, request)
        light: Light | None = None
        try:
            if (light := depart(self._desk, arrival)) is not None:
                return await self._carry(light, request)
        except BaseException:
            if light is not None:
                collecting.outside(light.drop)
            raise
        flight = self._desk.begin(arrival)
        if flight is None:
            return await self._pass(request)
        if flight.call.route.shares and not flight.is_observed:
            return await ashare(flight, self._sharing, self._fly)
        try:
            if flight.is_observed:
                return await self._observe(flight)
            return flight.present(await self._fly(flight))
        except BaseException:
            flight.abandon()
            raise

    async def _forward(
        self, request: httpx2.Request, signer: Signer | None = None
    ) -> httpx2.Response:
        pools = self._pools
        if signer is not None and signer is not self._desk.home.signer:
            pools = signer.pools
        transport = pools.on_loop(request.url, current_loop())
        response: httpx2.Response = await transport.handle_async_request(request)
        return response

    async def _pass(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._forward(self._desk.passing(request))
        answer = self._desk.passed(request, response)
        if answer is not response:
            await response.aclose()
        return answer

    def _heard(self, detour: Detour, response: httpx2.Response) -> httpx2.Response:
        ear = self._desk.ear(detour, response)
        if ear is not None:
            overheard: Any = self._overheard_class(response.stream, ear)
            response.stream = overheard
        return response

    async def _detour(self, detour: Detour, request: httpx2.Request) -> httpx2.Response:
        if detour.endpoint is None:
            return self._heard(detour, await self._pass(request))
        try:
            secret = await self._secret(detour.endpoint)
            request = self._desk.detoured(detour, request, secret)
            signer = await self._signed(detour.endpoint, request)
        except CredentialUnavailable as exc:
            raise credential_refused(exc, detour.endpoint, request) from exc
        response = await self._forward(request, signer)
        response = await self._follow(detour.endpoint, request, response, secret)
        answer = self._desk.returned(detour, response)
        if answer is not response:
            await response.aclose()
        return self._heard(detour, answer)

    async def _follow(
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
            await response.aclose()
            request, response = following, await self._forward(following)
        return self._desk.unsigned(origin_of(request.url), response)

    async def _signed(
        self, endpoint: Endpoint, request: httpx2.Request, left: float | None = None
    ) -> Signer | None:
        """Have a request signed by the client that is its endpoint, if there is one."""
        signer = self._desk.aim.target(endpoint).signer
        if signer is not None:
            signer.check(endpoint, self._desk.home)
            with within(left):  # it may have to fetch a token
                await signer.asign(request, self._desk.home)
        return signer

    async def _secret(
        self, endpoint: Endpoint, left: float | None = None
    ) -> tuple[str, str] | None:
        if self._desk.aim.target(endpoint).signer is not None:
            return None
        credential = declared_credential(self._host, endpoint)
        if credential is None:
            return None
        with within(left if credential._acall is not None else None):
            secret = await credential.aget()
        return credential.header_for(secret, dialect=endpoint.dialect)

    # -- a call

    async def _fly(self, flight: Flight) -> Trial:
        """Perform the call's actions until it is decided; the attempt to present."""
        if flight.may_overlap:
            return flight.chosen(await fly_tasks(flight, self._attempt))
        call = flight.call
        while True:
            action = call.next_action(flight.clock())
            if isinstance(action, Send):
                trial = flight.trial(action.attempt)
                await self._attempt(flight, trial)
                if flight.is_settled_by(trial):
                    return trial
            elif isinstance(action, Wait):
                await asleep(call, anyio.Event(), action.until - flight.clock())
            else:
                return flight.chosen(action)

    async def _observe(self, flight: Flight) -> httpx2.Response:
        """Send what the plain client sends, and watch what becomes of it."""
        trial = flight.observed()
        await self._send(flight, trial, flight.outgoing(trial, None))
        return flight.present(trial)

    async def _attempt(self, flight: Flight, trial: Trial) -> None:
        left = None if flight.is_observed else trial.limits.left_s()
        try:
            secret = await self._secret(trial.endpoint, left)
            request, signer = flight.outgoing(trial, secret), None
            if request is not flight.request:
                signer = await self._signed(trial.endpoint, request, left)
        except CredentialUnavailable as exc:
            trial.refused(exc)
        except TimeoutError as exc:
            if not trial.broke(exc):
                raise
        else:
            await self._send(flight, trial, request, secret, signer)

    async def _send(
        self,
        flight: Flight,
        trial: Trial,
        request: httpx2.Request,
        secret: tuple[str, str] | None = None,
        signer: Signer | None = None,
    ) -> None:
        """One attempt, up to the point where the call can go on."""
        left = None if flight.is_observed else trial.limits.left_s()
        try:
            # The phases of a send are limited one by one; a timer bounds their sum.
            with within(left), flight.record.sending(trial.attempt):
                response = await self._forward(request, signer)
                if response.status_code in REDIRECTS and not flight.is_observed:
                    response = await self._follow(trial.endpoint, request, response, secret)
        except Exception as exc:
            if not trial.broke(exc):
                raise
        else:
            await self._receive(trial, response, body_chunks(response))

    async def _receive(self, trial: Trial, response: httpx2.Response, chunks: Any) -> None:
        """Feed an attempt with its reply, up to the point where the call can go on."""
        try:
            trial.arrived(response)
            if response.is_closed:
                trial.swallow(response.content)
                return
            if not trial.is_decided:
                async for chunk in self._limited(trial, chunks):
                    if trial.take(chunk):
                        break
                else:
                    trial.ended()
        except Exception as exc:
            if not trial.broke(exc):
                raise
        finally:
            await self._dock(trial, response, chunks)

    def _limited(self, trial: Trial, chunks: Any) -> Any:
        """The same chunks, each read bounded by what is left, where the connection can't do it."""
        if trial.reads_are_limited or trial.flight.is_observed or trial.limits.left_s() is None:
            return chunks
        return Timed(trial.limits, chunks)

    async def _dock(self, trial: Trial, response: httpx2.Response, chunks: Any) -> None:
        """Give the response its body back, or close it."""
        source: Any = response.stream
        if response.is_closed:  # a mock's reply, judged and left as it is
            return
        if trial.state is State.OPEN:
            watched: Any = self._stream_class(trial, source, chunks, current_loop(), self._go_on)
            response.stream = watched
            return
        trial.release()
        with contextlib.suppress(Exception):
            await source.aclose()
        if trial.state in (State.WHOLE, State.FAILED):
            response.stream = trial.flight.desk.home.family.ByteStream(trial.body())

    async def _go_on(self, trial: Trial, error: BaseException) -> Trial:
        """The attempt that brings the rest of an answer; raises `error` where there is none."""
        flight = trial.flight
        try:
            onward = await self._fly(flight)
        except BaseException as exc:
            flight.abandon()
            if isinstance(exc, Exception):
                raise error from exc
            raise
        return flight.onward(onward, error)

    # -- a light call (see `light`)

    async def _carry(self, light: Light, request: httpx2.Request) -> httpx2.Response:
        """Send as it is, and make a flight of it if anything but the answer comes back."""
        response: httpx2.Response | None = None
        chunks: Any = None
        held: list[bytes] = []
        failure: Exception | None = None
        try:
            transport = self._pools.on_loop(request.url, current_loop())
            arrived: httpx2.Response = await transport.handle_async_request(request)
            response = arrived
            headers = light.is_plain(response)
            chunks = body_chunks(response)
            if headers is not None:
                size = 0
                async for chunk in chunks:
                    held.append(chunk)
                    size += len(chunk)
                    if size > HELD_BYTES_MAX:
                        break
                else:
                    body = b"".join(held)
                    if light.is_answered(headers, body):
                        source: Any = response.stream
                        with contextlib.suppress(Exception):
                            await source.aclose()
                        response.stream = self._desk.home.family.ByteStream(body)
                        return response
        except Exception as exc:  # noqa: BLE001 - judged in flight, as any call's
            failure = exc
        except BaseException:
            await self._drop(light, response, chunks)
            raise
        return await self._grow(light, request, response, areplay(held, chunks, failure), failure)

    async def _grow(
        self,
        light: Light,
        request: httpx2.Request,
        response: httpx2.Response | None,
        chunks: Any,
        failure: Exception | None,
    ) -> httpx2.Response:
        flight: Flight | None = None
        trial: Trial | None = None
        try:
            flight = light.grown()
            trial = flight.trial(light.call.attempt)
            trial.request = request
            await self._catch_up(flight, trial, response, chunks, failure)
            if not flight.is_settled_by(trial):
                trial = await self._fly(flight)
            return flight.present(trial)
        except BaseException:
            if flight is None:
                light.call.cancel(self._desk.host.clock())
            else:
                flight.abandon()
            if response is not None and (trial is None or trial.response is None):
                with contextlib.suppress(Exception):
                    await response.aclose()
            raise

    async def _catch_up(
        self,
        flight: Flight,
        trial: Trial,
        response: httpx2.Response | None,
        chunks: Any,
        failure: Exception | None,
    ) -> None:
        """Tell the attempt what has become of it so far, and feed it what follows."""
        if response is None:
            if failure is not None and not trial.broke(failure):
                raise failure
            return
        try:
            if response.status_code in REDIRECTS:
                response = await self._follow(trial.endpoint, flight.request, response, None)
                chunks = body_chunks(response)
        except Exception as exc:
            if not trial.broke(exc):
                raise
        else:
            await self._receive(trial, response, chunks)

    async def _drop(self, light: Light, response: httpx2.Response | None, chunks: Any) -> None:
        """The caller gave up."""
        # The collector ends what a loop has left, and awaits nothing.
        if light.call.attempt.ended or response is None or collecting.is_collecting():
            return collecting.outside(light.drop)
        flight = light.grown()
        try:
            await self._dock(flight.trial(light.call.attempt), response, chunks)
        finally:
            flight.abandon()

    # -- closing

    async def aclose(self) -> None:
        """Close the user's client, as closing any of the SDK's own copies does."""
        loop = current_loop()
        for copy in self._pools.stand_ins(loop):
            await copy.aclose()
        if self._pools.forsake():
            return
        try:
            await self._http.aclose()
        except RuntimeError:
            # Its connections belong to a loop that is gone, and went with it.
            if not self._pools.is_orphaned(loop):
                raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()
