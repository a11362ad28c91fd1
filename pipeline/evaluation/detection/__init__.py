"""Compares detected faces with annotated boxes.

`annotations` reads XML and CSV files of boxes, `measures` computes recall, precision and average precision, `report`
runs the detector or reads a store, and shows them.
"""
