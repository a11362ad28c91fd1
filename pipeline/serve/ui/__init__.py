"""The page at /ui, for people: static files, and a JSON API that only they call.

`routes` has the addresses. A request passes `same_site`, which keeps other sites out; then `sessions` finds who is
signed in, by `context`, which holds what the handlers share. They are in `signing_in`, `browsing` (people, faces,
pictures), `correcting`, `reviewing` (pairs who may be one person), `recognising` and `store_page`. `people_list` keeps
the grid in its orders, `photos` cuts faces from an account's own photos, `answers` makes the JSON of people and faces.
The files in `static/` are served as they are (`static_files`).
"""
