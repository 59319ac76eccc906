"""Names of runtimes, without importing one."""

VARIABLE = "RETRIEVAL_BACKEND"
"""The environment variable of the default runtime; `--backend` sets it for one command."""
USUAL_BACKEND = "onnxruntime"
AUTO = "auto"
NAMES = (USUAL_BACKEND, "openvino")
