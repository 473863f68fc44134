"""(signatures first; bodies follow)"""

from __future__ import annotations

from headway.core.model import Outcome, Usage


class StreamObserver:
    """One streamed reply, watched and filtered in one pass.

    `feed(chunk)` returns the bytes to hand to the caller: complete events only (a partial event is
    held until its blank line comes; more than 1 MiB is let through unobserved), byte for byte as
    they came, except: events with empty data (they crash the SDK), a leading BOM, and, with
    `hide_usage=True` (we injected include_usage), the usage-only chunk and `"usage":null` members.

    When an in-band error is found, `error` is set, `feed` returns what came before it, and
    `error_event` holds the failing event (raw, complete); later feeds return b"".
    The attributes are the result: read them after each feed (no allocation per chunk).
    """

    content_events: int = 0
    """Events that carried content (text, tool call, reasoning, refusal, audio). > 0: first token
    seen. It growing is progress; anything else (pings, role chunks) is not."""
    error: Outcome | None = None
    error_event: bytes = b""
    error_message: str | None = None
    done: bool = False
    """`[DONE]` seen, or the surface's last event: nothing of interest follows."""
    terminal: bool = False
    """The answer is complete: finish_reason, response.completed/incomplete, or [DONE] after content."""
    usage: Usage | None = None
    response_id: str | None = None
    model: str | None = None
    service_tier: str | None = None
    finish_reasons: list[str]

    def __init__(self, surface: str = "chat", *, hide_usage: bool = False, wall_now: float = 0.0) -> None:
        raise NotImplementedError

    def feed(self, chunk: bytes) -> bytes:
        raise NotImplementedError

    def finish(self) -> bytes:
        """The body ended: the held tail (an unterminated event), to be handed on as it is."""
        raise NotImplementedError

    def outcome(self) -> Outcome:
        """What the stream amounts to if it ends here: OK (with token counts), the in-band error,
        or INCOMPLETE_STREAM (truncated_stream | empty_stream)."""
        raise NotImplementedError

    @property
    def partial_text(self) -> str:
        """Text so far of choice 0 (bounded to 256 KiB)."""
        raise NotImplementedError

    @property
    def partial_tool_calls(self) -> tuple[dict[str, str], ...]:
        """({"id", "name", "arguments"}, ...) so far (bounded with the text)."""
        raise NotImplementedError
