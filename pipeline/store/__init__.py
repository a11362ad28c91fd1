"""A store. Other packages import only from here.

`accounts`, `runs` etc. are modules of queries; `LocalStore.ask` runs them on the catalog's thread.
"""

from pipeline.store.catalog import accounts as accounts
from pipeline.store.catalog import changes as changes
from pipeline.store.catalog import corrections as corrections
from pipeline.store.catalog import forgotten as forgotten
from pipeline.store.catalog import media as media
from pipeline.store.catalog import overview as overview
from pipeline.store.catalog import pages as pages
from pipeline.store.catalog import people as people
from pipeline.store.catalog import persons as persons
from pipeline.store.catalog import runs as runs
from pipeline.store.catalog.accounts import check_password as check_password
from pipeline.store.catalog.accounts import check_user_id as check_user_id
from pipeline.store.catalog.accounts import generate_password as generate_password
from pipeline.store.catalog.accounts import hash_password as hash_password
from pipeline.store.catalog.accounts import verify_password as verify_password
from pipeline.store.catalog.connection import Catalog as Catalog
from pipeline.store.catalog.connection import cleaning_up as cleaning_up
from pipeline.store.catalog.opening import has_store as has_store
from pipeline.store.catalog.pages import PAGE as PAGE
from pipeline.store.catalog.references import reference_origins as reference_origins
from pipeline.store.catalog.references import segment_files as segment_files
from pipeline.store.catalog.runs import FINISHED as FINISHED
from pipeline.store.catalog.runs import SCANNING as SCANNING
from pipeline.store.commits.commit import FACE_COLUMNS as FACE_COLUMNS
from pipeline.store.commits.shard import PreparedShard as PreparedShard
from pipeline.store.files.crypto import MasterKey as MasterKey
from pipeline.store.files.durable import Folder as Folder
from pipeline.store.files.durable import disk_errors as disk_errors
from pipeline.store.files.lock import make_token as make_token
from pipeline.store.files.lock import read_token as read_token
from pipeline.store.files.lock import remove_token as remove_token
from pipeline.store.files.objects import FOLDER_DIGITS as FOLDER_DIGITS
from pipeline.store.files.objects import Row as Row
from pipeline.store.files.objects import open_image as open_image
from pipeline.store.files.objects import read_object as read_object
from pipeline.store.files.run_files import RunFiles as RunFiles
from pipeline.store.files.segments import Segment as Segment
from pipeline.store.files.shard_folder import ShardFolder as ShardFolder
from pipeline.store.files.shard_folder import ShardUnusable as ShardUnusable
from pipeline.store.files.shard_folder import is_left as is_left
from pipeline.store.files.shard_folder import remove_builds as remove_builds
from pipeline.store.files.shards import damaged_file as damaged_file
from pipeline.store.files.shards import embedding_rows as embedding_rows
from pipeline.store.files.shards import handed_over as handed_over
from pipeline.store.files.shards import manifest_file as manifest_file
from pipeline.store.files.shards import read_embeddings as read_embeddings
from pipeline.store.files.shards import read_handed_over as read_handed_over
from pipeline.store.files.shards import vector_bytes as vector_bytes
from pipeline.store.files.shards import vectors_of as vectors_of
from pipeline.store.keyed_digests import ERASED as ERASED
from pipeline.store.local import LocalStore as LocalStore
from pipeline.store.master_key import load_master_key as load_master_key
from pipeline.store.master_key import load_or_make_master_key as load_or_make_master_key
from pipeline.store.records import *  # noqa: F403
from pipeline.store.schema import MAX_DIRECTORIES as MAX_DIRECTORIES
