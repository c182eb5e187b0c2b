"""The state of the emulated Google Cloud: resources, operations, secrets, objects and errors."""
