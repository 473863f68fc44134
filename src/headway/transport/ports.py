"""What the transports ask of the process they run in. `headway.router.Router` fulfils it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headway.core.engine import Engine
    from headway.core.model import CallFacts, Rng
    from headway.core.snapshot import Endpoint
    from headway.credentials import Credential
    from headway.record import CallRecord
    from headway.share.board import Board
    from headway.share.shelf import Shelf
    from headway.transport.pins import PinMap
    from headway.transport.signer import Signer


class CallHost(Protocol):
    """The state of one process that calls share."""

    engine: Engine
    mode: str
    """"enforce" or "observe"."""
    disabled: bool
    """True: everything passes straight through (HEADWAY_DISABLED=1)."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    wall_clock: Callable[[], float]
    """Unix seconds."""
    rng: Rng
    pins: PinMap
    """Where stored objects live."""
    board: Board
    """Calls in flight that identical ones may join."""
    shelf: Shelf
    """Answers kept for identical calls."""

    def open_call(
        self, facts: CallFacts, *, earlier: CallRecord | None = None, is_exempt: bool = False
    ) -> CallRecord:
        """Start the accounts of a call, in the current task, or go on with the `earlier` ones.

        Raises `TaskLimitExceeded` or `DeadlineExceeded` where the task can't carry another call;
        an exempt call is only counted.
        """
        ...

    def is_unwatched(self) -> bool:
        """Whether nobody wants to know of single calls: no span, no metric, no hook, no count."""
        ...

    def credential_for(self, endpoint: Endpoint) -> Credential | None:
        """The credential declared for `endpoint`; None: the client's own key, own host only."""
        ...

    def signer_for(self, endpoint: Endpoint, *, is_async: bool) -> Signer | None:
        """The client that is this endpoint, of this colour if there is one; None: a key will do."""
        ...

    def ensure_started(self) -> None:
        """Start what runs in the background, at the first call and again after a fork."""
        ...
