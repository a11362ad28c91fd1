-- What must not be in the catalog: each query answers one text column that tells where a rule is broken, under the rule's
-- name. {g} is the current generation, {most} the number of directories that an account may have; `embedded` has the
-- face_id of each stored embedding of the generation.

-- two embeddings of one face
SELECT 'face ' || face_id FROM embedded GROUP BY face_id HAVING count(*) > 1;

-- a face without detection
SELECT 'face ' || face_id FROM core.faces
WHERE outcome <> 'removed' AND face_id NOT IN (SELECT face_id FROM core.detections WHERE generation = {g});

-- a removed face with a person, a detection or an embedding
SELECT 'face ' || face_id FROM core.faces
WHERE outcome = 'removed' AND (person_id IS NOT NULL
    OR face_id IN (SELECT face_id FROM core.detections) OR face_id IN (FROM embedded));

-- a removed face of a posted image
SELECT 'face ' || face_id FROM core.faces
WHERE outcome = 'removed' AND media_id IN (SELECT media_id FROM core.media WHERE run_id IS NULL);

-- a person with embeddings and without reference
SELECT 'person ' || person_id FROM core.persons
WHERE person_id NOT IN (SELECT person_id FROM core.reference_faces WHERE generation = {g})
    AND person_id IN (SELECT person_id FROM core.faces WHERE face_id IN (FROM embedded));

-- a reference that is another person's face
SELECT 'face ' || r.face_id FROM core.reference_faces r JOIN core.faces f USING (face_id)
WHERE generation = {g} AND f.person_id IS DISTINCT FROM r.person_id;

-- a reference without embedding
SELECT 'face ' || face_id FROM core.reference_faces
WHERE generation = {g} AND face_id NOT IN (FROM embedded);

-- a rejected face with a person or an embedding
SELECT 'face ' || face_id FROM core.faces
WHERE outcome = 'rejected' AND (person_id IS NOT NULL OR face_id IN (FROM embedded));

-- an inserted or matched face without person
SELECT 'face ' || face_id FROM core.faces
WHERE outcome IN ('inserted', 'matched') AND person_id IS NULL;

-- a face without landmarks that was not drawn, or that has an embedding
SELECT 'face ' || face_id FROM core.detections d JOIN core.faces f USING (face_id)
WHERE generation = {g} AND landmarks IS NULL AND (outcome <> 'drawn' OR face_id IN (FROM embedded));

-- a parent in another directory
SELECT 'person ' || p.person_id FROM core.persons p JOIN core.persons q ON q.person_id = p.parent_id
WHERE q.directory_id <> p.directory_id;

-- a cycle of parents
SELECT 'person ' || p.person_id FROM core.persons p JOIN main.persons v ON v.person_id = p.person_id::VARCHAR
WHERE p.parent_id IS NOT NULL AND v.root_person_id = v.person_id;

-- a fact that says nothing
SELECT 'fact of correction ' || correction_id FROM core.facts
WHERE NOT CASE
    WHEN kind IN ('is', 'is_not') THEN face_id IS NOT NULL AND person_id IS NOT NULL
    WHEN kind IN ('nobody', 'twice') THEN face_id IS NOT NULL
    ELSE kind = 'not_same' AND coalesce(person_id < other_id, false) END;

-- two facts that contradict each other
SELECT 'face ' || face_id FROM core.facts
WHERE kind IN ('is', 'nobody') GROUP BY face_id HAVING count(*) > 1
UNION ALL
SELECT 'face ' || face_id FROM core.facts
WHERE kind = 'twice' GROUP BY face_id HAVING count(*) > 1
UNION ALL
SELECT 'face ' || face_id FROM core.facts
WHERE kind IN ('is', 'is_not') GROUP BY face_id, person_id HAVING count(*) > 1;

-- a correction whose rows are not JSON
SELECT 'correction ' || correction_id FROM core.corrections
WHERE NOT (json_valid(before) AND json_valid(after));

-- a shard with another number of media than recorded
SELECT 'shard ' || s.shard || ' of run ' || s.run_id FROM core.shards s
WHERE s.media <> (SELECT count(*) FROM core.media m WHERE m.run_id = s.run_id AND m.shard = s.shard);

