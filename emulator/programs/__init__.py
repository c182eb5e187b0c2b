"""Go programs that are built from pinned modules, and the room that they take."""
