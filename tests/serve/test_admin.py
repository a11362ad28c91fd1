"""While a server holds a store, every other command works through its admin port, with the same results."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import pipeline.run.stages
from pipeline.errors import AccountExists, AccountUnknown, Interrupted, ServerUnreachable, StoreLocked
from pipeline.evaluation.portraits import stored_portraits
from pipeline.extraction.extractor import BatchExtractor
from pipeline.jobs.store import open_store
from pipeline.jobs.wire import TOKEN_HEADER
from pipeline.people.types import PostRequest
from pipeline.run.run import RunRequest, extract, group, run, scan
from pipeline.store import local
from pipeline.store.catalog import files
from pipeline.store.catalog.connection import Catalog
from pipeline.store.files import faults
from pipeline.store.local import LocalStore
from pipeline.store.records import KNOWN_FILES_SCHEMA
from tests.cli.report import facepipe
from tests.forking import Forker
from tests.identities.planted import listed
from tests.integration.conftest import RecordedProgress, loaded_once, write_photos  # noqa: F401
from tests.integration.snapshot import assert_whole, snapshot
from tests.serve.conformance.launch import server_order
from tests.serve.connecting import Clients, ended
from tests.serve.served import SETTINGS, Served, serving

pytestmark = pytest.mark.usefixtures("loaded_once")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, hopper_path: Path, astronaut_path: Path) -> Path:
    folder = tmp_path_factory.mktemp("admin") / "photos"
    write_photos(folder, hopper_path, astronaut_path)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, photos: Path, extractor: BatchExtractor) -> Path:
    """A store that a run filled without a server."""
    store = tmp_path_factory.mktemp("plain") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.run.stages, "load_extractor", lambda *_: extractor)
        run(_request(photos, store))
    return store


@pytest.fixture
def store(plain: Path, tmp_path: Path) -> Path:
    """A filled store of the test's own."""
    return Path(shutil.copytree(plain, tmp_path / "store"))


@pytest.fixture
def served(store: Path, extractor: BatchExtractor) -> Iterator[Served]:
    with serving(store, extractor) as server:
        yield server


def _request(source: Path | None, store: Path, **changes: Any) -> RunRequest:
    return dataclasses.replace(RunRequest(source=source, store=store, settings=SETTINGS), **changes)


def _run(source: Path, store: Path) -> Any:
    return run(_request(source, store))


def _decisions(store: Path) -> dict[str, Any]:
    """The snapshot without the models' numbers, which depend on the number of threads."""
    content = snapshot(store)
    faces = [(path, ordinal, outcome, who) for path, _, ordinal, outcome, _, _, who, *_ in content["faces"]]
    return {"faces": faces, **{name: content[name] for name in ("media", "persons", "runs", "objects")}}


def _facepipe(*words: object) -> dict[str, Any]:
    result = facepipe(*words, "--json")
    answer = json.loads(result.stdout)
    assert isinstance(answer, dict)
    return {**answer, "exit_code": result.exit_code}


# Runs


@pytest.mark.slow
def test_a_run_through_the_server_equals_a_run_without(
    photos: Path, plain: Path, extractor: BatchExtractor, tmp_path: Path
) -> None:
    with serving(tmp_path / "store", extractor) as server:
        report = _run(photos, tmp_path / "store")
        assert sum(map(len, server.service.directories.all())) == 2
        again = _run(photos, tmp_path / "store")
    assert (report.persons, report.images, report.work.decoded) == (2, 10, 9)
    assert (again.already_in, again.work.decoded) == (10, 0)
    assert snapshot(tmp_path / "store") == snapshot(plain)
    assert_whole(tmp_path / "store")


@pytest.mark.slow
def test_a_second_run_through_the_server_knows_what_moved_and_what_went(
    photos: Path, extractor: BatchExtractor, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(photos, tmp_path / "photos"))
    _run(source, tmp_path / "alone")
    shutil.copytree(tmp_path / "alone", tmp_path / "served")
    (source / "a1.jpg").rename(source / "z.jpg")
    (source / "b1.jpg").unlink()
    with serving(tmp_path / "served", extractor):
        through = _run(source, tmp_path / "served")
    alone = _run(source, tmp_path / "alone")
    assert (through.moved, through.vanished, through.already_in, through.new) == (1, 1, 8, 0)
    assert (alone.moved_files, alone.vanished_files) == (through.moved_files, through.vanished_files)
    assert snapshot(tmp_path / "served") == snapshot(tmp_path / "alone")
    assert_whole(tmp_path / "served")


