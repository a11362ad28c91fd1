"""Makes the centre of a set of weights: the mean embedding of the training people of LFW view 1.

    facepipe run FOLDER/lfw-view1/images --store STORE --weights casia-webface --set embed.centre=false \\
        --min-cpq 0 --min-fsq 0 --min-fcq 0
    python scripts/bench/fit_centre.py --faces FOLDER/lfw-view1 --store STORE

Writes pipeline/models/centres/<weights>.npy and prints the SHA-256 that the registry names. Four decimals, so that
rounding elsewhere hardly ever gives another file.
"""

from __future__ import annotations

import argparse
import hashlib
import io
from pathlib import Path

import numpy as np
from lfw import read_protocol, read_store, rows_of

from pipeline.models.registry import weight_set
from pipeline.models.weights import centre_file

DECIMALS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    args = parser.parse_args()
    stored = read_store(args.store)
    if stored.identity.output_settings.get("embed", {}).get("centre"):
        raise SystemExit(f"{args.store} was made with a centre: make one with --set embed.centre=false.")
    protocol = read_protocol(args.faces)
    portraits = stored.portraits(protocol.files(args.faces / "images"))
    rows, _ = rows_of(portraits, protocol.train)
    mean = np.nanmean(portraits.embeddings[rows].astype(np.float64), axis=0)
    content = io.BytesIO()
    np.save(content, mean.round(DECIMALS).astype(np.float32))
    file = centre_file(weight_set(stored.identity.weights))
    file.write_bytes(content.getvalue())
    print(file, hashlib.sha256(content.getvalue()).hexdigest(), f"norm {np.linalg.norm(mean):.4f}")


if __name__ == "__main__":
    main()
