"""Compares detected faces with annotated boxes.

`annotations` reads XML and CSV files of boxes, `detections` runs the detector or reads a store, `measures` computes
recall, precision and average precision, `report` puts them together.
"""
