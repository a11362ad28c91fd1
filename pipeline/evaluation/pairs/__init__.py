"""Verification: does a pair of photos show one person or two?

`lists` reads lists of pairs (LFW's format, CSV), `distances` computes the distances of listed or of all pairs,
`measures` the accuracy and the error rates (FMR, FNMR) from them, `report` puts them together.
"""
