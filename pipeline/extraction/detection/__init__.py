"""MTCNN over batches of images of mixed sizes.

`cascade` runs P-Net over each image's `pyramid`, R- and O-Net on crops, and suppresses after each. On a CPU with numba:
`host_networks`, with `network_kernels` and `row_convolutions`. Otherwise: `torch_networks`, with P-Net on `canvases`
painted by `canvas_kernel`, `torch_nms` and `suppression_kernel`.
"""
