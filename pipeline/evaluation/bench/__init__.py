"""`facepipe bench`: facepipe beside a reference made with facenet-pytorch.

`reference` is the plain loop, `facepipe` our extraction with comparable settings, `harness` times them in turns,
`parity` compares the faces, `bench` chooses the photos and runs it all. The benchmarks in scripts/bench use the same
harness, reference and comparison.
"""
