"""Probes searched in a gallery of known people.

`measures` divides photos into gallery and probes, searches, and computes rank 1, FNIR and FPIR; `report` reads the
photos and shows the figures.
"""
