"""Pages: single HTML files that need no network, no script and no other file.

`sections` is what can be on one, `pictures` makes plots and small pictures, and `page` writes it by a template of
Jinja2, which escapes all it is given.
"""
