"""Images to faces: sources, decoding, detection, alignment, quality, embeddings."""
