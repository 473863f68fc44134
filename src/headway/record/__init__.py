"""The accounting of calls: attempts, usage, cost, waste."""

from headway.record.attempt import AttemptRecord
from headway.record.books import Books
from headway.record.busy import BusyTime
from headway.record.call import CallRecord
from headway.record.observed import ObservedCalls
from headway.record.shared import Joint, Shared, kept_attempt, share_of
from headway.record.tenants import Tenants, TenantStatus
from headway.record.watching import CallObserver, CallWatch

__all__ = [
    "AttemptRecord",
    "Books",
    "BusyTime",
    "CallObserver",
    "CallRecord",
    "CallWatch",
    "Joint",
    "ObservedCalls",
    "Shared",
    "TenantStatus",
    "Tenants",
    "kept_attempt",
    "share_of",
]
