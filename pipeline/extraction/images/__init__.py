"""Files to pixels, and pixels resampled.

`files` reads a file and names its format; `decode` makes an upright RGB image of it, with `jpeg` for most JPEG files;
`device_jpeg` decodes JPEG files on the device instead. `rgb` makes 8-bit RGB of every mode, and `room` bounds the
memory of all decoding. By its `pixel_hash` a store knows a picture again. `batch` holds many images on a device and
resamples parts of them: on CUDA by `triton_kernels`, on the CPU by the compiled loops of `resampling_kernels`, and by
torch where Triton or numba are not installed.
"""
