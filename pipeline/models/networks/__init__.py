"""The embedding networks, in torch and in OpenVINO."""
