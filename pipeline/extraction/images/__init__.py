"""Files to pixels, and resampling.

`files` reads files and detects formats; `decode` makes upright RGB images, within a bound on memory, with `jpeg` for
most JPEG files; `device_jpeg` decodes on the device. `exif_date` tells when a photo was taken. `rgb` converts modes,
`pixel_hash` identifies equal pictures. A `batch` holds and resamples many images, on a CPU by `resampling_kernels`; a
`torch_batch` does so by `triton_kernels`, or by torch if Triton or numba is missing.
"""
