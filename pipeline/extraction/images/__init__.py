"""Files to pixels, and resampling.

`files` reads files and detects formats; `decode` makes upright RGB images, with `jpeg` for most JPEG files;
`device_jpeg` decodes on the device. `rgb` converts modes, `room` bounds decoding's memory, `pixel_hash` identifies
equal pictures. A `batch` holds and resamples many images: `host_batch` with `resampling_kernels`, `torch_batch` with
`triton_kernels`, or with torch if Triton or numba is missing.
"""
