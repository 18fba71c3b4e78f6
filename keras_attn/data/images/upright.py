"""Photos turned upright inside a TensorFlow graph, by what their files record.

A camera stores the pixels as its sensor has them and notes how it was held, a number
from 1 to 8, in a block of EXIF: in a segment of a JPEG file (also of MPO), in a chunk
of PNG or WebP. `image_files.read_image` turns files by Pillow; this is the same for the
bytes of a file in a served graph.
"""

from typing import Any

import tensorflow as tf

_ORIENTATION = 0x0112
# Values that flip columns, or rows, after those from 5 are transposed.
_FLIPS_COLUMNS, _FLIPS_ROWS = (2, 3, 6, 7), (3, 4, 7, 8)
_TRANSPOSES = 5
# A segment or chunk has at least a few bytes; a damaged file ends the search.
_MOST_PARTS = 4096


def turn_upright(image: tf.Tensor, content: tf.Tensor) -> tf.Tensor:
    """Turns and mirrors an image as its file's orientation says.

    Args:
        image: The decoded image, (h, w, C).
        content: The bytes of the file, a string.

    Returns:
        The image, (h, w, C) or (w, h, C). Without such a record, or with a damaged one,
        it is as it was.
    """
    value = read_orientation(content)

    def is_in(values) -> tf.Tensor:
        return tf.reduce_any(tf.equal(value, list(values)))

    turned = tf.cond(
        value >= _TRANSPOSES, lambda: tf.transpose(image, [1, 0, 2]), lambda: image
    )
    turned = tf.cond(
        is_in(_FLIPS_COLUMNS), lambda: tf.reverse(turned, [1]), lambda: turned
    )
    return tf.cond(is_in(_FLIPS_ROWS), lambda: tf.reverse(turned, [0]), lambda: turned)


def read_orientation(content: tf.Tensor) -> tf.Tensor:
    """The orientation in a file, int32 from 1 to 8; 1 without an entry.

    Args:
        content: The bytes of the file, a string.
    """
    data = tf.concat([tf.io.decode_raw(content, tf.uint8), [0]], 0)
    is_png = _has(data, 0, b"\x89PNG")
    is_webp = _has(data, 8, b"WEBP")
    start = tf.cond(
        tf.io.is_jpeg(content),
        lambda: _in_jpeg(data),
        lambda: tf.cond(
            is_png,
            lambda: _in_chunks(data, 8, b"eXIf", is_png=True),
            lambda: tf.cond(
                is_webp, lambda: _in_chunks(data, 12, b"EXIF", is_png=False), lambda: -1
            ),
        ),
    )
    return tf.cond(start >= 0, lambda: _of_block(data, start), lambda: 1)


def _bytes(data: tf.Tensor, start: Any, count: int) -> tf.Tensor:
    """Some bytes, int32 (count,); those outside are the last one, a 0."""
    places, last = start + tf.range(count), tf.size(data) - 1
    is_inside = (places >= 0) & (places < last)
    return tf.cast(tf.gather(data, tf.where(is_inside, places, last)), tf.int32)


def _has(data: tf.Tensor, start: Any, expected: bytes) -> tf.Tensor:
    found = _bytes(data, start, len(expected))
    return tf.reduce_all(tf.equal(found, list(expected)))


def _number(data: tf.Tensor, start: Any, count: int, is_big: Any = True) -> tf.Tensor:
    """An integer of some bytes, the most significant one first or last.

    One of 2³¹ or more lies outside any file: it becomes the largest of int32.
    """
    found = tf.cast(_bytes(data, start, count), tf.int64)
    found = tf.where(is_big, found, tf.reverse(found, [0]))
    places = tf.constant([256 ** (count - 1 - place) for place in range(count)])
    total = tf.reduce_sum(found * tf.cast(places, tf.int64))
    return tf.cast(tf.minimum(total, 2**30), tf.int32)


def _walk(data: tf.Tensor, start: int, step: Any) -> tf.Tensor:
    """Goes from part to part; returns where the block begins, or -1.

    Args:
        data: The file.
        start: Where the first part begins.
        step: From the beginning of a part to the next beginning, -1 if there is none,
            and where the block begins, -1 if it is not in this part.
    """

    def body(place, _):
        return step(place)

    def goes_on(place, found):
        return (found < 0) & (place >= 0) & (place < tf.size(data))

    _, found = tf.while_loop(
        goes_on,
        body,
        (tf.constant(start), tf.constant(-1)),
        maximum_iterations=_MOST_PARTS,
    )
    return found


def _in_jpeg(data: tf.Tensor) -> tf.Tensor:
    def step(place):
        marker = _bytes(data, place, 2)
        length = _number(data, place + 2, 2)
        is_block = (marker[1] == 0xE1) & _has(data, place + 4, b"Exif\0\0")
        # The pixels begin after "start of scan".
        goes_on = (marker[0] == 0xFF) & (marker[1] != 0xDA)
        following = tf.where(goes_on, place + 2 + length, -1)
        # Markers may be filled up with bytes of 255.
        following = tf.where(goes_on & (marker[1] == 0xFF), place + 1, following)
        return following, tf.where(goes_on & is_block, place + 10, -1)

    return _walk(data, 2, step)


def _in_chunks(data: tf.Tensor, start: int, name: bytes, is_png: bool) -> tf.Tensor:
    def step(place):
        length = _number(data, place + (0 if is_png else 4), 4, is_png)
        is_block = _has(data, place + (4 if is_png else 0), name)
        # PNG ends a chunk by a checksum; WebP begins one at an even place.
        room = length + 4 if is_png else (length + 1) // 2 * 2
        following = place + 8 + room
        begin = place + 8
        begin += tf.where(_has(data, begin, b"Exif\0\0"), 6, 0)
        return following, tf.where(is_block, begin, -1)

    return _walk(data, start, step)


def _of_block(data: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """The orientation in a block of EXIF, which has the form of a TIFF file."""
    is_big = _has(data, start, b"MM")
    is_block = is_big | _has(data, start, b"II")
    directory = start + _number(data, start + 4, 4, is_big)
    count = _number(data, directory, 2, is_big)

    def body(index, value):
        entry = directory + 2 + 12 * index
        is_it = _number(data, entry, 2, is_big) == _ORIENTATION
        found = _number(data, entry + 8, 2, is_big)
        return index + 1, tf.where(is_it, found, value)

    _, value = tf.while_loop(
        lambda index, value: is_block & (index < count) & (value == 0),
        body,
        (tf.constant(0), tf.constant(0)),
        maximum_iterations=_MOST_PARTS,
    )
    return tf.where((value >= 1) & (value <= 8), value, 1)
