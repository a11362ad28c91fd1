"""People: recognises, inserts and changes the persons of each directory.

`decide` decides the faces of shards (`shards`, `duplicate_faces`) and posts (`posts`, `batcher`) on a view of their
`directory`. `corrections` handles corrections; `undo`, `regroup` and `labels` are the large kinds. All build a `Change`
(`store`), which is committed and applied under the directory's lock (`locks`): posts with `changes`, the others with a
`correction_plan` and `reference_pictures`. `changed_photos` keeps persons when photos change, `contradictions` names
constraints that contradict each other, and `suggestions` finds people who may be one. The server calls `service`, which
uses `background`.
"""
