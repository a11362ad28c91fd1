"""Matching: who is this face? One exact score decides; everything else only makes it fast.

`score` defines that score, `calibration` a model's distance scale and false match rates. `references` indexes a
directory's vectors: frozen parts and a tail in memory, as `columns`. `match` searches them: float32 products
(`error_bound`), and for few faces an int8 copy (`int8_filter`), leave few candidates for the exact score. `group`
decides faces in sequence.
"""
