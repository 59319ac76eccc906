"""Limits on the size and cost of images; in a module of its own, which loads nothing heavy."""

# Pillow warns above this and raises at twice as much. An image of that size, whose file may be small, takes at the
# peak, beside its file: 0.4 GB for most PNG and TIFF (0.2 grey), 0.3 for a progressive JPEG, 0.8 where it is so
# narrow that it cannot be reduced, 0.8 for AVIF and 1.4 for WebP, whose decoders hold several copies: beyond the limit
# below, so that a WebP may have some 60 million. Each thread that decodes may meet one.
MAX_PIXELS = 89_478_485
MAX_FILE_BYTES = 512 * 1024 * 1024
MAX_FETCHED_BYTES = 1 << 26  # of an image whose size is not known before it is fetched

# Of one image, in the process that decodes what is not proven cheap. A machine that does much else may take long over
# few seconds of processor time, so that waiting is bounded generously.
MAX_DECODE_BYTES = 1 << 30
MAX_DECODE_CPU_S = 5
DECODED_BYTES_A_S = 1 << 24  # of its file, each so many of which give it a second more: noise at the cap on pixels
MAX_DECODE_WALL_S = 300

LOCK_WAIT_S = 3600.0
"""Seconds that a command or a server's change waits for another process that writes the same gallery."""
