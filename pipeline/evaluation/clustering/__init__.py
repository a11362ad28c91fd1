"""Compares identities with labels.

`measures` computes precision and recall of the partition and its worst faults; `report` finds the identity of each
labelled photo, in a store or a table, and shows them.
"""
