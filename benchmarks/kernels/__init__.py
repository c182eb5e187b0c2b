"""Our kernels and a training step against what an H200 could do at most, computed without one."""
