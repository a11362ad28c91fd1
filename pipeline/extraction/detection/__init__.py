"""MTCNN over batches of images of any sizes.

`cascade` runs the three stages. The first, `proposals`, runs P-Net over each image's `pyramid`: with torch on
`canvases` that hold the levels of many images, or on the CPU with `pnet_kernels`. The other two run R- and O-Net
(`networks`) on crops, on the CPU with `crop_kernels`; `nms` drops overlapping boxes after each stage. Both kernels rest
on `row_convolutions` and the weights of `packed_layers`; `kernels` loads them where numba is installed.
"""
