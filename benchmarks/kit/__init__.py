"""What the benchmarks of a running job share: load, contestants under it, interleaved pairs, plots."""
