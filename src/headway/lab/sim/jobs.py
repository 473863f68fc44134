"""One run as a value that travels to whoever performs it."""

from __future__ import annotations

from typing import NamedTuple

from headway.lab.sim.figures import Figures
from headway.lab.sim.run import run_once
from headway.lab.sim.scenario import Scenario


class Job(NamedTuple):
    """One run, as a worker gets it."""

    scenario: Scenario
    contender: str
    seed: int
    lines: bool


def perform(job: Job) -> Figures:
    """Run a job."""
    return run_once(job.scenario, job.contender, job.seed, lines=job.lines)
