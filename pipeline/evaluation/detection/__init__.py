"""Detected faces compared with annotated boxes."""