-- a shard with another number of faces than recorded
SELECT 'shard ' || s.shard || ' of run ' || s.run_id FROM core.shards s
WHERE s.faces <> (SELECT count(*) FROM core.faces f JOIN core.media m ON m.media_id = f.media_id
    WHERE m.run_id = s.run_id AND m.shard = s.shard);

-- media of a shard that is not committed
SELECT 'media ' || media_id FROM core.media m
WHERE run_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM core.shards s WHERE s.run_id = m.run_id AND s.shard = m.shard);

-- a posted image with a run's shard, row or path
SELECT 'media ' || media_id FROM core.media
WHERE run_id IS NULL AND (shard IS NOT NULL OR "row" IS NOT NULL OR path IS NOT NULL);

-- a posted image without a face
SELECT 'media ' || media_id FROM core.media
WHERE run_id IS NULL AND media_id NOT IN (SELECT media_id FROM core.faces);

-- a face of a posted image that is not a reference
SELECT 'face ' || face_id FROM core.faces
WHERE media_id IN (SELECT media_id FROM core.media WHERE run_id IS NULL)
    AND face_id NOT IN (SELECT face_id FROM core.reference_faces);

-- an embedding shard with fewer rows than faces
SELECT file FROM core.embedding_shards s
WHERE s.rows < (SELECT count(*) FROM core.embeddings e WHERE e.embedding_shard_id = s.embedding_shard_id);

-- a run or a shard number without the other
SELECT file FROM core.embedding_shards
WHERE (run_id IS NULL) <> (shard IS NULL);

-- a pending embedding of another size
SELECT 'face ' || face_id FROM core.pending_embeddings JOIN core.generations USING (generation)
WHERE octet_length(embedding) <> 4 * embedding_size;

-- an image that no reference shows
SELECT 'image ' || image_guid FROM core.objects
WHERE image_guid NOT IN (SELECT image_guid FROM core.reference_faces WHERE image_guid IS NOT NULL);

-- a photo that left of which something is stored
SELECT 'media ' || media_id FROM core.media m
WHERE status IN ('forgotten', 'replaced')
    AND (coalesce(path, sha256, pixel_hash, name, external_id, extra) IS NOT NULL
        OR media_id IN (SELECT media_id FROM core.files)
        OR media_id IN (SELECT media_id FROM core.faces WHERE outcome <> 'removed'));

-- a directory without identity
SELECT 'directory ' || directory_id FROM core.directories
WHERE directory_id NOT IN (SELECT directory_id FROM core.persons);

-- tags that are not a list
SELECT 'person ' || person_id FROM core.persons
WHERE tags IS NOT NULL AND try_cast(tags AS VARCHAR[]) IS NULL;

-- metadata that is not an object
SELECT 'person ' || person_id FROM core.persons
WHERE metadata IS NOT NULL AND (NOT json_valid(metadata) OR json_type(metadata) <> 'OBJECT');

-- an account with too many directories
SELECT 'account ' || account_id FROM core.directories
WHERE directory_id IN (SELECT directory_id FROM core.persons)
GROUP BY account_id HAVING count(*) > {most};

-- an account without an image key in an encrypted store, or with one in another
SELECT 'account ' || account_id FROM core.accounts
WHERE (image_key IS NULL) = (SELECT encrypted FROM core.store);

-- an image encrypted differently from its store
SELECT 'object ' || image_guid FROM core.objects
WHERE encrypted <> (SELECT encrypted FROM core.store);

-- an encrypted store without the id of its master key, or another store with one
SELECT 'master_key_id' FROM core.store
WHERE (master_key_id IS NULL) = encrypted;

-- a finished run with missing shards
SELECT 'run ' || run_id FROM core.runs r
WHERE state = 'finished' AND shards <> (SELECT count(*) FROM core.shards s WHERE s.run_id = r.run_id);

-- an erasure with a receipt that is no SHA-256
SELECT 'erasure of ' || deleted_at FROM core.erasures WHERE NOT regexp_full_match(receipt, '[0-9a-f]{{64}}');

-- a key of receipts that is no 32 bytes
SELECT 'core.store' FROM core.store WHERE NOT coalesce(regexp_full_match(receipt_key, '[0-9a-f]{{64}}'), false);
