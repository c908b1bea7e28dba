"""The state of a slice: columns, index kernels, undo sets, sketches."""
