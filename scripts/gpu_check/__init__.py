"""Everything that needs a GPU, checked by one command: `python scripts/gpu_check --device cuda`.

`check` runs the steps, each in a process with a time limit of its own, and prints a verdict on each. A step is the
function of its name: `machine.env`, `photos.photos`, `smoke`, `suite.tests`, `parity`, `model_change`,
`benches.bench_extract`, `.run` and `.memory` (which call scripts/bench), `rates.bench` and `jpeg`. `findings` is
what they write down, `options` what they are told, `device_work` how they count waits and launches. `pack.py` and
`unpack.py` carry all of it to a machine without a network.
"""
