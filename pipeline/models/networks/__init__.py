"""The embedding networks: in torch, and converted in OpenVINO."""
