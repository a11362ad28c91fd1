"""Shared low-level parts: devices, threads, compiled loops, memory, stage times."""
