"""MTCNN, batched."""
