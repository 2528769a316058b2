"""Native dtypes: each beside the same map in float64, at the same rounded inputs."""
