"""Pairs of one person told from pairs of two.

`lists` reads lists of pairs (LFW's format, CSV), `distances` computes the distances of listed or of all pairs,
`measures` the accuracy and the error rates (FMR, FNMR) from them, `report` puts them together.
"""
