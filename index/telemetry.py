"""Switching off the telemetry of dependencies, before they load."""

import os
import sys

SWITCHES = (
    (
        "ORT_DISABLE_TELEMETRY",
        "1",
        "ONNX Runtime uploads events to its maker, and keeps a device id and a database in"
        " ~/.cache; read once, when it is imported, after which nothing stops its look-ups",
    ),
    ("GRADIO_ANALYTICS_ENABLED", "False", "Gradio reports every page that starts, and asks for its newest version"),
    ("HF_HUB_DISABLE_TELEMETRY", "1", "the client of the Hugging Face hub, which Gradio loads, reports who uses it"),
    ("HF_HUB_DISABLE_UPDATE_CHECK", "1", "the same client asks for its newest version"),
    ("RAY_USAGE_STATS_ENABLED", "0", "Ray reports every cluster that starts"),
)
"""(variable, value, why). Other dependencies were tested, and report nothing."""


def switch_off_telemetry() -> None:
    """Set every unset variable of `SWITCHES`, before heavy imports; an imported ONNX Runtime's events are stopped."""
    if "onnxruntime" in sys.modules and not os.environ.get("ORT_DISABLE_TELEMETRY"):
        sys.modules["onnxruntime"].disable_telemetry_events()  # its uploader's look-ups go on
    for variable, value, _ in SWITCHES:
        os.environ[variable] = os.environ.get(variable) or value
