"""The settings of a stack file: reads them, checks them and returns them as frozen dataclasses."""
