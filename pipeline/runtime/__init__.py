"""What every part uses: devices, threads, compiled loops, memory, stage times."""
