"""Files to pixels, and pixels resampled.

`files` reads a file and names its format; `decode` makes an upright RGB image of it, with `jpeg` for most JPEG files;
`device_jpeg` decodes JPEG files on the device instead. `rgb` makes 8-bit RGB of every mode, and `room` bounds the
memory of all decoding. By its `pixel_hash` a store knows a picture again. A `batch` holds many images and
resamples parts of them: `host_batch` by the compiled loops of `resampling_kernels`, `torch_batch` on CUDA by
`triton_kernels`, and by torch if Triton or numba is missing.
"""
