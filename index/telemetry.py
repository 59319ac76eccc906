"""Switching off the telemetry of dependencies, before they load.

ONNX Runtime is imported only in `index.model.backends.onnxruntime`, which calls this.
"""

import logging
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

_logger = logging.getLogger(__name__)


def switch_off_telemetry() -> None:
    """Set every variable of `SWITCHES` that the user has not set. Call it before importing anything heavy.

    Where ONNX Runtime was imported before, its events are switched off, which is all that is possible then.
    """
    is_late = "onnxruntime" in sys.modules and not os.environ.get("ORT_DISABLE_TELEMETRY")
    for variable, value, _ in SWITCHES:
        if not os.environ.get(variable):
            os.environ[variable] = value
    if is_late:
        _logger.debug(
            "onnxruntime was imported before its telemetry could be switched off: its events are stopped, the look-ups"
            " of its uploader are not; set ORT_DISABLE_TELEMETRY=1 before the import"
        )
        sys.modules["onnxruntime"].disable_telemetry_events()
