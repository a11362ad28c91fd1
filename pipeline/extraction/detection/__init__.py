"""MTCNN over batches of images of any sizes.

`cascade` runs the three stages. P-Net runs over each image's `pyramid`, R- and O-Net on crops, and `nms` drops
overlapping boxes after each stage. `host_networks` are the networks on a CPU with numba: the loops of `network_kernels`
rest on `row_convolutions`, `packing` has their weights, and `suppression_loop` is their part of `nms`. On CUDA,
and on a CPU without numba, `torch_networks` run P-Net on `canvases` that hold the levels of many images, painted by
`canvas_kernel`; `torch_nms` and `suppression_kernel` are the part of `nms`.
"""
