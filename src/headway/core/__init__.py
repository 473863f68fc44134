"""The pure core: decisions without clocks, threads, sockets or third-party imports."""
