"""Reports for people: single HTML files that need no network, no script and no other file.

`page` writes one by a template of Jinja2, which escapes all it is given. The report of a run or of a whole store:
`page_data` asks the store, with `doubtful_pairs`; `pictures` shows faces; `contents` puts it together for
`templates/run.html`. `templates/evaluation.html` is the report of an experiment; `page.html` is what both are made of.
"""
