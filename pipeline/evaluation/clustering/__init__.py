"""Compares identities with labels.

`identities` finds the identity of each labelled photo in a store or a table, `measures` computes precision and recall
of the partition and its worst faults, `report` puts both together.
"""
