"""A scripted year of an archive: what happens to its files and to its people, and a model of what is then in the store.

`script` says what happens, `archive` does it to real files, `model` predicts the store as the documents have it
(docs/nightly.md, docs/people.md, docs/decisions), and `compare` reads the store as users can. None of it imports what
it predicts.
"""
