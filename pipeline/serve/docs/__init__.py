"""The description of the HTTP contract that a server publishes.

`openapi` builds the OpenAPI document from `schemas` (the JSON of answers and bodies) and `examples`; `page` turns it
into the HTML of /docs and holds the two handlers. tests/serve/test_schema.py checks a server against it.
"""
