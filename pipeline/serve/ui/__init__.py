"""The page at /ui, for people: static files, and a JSON API that only they call.

`routes` has the addresses and serves the files. A request passes `same_site`, which keeps other sites out. Then
`sessions` finds who is signed in, and `context` makes a `Visit`: who asks about which directory. Most handlers are
functions of a visit: in `browsing` (people, faces, pictures), `correcting`, `reviewing` (pairs who may be one person)
and `store_page`. Those in `signing_in` and `recognising` read their bodies themselves. `people_list` keeps the grid in
its orders, `photos` cuts faces from an account's own photos, `answers` makes the JSON of people and faces.
"""
