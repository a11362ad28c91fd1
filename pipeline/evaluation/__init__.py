"""How good the decisions are: experiments on labelled photos, and the calibration that follows from them.

`pairs` (one to one), `identification` (one to many), `clustering` (identities against labels) and `detection` (boxes)
are the experiments of `facepipe evaluate`; each computes its figures in `measures` and shows them in `report`.
`calibration` fits what distances mean, `bench` compares the speed with facenet-pytorch's. They share `photos` (labels
and embeddings), `statistics` (error rates and intervals) and `pages` (rows as JSON, lines and a page).
"""
