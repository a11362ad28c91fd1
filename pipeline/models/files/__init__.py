"""Weight files: the cache folder, downloads, converted sets."""
