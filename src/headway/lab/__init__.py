"""The laboratory: engine model, serving simulator, virtual-time driver, traces and the demos."""
