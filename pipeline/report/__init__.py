"""Reports for people: single HTML files that need no network, no script and no other file.

`page` is what can be on one and writes it by a template of Jinja2, which escapes all it is given. The report of a run
or of a whole store: `page_data` asks the store, with `doubtful_pairs`; `pictures` shows faces; `contents` puts it
together.
"""
