"""People: the persons of each directory in memory, and everything that recognises, inserts and changes them.

A shard of a run (`shards`, `duplicate_faces`) and a posted image (`posts`, `batcher`) become detected faces. `decide`
decides them on a view of their `directory`; `changes` says what a post changes. `corrections` decides what users,
requests and labels ask for, and `undo`, `regroup` and `labels` its large kinds. All of them build a `Change` (`store`),
which is committed and applied under the directory's lock (`locks`): a post itself, the others with a `correction_plan`
and its `reference_pictures`. `rules` and `merging` are asked by all. `changed_photos` moves what is known of a changed
photo's faces to the new ones. `views` says how answers show persons, in the `types` that the server turns into JSON;
`review` finds pairs of people who may be one. `service` is what the server calls; `background` works beside its
requests.
"""
