"""Folders, bucket prefixes and manifests to rows.

`scan` makes one ImageRef per image file or manifest row, and lists prefixes. `folder` walks folders, `manifest_file`
reads CSV, JSON Lines or Parquet, `selection` decides which files are included.
"""
