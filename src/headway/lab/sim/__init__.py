"""Fleets in virtual time: the production core before modelled endpoints, and others beside it.

    workload ──arrivals──▶ clients (core engines, or others) ──▶ endpoints (engines, faults)
                 ▲                                                     │
                 └────── the next turn of a session ◀───── records ────┘

`sites` says what stands there and what the policy believes, `scenarios` what happens and what has
to hold, `run` runs one contender once, `compare` all of them over seeds, `page` draws.
"""
