"""Facts about machines, names, addresses and capacity, without a cloud provider."""
