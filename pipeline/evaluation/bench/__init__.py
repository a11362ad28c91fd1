"""facepipe beside the loop that facenet-pytorch's README shows: the same faces, and how much sooner."""
