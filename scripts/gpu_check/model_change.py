"""Another margin for a store on the device: are the vectors of a build, and those of photos that came in after it by
both models, the vectors of a run with that margin?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from bench_run import facepipe
from comparison import LEAST_COSINE
from corpora import distinct

from gpu_check.findings import Findings
from gpu_check.options import CUDA_CONFIG, WEIGHTS, Options
from gpu_check.photos import corpus
from pipeline.store.local import LocalStore
from pipeline.types import FloatArray

_MARGIN = ("--set", "align.margin_px=16")
_LEAST_SHARE = 0.95  # of the faces, which both stores have: a few qualities are near what the gate wants


def model_change(options: Options, found: Findings) -> None:
    files = corpus(options, "a")
    folders = [options.work / name for name in ("photos before", "photos after")]
    for folder, part, first in zip(folders, (files[::2], files[1::2]), (0, len(files)), strict=True):
        folder.mkdir(exist_ok=True)
        distinct(part, folder, first)
    changed, fresh = options.work / "changed-store", options.work / "fresh-store"
    before, after = map(str, folders)
    machine = ("--config", str(CUDA_CONFIG), "--device", options.device)
    facepipe("run", before, "--store", str(changed), "--weights", WEIGHTS, *machine)
    built, build_s = facepipe("reindex", "--store", str(changed), *_MARGIN, *machine)
    both, _ = facepipe("run", after, "--store", str(changed), "--profile", *machine)
    facepipe("reindex", "swap", "--store", str(changed))
    facepipe("run", before, after, "--store", str(fresh), "--weights", WEIGHTS, *_MARGIN, *machine)
    for store in (changed, fresh):
        facepipe("check", "--store", str(store))
    one, two = vectors_of(changed), vectors_of(fresh)
    shared = one.keys() & two.keys()
    least = min((float(one[face] @ two[face]) for face in shared), default=0.0)
    found.put("faces", {"changed": len(one), "fresh": len(two), "in both": len(shared), "least cosine": least})
    found.put("build", {**built, "seconds of the command": round(build_s, 1)})
    found.put("run with two models", both["profile"])
    found.expect(len(shared) >= _LEAST_SHARE * max(len(one), len(two), 1), "the stores have other faces")
    found.expect(least >= LEAST_COSINE, f"a cosine of {least:.5f} between two embeddings of one face")
    found.headline = f"{len(shared)} faces, cosine at least {least:.6f}; the build took {build_s:.1f} s"


def vectors_of(store: Path) -> dict[tuple[str, int], FloatArray]:
    """The embedding [D] of each face by the current model, by photo and place in it."""
    with LocalStore.open(store, command="gpu_check") as client:
        faces = client.read(
            "SELECT f.face_id, m.path, f.ordinal FROM core.faces f JOIN core.media m USING (media_id)"
            " JOIN core.embeddings e USING (face_id)"
            " WHERE e.generation = (SELECT current_generation FROM core.store)"
        ).to_pylist()
        vectors = client.face_vectors([face["face_id"] for face in faces])
    return {(Path(f["path"]).name, f["ordinal"]): np.asarray(vectors[f["face_id"]].embedding) for f in faces}
