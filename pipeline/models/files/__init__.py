"""Weights as files: the cache folder, downloads, converted sets."""
