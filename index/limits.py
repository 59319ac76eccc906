"""Limits on the size and cost of images; in a module of its own, which loads nothing heavy."""

# Pillow warns above this and raises at twice as much. Peak memory of such an image, beside its file: 0.4 GB for most
# PNG and TIFF (0.2 grey), 0.3 for a progressive JPEG, 0.8 for one too narrow to reduce, 0.8 for AVIF, and 1.4 for WebP,
# which is beyond the limit below, so that a WebP may have some 60 million pixels.
MAX_PIXELS = 89_478_485
MAX_FILE_BYTES = 512 * 1024 * 1024
MAX_FETCHED_BYTES = 1 << 26  # of an image whose size is not known before it is fetched

# Of one image in a worker process. A busy machine may take long over few seconds of processor time, so the limit on
# wall-clock time is generous.
MAX_DECODE_BYTES = 1 << 30
MAX_DECODE_CPU_S = 5
DECODED_BYTES_A_S = 1 << 24  # a file gets another second for each so many bytes
MAX_DECODE_WALL_S = 300

WRITER_WAIT_S = 3600.0
"""Seconds that a command or a server's change waits for another process that writes the same gallery."""
