"""Identification: searches probes in a gallery of enrolled people.

`measures` divides photos into gallery and probes, searches, and computes rank 1, FNIR and FPIR; `report` reads the
photos and shows the figures.
"""
