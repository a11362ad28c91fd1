"""People: the persons of each directory in memory, and everything that recognises, inserts and changes them.

A shard of a run (`shards`, `duplicate_faces`) and a posted image (`posts`, `batcher`) become sightings of faces, which
`decide` decides on a view of their `directory` and commits under its lock (`locks`). `changed_photos` says what the
earlier faces of a changed photo leave to the later ones, `same_faces` which are the same. `selection` says which faces
a post is about, `changes` what it changes. `merging` says which records a merge joins, `rules` what every change of
people is asked, `views` how answers show persons, in the `types` that the server turns into JSON. `review` finds pairs
of people who may be one. `service` is the front: all that the server calls; `background` does what a server does beside
its requests.
"""
