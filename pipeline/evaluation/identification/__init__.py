"""Probes searched in a gallery."""
