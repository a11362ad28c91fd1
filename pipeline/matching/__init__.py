"""Matching: who is this face? One exact score decides everything; all else only makes it fast.

`score` is that number, and the words for it; `calibration` says what a model's distances mean, and what to expect of a
false match rate. `references` holds the vectors of a directory, with `identical_images` of them: rows in memory and of
`frozen` parts, one after another (`columns`). `match` searches them: matrix products with a proven `error_bound`, and
for few faces an int8 copy before them (`int8_filter`, compiled in `int8_kernels`), leave few candidates for the exact
score. `group` decides one face after another, each a match or a new identity.
"""
