"""What was forgotten is known again, by those who have the store's key only."""

from __future__ import annotations

import hashlib
import hmac

from pipeline.store.catalog import forgotten
from pipeline.store.local import LocalStore
from tests.store.store_samples import sha


def test_what_was_forgotten_is_known_again(client: LocalStore) -> None:
    ann, bob = client.create_account("ann", None), client.create_account("bob", None)

    def remember(account: int, kind: str, *texts: str) -> None:
        def work(catalog: forgotten.Catalog) -> None:
            with catalog.transaction("change"):
                forgotten.remember(catalog, account, kind, texts)

        client.submit(work)

    remember(ann, forgotten.PATH, "/photos/ä.jpg", "/photos/b.jpg")
    remember(ann, forgotten.PATH, "/photos/b.jpg", "/photos/c.jpg")  # one of them again
    face = forgotten.face_text(sha("x"), 1)
    remember(ann, forgotten.FACE, face)
    asked = ["/photos/ä.jpg", "/photos/c.jpg", "/photos/d.jpg", face]

    def found(account: int, kind: str) -> set[str]:
        return client.submit(lambda catalog: forgotten.forgotten(catalog, account, kind, asked))

    assert found(ann, forgotten.PATH) == {"/photos/ä.jpg", "/photos/c.jpg"}
    assert found(ann, forgotten.FACE) == {face}
    assert found(ann, forgotten.BYTES) == found(bob, forgotten.PATH) == set()
    rows = client.read("SELECT kind, digest FROM core.forgotten").to_pylist()
    assert len(rows) == 4
    key = bytes.fromhex(client.read("SELECT fact_key FROM core.store")["fact_key"][0].as_py())
    expected = hmac.new(key, f"face:{face}".encode(), hashlib.sha256).hexdigest()  # as FORMAT.md says it
    assert [row["digest"] for row in rows if row["kind"] == "face"] == [expected]
