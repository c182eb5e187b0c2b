"""Real Ray processes in place of the pods that KubeRay asks for."""
