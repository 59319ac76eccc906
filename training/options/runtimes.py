"""What can compute the features of a frozen backbone, by name."""

from __future__ import annotations

from index.model.backends.names import AUTO

TORCH = "torch"
GRAPH_RUNTIMES = ("onnxruntime", "openvino")
"""Those that take the backbone's graph instead; on a CPU only."""
EXTRAS = {"onnxruntime": "cpu", "openvino": "fast"}
RUNTIMES = (AUTO, TORCH, *GRAPH_RUNTIMES)
"""What `--backend` takes; `auto` is the first of the graph's that agrees with torch, or torch."""
