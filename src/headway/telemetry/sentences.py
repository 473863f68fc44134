"""Log events in words: what the `headway` logger says, out of an event's attributes.

The attributes go along as fields of the log record, so that whoever collects records need not read
sentences. Two events are missing: the logger `headway.policy` has said them already, knowing more.
"""

from __future__ import annotations

from typing import Final

from headway.telemetry import names as n
from headway.telemetry.metrics import Attributes

_BREAKER = f"endpoint %({n.ENDPOINT_ID})s, model %({n.REQUEST_MODEL})s: "

BREAKERS: Final = {
    "open": f"{_BREAKER}breaker open (%({n.REASON})s). It gets single probes only, until one of "
    "them is answered",
    "half_open": f"{_BREAKER}breaker half-open. The next call is a probe",
    "closed": f"{_BREAKER}breaker closed. It takes calls again",
}
"""By the state that it has now."""

SENTENCES: Final = {
    n.BREAKER_TRANSITION.name: f"{_BREAKER}breaker %({n.BREAKER_TO})s",
    n.ENDPOINT_EJECTED.name: f"endpoint %({n.ENDPOINT_ID})s fails more often than its peers "
    f"(%({n.REASON})s): left out for %({n.FOR_SECONDS}).1f s",
    n.ENDPOINT_READMITTED.name: f"endpoint %({n.ENDPOINT_ID})s is no longer left out",
    n.ENDPOINT_THROTTLED.name: f"endpoint %({n.ENDPOINT_ID})s, model %({n.REQUEST_MODEL})s: it "
    f"pushed back, and is left alone for %({n.FOR_SECONDS}).1f s",
    n.CREDENTIAL_BLOCKED.name: f"endpoint %({n.ENDPOINT_ID})s refused its key (%({n.REASON})s): "
    f"not used for %({n.FOR_SECONDS}).0f s. Check the key and its account",
    n.LIMIT_CHANGED.name: f"endpoint %({n.ENDPOINT_ID})s: at most %({n.LIMIT}).1f calls at a time",
    n.POLICY_LOADED.name: f"policy %({n.POLICY_ID})s, version %({n.POLICY_VERSION})s, is in force "
    f"(from %({n.POLICY_SOURCE})s)",
    n.BUDGET_EXHAUSTED.name: f"the retry budget of route %({n.RETRY_BUDGET})s is spent: what fails "
    "now is not repeated, until calls succeed again",
    n.FLEET_LOST.name: f"the fleet's rates can't be asked for (%({n.REASON})s): this process keeps "
    "to its own share",
    n.FLEET_RESTORED.name: "the fleet's rates are counted together again",
    n.SHED_STARTED.name: "more calls come than the endpoints may take: some are refused "
    f"(%({n.SHED_REASON})s)",
    n.SHED_STOPPED.name: "no more calls are refused",
    n.PRICE_UNKNOWN.name: f"no price is known for model %({n.REQUEST_MODEL})s of "
    f"%({n.PROVIDER})s: the cost of its calls is unknown, and max_cost can't stop them. State a "
    "price at the endpoint in the policy",
    n.EVALUATION.name: f"task %({n.TASK_NAME})s: %({n.EVALUATION_LABEL})s",
}


def sentence(name: str, attributes: Attributes) -> str | None:
    """The sentence of a log event, its values still to be filled in; None if there is none."""
    if name == n.BREAKER_TRANSITION.name:
        return BREAKERS.get(str(attributes.get(n.BREAKER_TO)), SENTENCES[name])
    return SENTENCES.get(name)
