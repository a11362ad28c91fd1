"""Fits the scale of a model's distances to labelled photos.

`fit` finds the exponent and the thresholds from the distances of pairs; `report` reads the photos, calls it, and
writes the file that a new store takes.
"""
