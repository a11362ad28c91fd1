"""The web UI at /ui: static files, and a JSON API for them alone.

`routes` has the addresses and serves the files. `same_site` keeps other sites out, `sessions` knows who is signed in,
and `context` makes a `Visit`: a session's request about a directory. Most handlers are functions of a visit: in
`browsing` (people, faces, pictures), `correcting`, `reviewing` (pairs who may be one person) and `store_page`. Those in
`signing_in` and `recognising` read their bodies themselves. `people_list` orders the grid, `photos` cuts faces from an
account's own photos, `answers` makes the JSON of people and faces.
"""
