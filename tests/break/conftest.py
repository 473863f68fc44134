"""The same endpoints and clients as the transport's tests."""

from tests.transport.conftest import caller, cleanup, kind, serve

__all__ = ["caller", "cleanup", "kind", "serve"]