@pytest.mark.slow
def test_the_stages_work_through_the_server(
    photos: Path, plain: Path, extractor: BatchExtractor, tmp_path: Path
) -> None:
    with serving(tmp_path / "store", extractor):
        scan(_request(photos, tmp_path / "store"))
        extract(_request(None, tmp_path / "store"))
    # A run that began with one server goes on with another.
    with serving(tmp_path / "store", extractor):
        assert group(_request(None, tmp_path / "store")).persons == 2
    assert snapshot(tmp_path / "store") == snapshot(plain)


@pytest.mark.slow
def test_ctrl_c_finishes_the_shard_and_the_same_command_goes_on(
    photos: Path, plain: Path, extractor: BatchExtractor, tmp_path: Path
) -> None:
    stop = threading.Event()

    class StopSoon(RecordedProgress):
        def advance(self, count: int = 1) -> None:
            if self.phases[-1] == "run":
                stop.set()

    with serving(tmp_path / "store", extractor):
        with pytest.raises(Interrupted, match="1 of 4 shards"):
            run(_request(photos, tmp_path / "store"), StopSoon(), stop)
        assert _run(photos, tmp_path / "store").persons == 2
    assert snapshot(tmp_path / "store") == snapshot(plain)


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    with Forker("tests.serve.served") as forker:
        yield forker


@pytest.mark.slow
@pytest.mark.parametrize("point", ["commit_shard.begin", "commit_shard.commit", "commit_shard.committed"])
def test_the_server_is_killed_and_the_same_command_finishes(
    photos: Path, plain: Path, forker: Forker, tmp_path: Path, point: str
) -> None:
    server = forker.start(store=str(tmp_path / "store"), fault=point, nth=2)
    with pytest.raises(ServerUnreachable) as caught:
        _run(photos, tmp_path / "store")
    assert server.wait().status == -signal.SIGKILL
    assert caught.value.exit_code == 52
    assert _run(photos, tmp_path / "store").persons == 2  # its token and its LOCK's text are still there
    assert snapshot(tmp_path / "store") == snapshot(plain)
    assert_whole(tmp_path / "store")


