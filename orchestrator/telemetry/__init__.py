"""What the machine did while a server was measured: memory, clocks, power, temperature, CPU time.

The sampler (`runners.telemetry`) runs beside the server and writes to a file of the session; `sampler.py` starts and
stops it, `samples.py` reads the file, `window.py` says what happened inside a trial, `pool.py` what it was per token.
"""
