"""What Headway raises: the part about policy documents."""

from __future__ import annotations


class HeadwayError(Exception):
    """Base of everything Headway raises."""


class PolicyError(HeadwayError):
    """A policy document can't be used.

    `path` is the JSON path of the place ("routes[0].weights.vllm-1"), `source` where the document
    came from, `expected` what should have stood there.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        source: str | None = None,
        expected: str | None = None,
    ) -> None:
        self.message = message
        self.path = path
        self.source = source
        self.expected = expected
        text = message if path is None else f"{path}: {message}"
        if expected is not None:
            text += f" (expected {expected})"
        if source is not None:
            text += f" [{source}]"
        super().__init__(text)


class FetchError(PolicyError):
    """The document could not be had from its source."""


class ValidationError(PolicyError):
    """The document was read, and is wrong."""


class VerifyError(PolicyError):
    """The document is older than one already trusted, has expired, or isn't properly signed."""
