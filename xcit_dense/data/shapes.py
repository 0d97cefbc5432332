"""The shapes with textures that generated data sets consist of."""
import cv2
import numpy as np

#: The names of the shapes in the order of their numbers.
CLASSES = ('disc', 'square', 'triangle', 'star', 'cross')
#: The texture of each shape.
_TEXTURES = ('rings', 'stripes', 'plain', 'checks', 'noise')


def paint(rng, picture, label, centre, radius):
    """Paint a shape over an image (H, W, 3) uint8 and return the pixels that it covers (H, W) bool.

    Args:
        rng: Random numbers.
        picture: The image; it is changed.
        label: The number of the shape.
        centre: Its middle, x and y in pixels.
        radius: About this many pixels.
    """
    outline = _outline(CLASSES[label], rng.uniform(-0.35, 0.35)) * radius + np.asarray(centre)
    return _fill(rng, picture, outline, _TEXTURES[label])


def paint_patch(rng, picture, centre, radius):
    """Paint a patch without a shape, with the texture of any; otherwise as `paint`."""
    turn = np.linspace(0, 2 * np.pi, 9, endpoint=False) + rng.uniform(-0.3, 0.3, 9)
    outline = np.stack([np.cos(turn), np.sin(turn)], 1) * rng.uniform(0.6, 1.3, (9, 1)) * radius + np.asarray(centre)
    return _fill(rng, picture, outline, _TEXTURES[rng.integers(len(_TEXTURES))])


def _fill(rng, picture, outline, kind):
    mask = np.zeros(picture.shape[:2], np.uint8)
    corners = [np.round(outline).astype(np.int32)]
    cv2.fillPoly(mask, corners, 1)
    covered = mask.astype(bool)
    colours = texture(rng, *mask.shape, kind, contrast=70)
    shade = np.linspace(0.8, 1.15, mask.shape[0])[:, None, None]
    picture[covered] = np.clip(colours * shade, 0, 255).astype(np.uint8)[covered]
    cv2.polylines(picture, corners, True, [int(c) for c in rng.integers(0, 60, 3)], 1, cv2.LINE_AA)
    return covered


def _outline(name, angle):
    """Return the corners (n, 2) of a shape of radius 1."""
    if name == 'disc':
        turn, radius = np.linspace(0, 2 * np.pi, 40, endpoint=False), 1
    elif name == 'square':
        turn, radius = np.arange(4) * np.pi / 2 + np.pi / 4, 1.15
    elif name == 'triangle':
        turn, radius = np.arange(3) * 2 * np.pi / 3 - np.pi / 2, 1.2
    elif name == 'star':
        turn, radius = np.arange(10) * np.pi / 5 - np.pi / 2, np.where(np.arange(10) % 2, 0.5, 1.2)
    else:
        arm = 0.36
        corners = np.array([[-arm, -1], [arm, -1], [arm, -arm], [1, -arm], [1, arm], [arm, arm], [arm, 1], [-arm, 1],
                            [-arm, arm], [-1, arm], [-1, -arm], [-arm, -arm]])
        turn, radius = np.arctan2(corners[:, 1], corners[:, 0]), np.hypot(*corners.T)
    return np.stack([np.cos(turn + angle), np.sin(turn + angle)], axis=1) * np.reshape(radius, (-1, 1))


def texture(rng, height, width, kind, contrast):
    """Return a texture (H, W, 3) float of two random colours."""
    y, x = np.mgrid[:height, :width]
    period = rng.uniform(6, 12)
    if kind == 'rings':
        pattern = np.sin(np.hypot(x - width / 2, y - height / 2) * 2 * np.pi / period)
    elif kind == 'stripes':
        turn = rng.uniform(0, np.pi)
        pattern = np.sin((x * np.cos(turn) + y * np.sin(turn)) * 2 * np.pi / period)
    elif kind == 'checks':
        pattern = np.sign(np.sin(x * 2 * np.pi / period) * np.sin(y * 2 * np.pi / period))
    elif kind == 'noise':
        coarse = rng.normal(size=(height // 8 + 2, width // 8 + 2)).astype(np.float32)
        pattern = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    else:
        pattern = np.zeros((height, width))
    base, tint = rng.uniform(70, 200, 3), rng.uniform(0.3, 1, 3)
    grain = rng.normal(scale=6, size=(height, width, 1))
    return np.clip(base + pattern[..., None] * tint * contrast + grain, 0, 255)
