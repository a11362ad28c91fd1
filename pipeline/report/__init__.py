"""Reports for people: single HTML files without network access, scripts or other files.

`page` renders them with Jinja2 templates, which escape all values. The report of a run or of a whole store: `page_data`
queries the store; `pictures` shows faces; `contents` fills `templates/run.html`.
`templates/evaluation.html` is the report of an experiment; `page.html` is common to both.
"""
