"""`facepipe bench`: facepipe beside a reference made with facenet-pytorch.

`sample` chooses the photos, `reference` is the plain loop, `facepipe` our extraction with comparable settings; `sides`
hands both their photos and threads, `harness` times them in turns, `parity` compares the faces, `bench` runs it all.
The benchmarks in scripts/bench use the same harness, reference and comparison.
"""
