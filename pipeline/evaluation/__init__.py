"""Measures accuracy on labelled photos, and calibrates distances on them.

`pairs` (one to one), `identification` (one to many), `clustering` (identities against labels) and `detection` (boxes)
are the experiments of `facepipe evaluate`; each computes its figures in `measures` and shows them in `report`.
`calibration` fits the scale of the distances, `bench` compares the speed with facenet-pytorch's. They share `photos`
(labels and embeddings), `statistics` (error rates and intervals) and `report` (figures as JSON, lines and a page, and
the photos that are left out).
"""
