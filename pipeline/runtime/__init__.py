"""What every part rests on: devices, threads, compiled loops, memory, stage times."""
