"""Pairs of one person told from pairs of two."""
