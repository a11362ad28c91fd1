"""Images to faces.

`sources` lists a run's files. `engine` reads and decodes them (`images`) and passes `batches` to the `extractor`, which
detects (`detection`), crops (`align`, `stored_picture`), rates (`quality`) and embeds (`embed`) faces. `rows` defines
the tables.
"""
