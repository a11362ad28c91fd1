"""Measures accuracy on labelled photos, and calibrates distances on them.

The experiments of `facepipe evaluate` are `pairs` (one to one), `identification` (one to many), `clustering`
(identities against labels) and `detection` (boxes). `calibration` fits the scale of the distances; `bench` compares the
speed with facenet-pytorch's.

`pair_lists`, `labels` and `annotations` read the input. Shared: `portraits` (embeddings), `pair_distances`,
`statistics` (error rates and intervals), `report` (figures as JSON, lines and a page with plots).
"""
