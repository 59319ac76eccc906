"""Query photos: decoded, and kept for a while for further searches by the whole or a crop."""

from dataclasses import dataclass

from PIL import Image
from pydantic import Field, model_validator

from index.arrays import Vectors
from index.errors import InputError
from index.images.preprocess import Pixels, PreprocessConfig, preprocess_image
from retrieval_app.insights.answer import Body
from retrieval_app.serving.serving_config import ServingConfig
from retrieval_app.serving.thumbnails import decode_in_turn, encode_small

KEPT_SIDE = 1024  # pixels, enough for a crop of a quarter at the usual model inputs
_JPEG_QUALITY = 92
_LEAST_CROP_PIXELS = 8


class Crop(Body):
    """A region of an image, in shares of its width and height, from its upper left corner."""

    x: float = Field(ge=0, lt=1)
    y: float = Field(ge=0, lt=1)
    width: float = Field(gt=0, le=1)
    height: float = Field(gt=0, le=1)

    @model_validator(mode="after")
    def _lies_inside(self) -> "Crop":
        if max(self.x + self.width, self.y + self.height) > 1.0001:
            raise ValueError("a crop is x, y, width and height in 0..1 within the image")
        return self

    def apply(self, image: Image.Image, *, name: str) -> Image.Image:
        """The crop of an image."""
        width, height = image.size
        left, top = round(self.x * width), round(self.y * height)
        right = min(width, round((self.x + self.width) * width))
        bottom = min(height, round((self.y + self.height) * height))
        if min(right - left, bottom - top) < _LEAST_CROP_PIXELS:
            raise InputError(
                f"{name}: the crop has {max(0, right - left)} x {max(0, bottom - top)} pixels, at least "
                f"{_LEAST_CROP_PIXELS} a side are needed; choose a larger part"
            )
        return image.crop((left, top, right, bottom))


@dataclass(frozen=True, slots=True)
class Upload:
    """The bytes of a photo, with its name for messages; it is not kept."""

    data: bytes
    name: str


@dataclass(frozen=True, slots=True)
class Photo:
    """A photo that is kept, as JPEG of at most about `KEPT_SIDE` pixels a side, re-encoded.

    The `token` cannot be guessed. `vector` is the (D,) float32 unit embedding by the model `model_sha256`.
    """

    token: str
    name: str
    width: int
    height: int
    jpeg: bytes
    vector: Vectors
    model_sha256: str

    @property
    def kept_bytes(self) -> int:
        """What the photo takes of the memory for kept photos."""
        return len(self.jpeg) + self.vector.nbytes


def check_upload(data: bytes, *, name: str, config: ServingConfig) -> None:
    """Refuse a photo of too many bytes."""
    if len(data) > config.max_upload_bytes:
        limit = config.max_upload_bytes / 1024**2
        raise InputError(f"{name}: {len(data) / 1024**2:.1f} MB, at most {limit:.0f} MB are taken; use a smaller copy")


def read_pixels(
    data: bytes,
    *,
    name: str,
    preprocess: PreprocessConfig,
    max_pixels: int,
    crop: Crop | None = None,
    cheap_only: bool = False,
) -> Pixels:
    """The (crop, crop, 3) uint8 model input of a photo or a crop of it, decoded as the gallery's images were."""
    side = preprocess.resize if crop is None else KEPT_SIDE
    image = decode_in_turn(data, name=name, target_side=side, max_pixels=max_pixels, cheap_only=cheap_only)
    return preprocess_image(image if crop is None else crop.apply(image, name=name), preprocess)


def encode_kept(data: bytes, *, name: str, max_pixels: int, cheap_only: bool = False) -> tuple[bytes, tuple[int, int]]:
    """The JPEG to keep of a photo, and its (width, height)."""
    image = decode_in_turn(data, name=name, target_side=KEPT_SIDE // 2, max_pixels=max_pixels, cheap_only=cheap_only)
    return encode_small(image, side=KEPT_SIDE, format="JPEG", quality=_JPEG_QUALITY), image.size
