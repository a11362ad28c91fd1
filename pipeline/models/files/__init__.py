"""The files of weights: the cache folder, downloads, converted sets."""
