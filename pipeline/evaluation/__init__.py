"""Measures accuracy on labelled photos, and calibrates distances on them.

`pairs` (one to one), `identification` (one to many), `clustering` (identities against labels) and `detection` (boxes)
are the experiments of `facepipe evaluate`; each computes its figures and makes a report of them. `calibration` fits the
scale of the distances, `bench` compares the speed with facenet-pytorch's.

They read `pair_lists`, `labels` and `annotations`, and share `portraits` (embeddings), `pair_distances`, `statistics`
(error rates and intervals), `plots` and `report` (figures as JSON, lines and a page, and the photos that are left
out).
"""
