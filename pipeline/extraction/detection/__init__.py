"""MTCNN over batches of images of any sizes.

`cascade` runs the three stages. The first, `proposals`, runs P-Net over each image's `pyramid`: with torch on
canvases that hold the levels of many images, or on the CPU in compiled loops. The other two run R- and O-Net
(`networks`) on crops; `nms` drops overlapping boxes after each stage. The loops of all three stand in `network_kernels`
and rest on `row_convolutions`; `cascade` loads them if numba is installed, and `packing` has their weights.
"""
