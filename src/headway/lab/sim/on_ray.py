"""Runs spread over a Ray cluster. Needs `headway[ray]`, here and on every node, of one version.

A run is drawn from its own seed alone, so where it runs changes nothing but the time it takes.
Traces given as files are read by the node that runs: they have to lie there under the same path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import headway
from headway.lab.sim.figures import Figures
from headway.lab.sim.jobs import Job, perform

LOCAL = ""


class RayUnavailableError(RuntimeError):
    """Ray is not installed, or the cluster cannot be used."""


def _on_a_node(job: Job) -> tuple[str, Figures]:
    return headway.__version__, perform(job)


def results_of(jobs: Sequence[Job], *, address: str = LOCAL, workers: int = 0) -> Iterator[Figures]:
    """Figures in the order of the jobs, each as soon as it and those before it are there.

    `address`: as `ray.init` takes it ("auto": the cluster of this machine); empty: RAY_ADDRESS, or
    a cluster of this process's own with `workers` cores (0: all), which ends with it. A Ray that
    the caller has initialised is used as it is. Raises RayUnavailableError.
    """
    try:
        ray: Any = import_module("ray")
    except ModuleNotFoundError as exc:
        raise RayUnavailableError("Ray is not installed: pip install 'headway[ray]'") from exc
    owned = not ray.is_initialized()
    if owned:
        here = {} if address else {"num_cpus": workers or None, "include_dashboard": False}
        try:
            ray.init(address=address or None, log_to_driver=False, logging_level="warning", **here)
        except (ConnectionError, ValueError) as exc:
            raise RayUnavailableError(f"no Ray at {address or 'RAY_ADDRESS'}: {exc}") from exc
    try:
        remote = ray.remote(num_cpus=1, max_retries=2)(_on_a_node)
        for made in [remote.remote(job) for job in jobs]:
            version, figures = ray.get(made)
            if version != headway.__version__:
                msg = f"a node runs headway {version}, this is {headway.__version__}"
                raise RayUnavailableError(msg)
            yield figures
    finally:
        if owned:
            ray.shutdown()
