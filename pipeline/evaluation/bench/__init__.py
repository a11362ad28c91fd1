"""`facepipe bench`: compares facepipe with a reference made with facenet-pytorch.

`reference` is the plain loop, `facepipe` our extraction with comparable settings, `harness` times them in turns,
`parity` compares the faces, `bench` chooses the photos and runs it all. scripts/bench uses them, too.
"""
