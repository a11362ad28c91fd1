"""Labelled photos, and what was found in them."""
