"""Commands that try the installation: `doctor`, with `device_trial`, and `demo`, with `sample_photos`."""
