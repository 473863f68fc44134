"""Answers for several calls: requests that identical calls share, and answers that are kept.

No I/O, no event loop, no thread of its own (but for a store of the application's: see `aside`).
"""
