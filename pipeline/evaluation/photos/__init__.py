"""Labelled photos and what is found on them.

`labels` reads who is on which photo, `portraits` fetches or makes one embedding for each, `decoded` decodes photos in
batches, `skipped` counts the photos that are left out.
"""
