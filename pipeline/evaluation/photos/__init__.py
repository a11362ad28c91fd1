"""Labelled photos and their faces.

`labels` reads who is on which photo and which labels are wrong, `portraits` reads or computes one embedding for each.
"""
