"""The side-by-side benchmarks: `python -m bench` runs them, `bench/evidence.py` runs their long versions."""
