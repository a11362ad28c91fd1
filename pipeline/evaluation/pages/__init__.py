"""Figures as JSON, as lines in a terminal and as one HTML page.

`report` has the rows that all three are made of; `page` draws sections of them as HTML, `plots` makes curves and
histograms as SVG, `thumbnails` makes small pictures.
"""
