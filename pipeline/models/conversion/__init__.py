"""Conversion of published weight files to tensors."""