@pytest.mark.slow
def test_the_run_is_killed_and_the_same_command_finishes(
    photos: Path, plain: Path, extractor: BatchExtractor, forker: Forker, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with serving(store, extractor) as server:
        # Two shards at most wait to be committed: when the fourth is written, the first is in.
        killed = forker.start(source=str(photos), store=str(store), fault="shard.rename", nth=4)
        assert killed.wait().status == -signal.SIGKILL
        assert sum(map(len, server.service.directories.all())) > 0
        assert _run(photos, store).persons == 2
    assert _decisions(store) == _decisions(plain)
    assert_whole(store)


@pytest.mark.slow
def test_posts_go_on_while_shards_are_handed_over(
    photos: Path, plain: Path, extractor: BatchExtractor, tmp_path: Path
) -> None:
    """The same people, posted and enrolled at once, become the same two identities."""
    with serving(tmp_path / "store", extractor) as server:
        with open_store(tmp_path / "store", command="test") as opened:
            account = opened.create_account("default", None)
        running = threading.Event()

        def post(name: str) -> None:
            request = PostRequest(name=name, external_id=name, update=False)
            while running.is_set():
                server.service.post(account, "main", (photos / name).read_bytes(), request)

        threads = [threading.Thread(target=post, args=(name,)) for name in ("a1.jpg", "b1.jpg", "g1.webp")]
        running.set()
        for thread in threads:
            thread.start()
        try:
            report = _run(photos, tmp_path / "store")
        finally:
            running.clear()
            for thread in threads:
                thread.join()
        assert (report.persons, report.images) == (2, 10)
        assert len(listed(server.service, account, "main")) == 2
        with open_store(tmp_path / "store", command="test") as opened:
            assert opened.server is not None
            assert opened.check().problems == []
    assert_whole(tmp_path / "store")


def test_a_run_knows_a_picture_that_was_posted_in_another_format(
    served: Served, store: Path, tmp_path: Path, photos: Path
) -> None:
    """The run's process has the store's key from the server: at T = 0 nothing matches but the same pixels."""
    with open_store(store, command="test") as opened:
        account = opened.accounts()[0].account_id
    served.service.post(account, "other", (photos / "h1.bmp").read_bytes(), PostRequest(name="A", external_id="1"))
    (tmp_path / "same").mkdir()
    Image.open(photos / "h1.bmp").save(tmp_path / "same" / "h1.png")
    settings = dataclasses.replace(SETTINGS, match=dataclasses.replace(SETTINGS.match, threshold=0.0))
    report = run(_request(tmp_path / "same", store, settings=settings, directory="other"))
    assert (report.work.decoded, report.outcomes) == (1, {"matched": 1})
    assert len(listed(served.service, account, "other")) == 1


def test_only_one_process_does_runs(served: Served, photos: Path, store: Path) -> None:
    with open_store(store, command="first") as first, first.lock_runs("facepipe run"):
        with pytest.raises(StoreLocked, match=f"process {os.getpid()} .*facepipe run"):
            _run(photos, store)
        assert [row.account for row in first.accounts()] == ["default"]  # everything else goes on
    assert _run(photos, store).already_in == 10


@pytest.mark.slow
def test_a_run_into_an_encrypted_store_leaves_nothing_readable(
    photos: Path, extractor: BatchExtractor, tmp_path: Path
) -> None:
    security = dataclasses.replace(SETTINGS.security, encrypt=True, master_key_file=str(tmp_path / "master.key"))
    settings = dataclasses.replace(SETTINGS, security=security)
    with serving(tmp_path / "store", extractor, settings):
        scan(_request(photos, tmp_path / "store"))
        extract(_request(None, tmp_path / "store"))
        shards = sorted((tmp_path / "store" / "runs").rglob("*.parquet"))
        # Only the manifest is plain.
        assert [path.read_bytes()[:4] == b"PAR1" for path in shards] == [True, False, False, False, False]
        assert group(_request(None, tmp_path / "store")).persons == 2


# Other commands


@pytest.mark.slow
def test_commands_answer_the_same_with_and_without_a_server(
    photos: Path, store: Path, extractor: BatchExtractor, tmp_path: Path
) -> None:
    def all_commands(to: Path) -> list[dict[str, Any]]:
        return [
            _facepipe("search", photos / "c-both.png", "--store", store),
            _facepipe("search", photos / "e-noise.png", "--store", store),
            _facepipe("search", photos / "f-broken.jpg", "--store", store),
            _facepipe("check", "--store", store),
            _facepipe("account", "list", "--store", store),
            _facepipe("directory", "list", "--store", store),
            _facepipe("directory", "delete", "none", "--store", store, "--yes"),
            _facepipe("account", "create", "default", "--store", store),
            _facepipe("account", "password", "nobody", "--store", store),
            {**_facepipe("export", "--store", store, "--to", to), "to": None},
        ]

    without = all_commands(tmp_path / "a")
    with serving(store, extractor):
        through = all_commands(tmp_path / "b")
    assert through == without
    assert [answer["exit_code"] for answer in through] == [0, 0, 1, 0, 0, 0, 51, 47, 46, 0]
    for name in ("media", "faces", "persons", "facts", "embeddings"):
        file = f"{name}.parquet"
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_what_changes_is_seen_by_the_service(served: Served, store: Path) -> None:
    with open_store(store, command="test") as opened:
        account = opened.create_account("ann", None)
        opened.set_password("ann", "scrypt$...")
        assert served.changed_passwords == ["ann"]
        default, ann = (row.account_id for row in opened.accounts())
        assert ann == account
        assert sum(map(len, served.service.directories.all())) == 0  # read when first used
        assert len(listed(served.service, default, "main")) == 2
        opened.delete_all(default, "main")
        assert [row.directories for row in opened.accounts()] == [[], []]
    assert listed(served.service, default, "main") == []


def test_errors_keep_their_class_and_their_message(served: Served, store: Path) -> None:
    with open_store(store, command="test") as opened:
        with pytest.raises(AccountExists, match='already has an account "default"'):
            opened.create_account("default", None)
        with pytest.raises(AccountUnknown, match="Accounts: default") as caught:
            opened.set_password("nobody", "scrypt$...")
        assert caught.value.fields["known"] == "default"


def test_a_check_does_not_report_an_image_that_is_being_stored(served: Served, store: Path, photos: Path) -> None:
    """The image of a post is on disk before its transaction: a check in between must not report or remove it."""
    written, go_on = threading.Event(), threading.Event()
    with open_store(store, command="test") as opened:
        account = opened.accounts()[0].account_id

        def hook(name: str) -> None:
            if name == "object.fsync_folder":
                written.set()
                assert go_on.wait(60)

        def post() -> None:
            data = (photos / "a1.jpg").read_bytes()
            served.service.post(account, "other", data, PostRequest(name="A", external_id="1"))

        faults.install(hook)
        posting = threading.Thread(target=post)
        posting.start()
        try:
            assert written.wait(60)
            assert len(list((store / "objects").rglob("*.tmp"))) == 0
            checked = opened.check(repair=True)
        finally:
            go_on.set()
            posting.join()
            faults.install(None)
        assert (checked.problems, checked.repaired) == ([], [])
        assert opened.check().problems == []
        assert len(listed(served.service, account, "other")) == 1


def test_a_running_server_takes_a_new_password_at_once(store: Path, forked_servers: Forker, tmp_path: Path) -> None:
    with forked_servers.running(**server_order(store, tmp_path / "log", environ=os.environ)) as server:
        first = _facepipe("account", "password", "default", "--store", store)["password"]
        with httpx.Client(base_url=json.loads(server.ready)["url"], trust_env=False) as http:

            def people(password: str) -> httpx.Response:
                headers = {"X-RPC-DIRECTORY": "main", "X-RPC-AUTHORIZATION": f"default:{password}"}
                return http.get("/people", headers=headers)

            assert len(people(first).json()["people"]) == 2
            second = _facepipe("account", "password", "default", "--store", store)["password"]
            assert (people(first).status_code, people(second).status_code) == (401, 200)
            assert http.get("/admin/hello").status_code == http.post("/admin/shards").status_code == 404
    assert not (store / "admin.token").exists()
    assert_whole(store)


def test_an_evaluation_gets_the_same_embeddings_through_the_server(
    photos: Path, store: Path, extractor: BatchExtractor
) -> None:
    paths = [str(file) for file in sorted(photos.iterdir())]
    with open_store(store, command="test") as opened:
        direct = stored_portraits(opened, paths)
    with serving(store, extractor), open_store(store, command="test") as remote:
        assert remote.server is not None
        through = stored_portraits(remote, paths)
    assert (through.paths, through.skipped) == (direct.paths, direct.skipped)
    assert len(direct.paths) > 5
    np.testing.assert_array_equal(through.embeddings, direct.embeddings)


def test_known_files_are_streamed_a_page_at_a_time(
    served: Served, store: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server holds of them is a page, and what the command is to hold one batch."""
    asked: list[int] = []
    read = files.known_files

    def known_files(catalog: Catalog, source: str, account_id: int, after: int, limit: int) -> pa.Table:
        asked.append(after)
        return read(catalog, source, account_id, after, limit)

    with open_store(store, command="test") as opened:
        at_once = opened.known_files(str(photos), 1).read_all()
        monkeypatch.setattr(local, "_KNOWN_AT_ONCE", 3)
        monkeypatch.setattr(files, "known_files", known_files)
        batches = list(opened.known_files(str(photos), 1))
        assert opened.known_files("/elsewhere", 1).read_all().schema == KNOWN_FILES_SCHEMA
    assert [len(batch) for batch in batches] == [3, 3, 3, 1]
    assert pa.Table.from_batches(batches) == at_once
    assert asked[:5] == [-1, 3, 6, 9, 10]


def test_a_stream_that_breaks_off_is_no_end(store: Path, extractor: BatchExtractor) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"path": ["a"]})
        raise RuntimeError

    with serving(store, extractor), open_store(store, command="test") as opened, pytest.MonkeyPatch.context() as patch:
        batches = pa.RecordBatchReader.from_batches(pa.schema([("path", pa.string())]), broken())
        patch.setattr(LocalStore, "read_table", lambda *_: batches)
        received = iter(opened.table("media"))
        assert next(received)["path"].to_pylist() == ["a"]
        with pytest.raises(ServerUnreachable):
            next(received)


# Who may use the admin port


def test_the_admin_port_lets_only_this_user_of_this_machine_in(served: Served, store: Path) -> None:
    token = (store / "admin.token").read_text().strip()
    assert stat.S_IMODE((store / "admin.token").stat().st_mode) == 0o600
    assert served.url.startswith("http://127.0.0.1:")
    with httpx.Client(base_url=served.url, trust_env=False) as http:

        def hello(headers: dict[str, Any]) -> int:
            return http.get("/admin/hello", headers=headers).status_code

        assert hello({TOKEN_HEADER: token}) == 200
        assert hello({TOKEN_HEADER: token, "Host": "localhost:1"}) == 200
        assert hello({}) == 403
        assert hello({TOKEN_HEADER: token[:-1]}) == 403
        assert hello({TOKEN_HEADER: b"\xe9" + token[1:].encode()}) == 403
        assert hello({TOKEN_HEADER: token, "Host": "evil.example"}) == 403
        assert hello({TOKEN_HEADER: token, "Host": "10.0.0.1"}) == 403
        assert http.get("/docs").status_code == http.get("/openapi.json").status_code == 403
        call = {"headers": {TOKEN_HEADER: token}, "content": b"{}"}
        assert http.post("/admin/call/close", **call).json()["error"] == "MethodUnknown"
        assert http.post("/admin/call/read", **call).status_code == 405
        assert http.post("/admin/call/credentials", **call).status_code == 405
        assert http.post("/admin/call/submit", **call).status_code == 405
        assert http.post("/admin/call/release", **call).status_code == 405
        assert http.post("/admin/call/accounts", **call).status_code == 200
        assert http.post("/admin/call/sources", **call).status_code == 400
        for content in (b"{", b"[]", b"[7]", b'{"account_id": "7"}', b'{"account_id": 1, "self": 1}', b'{"x": 1}'):
            asked = http.post("/admin/call/sources", headers=call["headers"], content=content)
            assert (asked.status_code, asked.json()["error"]) == (400, "BodyInvalid")


def test_strangers_cannot_take_all_connections_of_the_admin_port(served: Served, store: Path) -> None:
    """Another user of the machine connects, and has no token."""
    with ExitStack() as stack:
        strangers = Clients(urlsplit(served.url).port or 0, stack)
        connections = [strangers.connect() for _ in range(300)]
        with open_store(store, command="test") as opened:
            assert [row.account for row in opened.accounts()] == ["default"]
        assert sum(ended(connection) for connection in connections[:236]) == 236


def test_the_admin_port_is_announced_and_taken_down(store: Path, extractor: BatchExtractor) -> None:
    with serving(store, extractor) as server:
        assert json.loads((store / "LOCK").read_text())["url"] == server.url
        server.close_port()
        assert not (store / "admin.token").exists()
        with pytest.raises(StoreLocked, match="serve"):
            open_store(store, command="test")
    with open_store(store, command="test") as opened:
        assert opened.server is None


@pytest.mark.parametrize("token", [None, "abc"])
def test_a_server_that_does_not_answer_is_named(store: Path, token: str | None) -> None:
    with LocalStore.open(store, command="serve") as client:
        client.announce("http://127.0.0.1:9")
        if token:
            (store / "admin.token").write_text(token)
        with pytest.raises(ServerUnreachable, match="http://127.0.0.1:9.*refused" if token else "token") as caught:
            open_store(store, command="test")
    assert caught.value.exit_code == 52


@pytest.mark.slow
def test_the_address_of_another_machine_is_not_called(store: Path) -> None:
    with LocalStore.open(store, command="serve") as client:
        client.announce("http://127.0.0.1:9")
        holder = json.loads((store / "LOCK").read_text())
        (store / "LOCK").write_text(json.dumps({**holder, "host": "elsewhere"}))
        with pytest.raises(StoreLocked, match="elsewhere"):
            open_store(store, command="test")
