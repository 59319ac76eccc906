"""What runtimes are called, where the command line can ask without loading one."""

from __future__ import annotations

VARIABLE = "RETRIEVAL_BACKEND"
"""The environment's variable that names what runs models; `--backend` sets it for one command."""
USUAL_BACKEND = "onnxruntime"
AUTO = "auto"
NAMES = (USUAL_BACKEND, "openvino", "tensorrt")
