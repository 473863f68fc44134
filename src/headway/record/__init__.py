"""The accounting of calls: attempts, usage, cost, waste."""

from headway.record.attempt import AttemptRecord
from headway.record.busy import BusyTime
from headway.record.call import Books, CallObserver, CallRecord, CallWatch
from headway.record.observed import ObservedCalls

__all__ = [
    "AttemptRecord",
    "Books",
    "BusyTime",
    "CallObserver",
    "CallRecord",
    "CallWatch",
    "ObservedCalls",
]
