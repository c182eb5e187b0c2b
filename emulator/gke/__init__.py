"""What GKE does to a cluster: nodes, networking and services."""
