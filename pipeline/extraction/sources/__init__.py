"""Folders and manifests to rows."""
