"""A store. Other packages import only from here.

`accounts`, `runs` etc. are modules of queries; `LocalStore.ask` runs them on the catalog's thread.
"""

from pipeline.store import receipts, traces
from pipeline.store.catalog import (
    accounts,
    corrections,
    directories,
    erasures,
    forgotten,
    media,
    overview,
    pages,
    people,
    persons,
    runs,
)
from pipeline.store.catalog.connection import Catalog, cleaning_up
from pipeline.store.catalog.opening import has_store
from pipeline.store.catalog.references import reference_origins, segment_files
from pipeline.store.catalog.runs import FINISHED, SCANNING
from pipeline.store.commits.commit import FACE_COLUMNS
from pipeline.store.commits.shard import PreparedShard
from pipeline.store.files.durable import PRIVATE_FILE, Folder, disk_errors, sync
from pipeline.store.files.encryption import MasterKey
from pipeline.store.files.lock import make_token, read_token, remove_token
from pipeline.store.files.objects import FOLDER_DIGITS, Row, open_image, read_object
from pipeline.store.files.run_files import RunFiles
from pipeline.store.files.segments import Segment
from pipeline.store.files.shard_folder import ShardFolder, ShardUnusable, is_left, remove_builds
from pipeline.store.files.shards import (
    damaged_file,
    embedding_rows,
    handed_over,
    manifest_file,
    read_embeddings,
    read_handed_over,
    report_file,
    vector_bytes,
    vectors_of,
)
from pipeline.store.keyed_digests import ERASED
from pipeline.store.local import LocalStore
from pipeline.store.master_key import load_master_key, load_or_make_master_key
from pipeline.store.records import *
from pipeline.store.schema import MAX_DIRECTORIES
