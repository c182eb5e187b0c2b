"""Images: their location, reading, order and augmentation."""
