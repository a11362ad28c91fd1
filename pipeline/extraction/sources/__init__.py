"""Folders, prefixes of buckets and manifests to rows.

`scan` turns the source of a run into one ImageRef per image file or manifest row; it lists prefixes itself. `folder`
walks a folder for it, `manifest_file` reads a CSV, JSON Lines or Parquet file, and `selection` says which of their
files are taken.
"""
