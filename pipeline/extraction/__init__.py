"""Images to faces.

`sources` lists the files of a run. `engine` reads and decodes them in threads (`images`) and hands `batches` of them to
the `extractor`, which finds the faces (`detection`), cuts them out (`align`, `stored_picture`), rates them (`quality`)
and embeds them (`embed`). `rows` holds the tables that go in and come out.
"""
