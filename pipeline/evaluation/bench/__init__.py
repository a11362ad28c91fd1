"""`facepipe bench`: facepipe beside the loop that facenet-pytorch's README shows.

`sample` chooses the photos, `reference` is the plain loop, `facepipe` our extraction with comparable settings; `sides`
gives both their lists and threads, `harness` times them in turns, `parity` compares the faces, `bench` does it all.
The benchmarks in scripts/bench use the same harness, reference and comparison.
"""
