"""Published weights files to tensors."""
