"""Bytes to pixels, and pixels resampled."""
