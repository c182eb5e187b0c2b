"""Go programs built from pinned modules, and the disk space they need."""
