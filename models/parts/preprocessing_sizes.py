"""A preprocessing for images of another size, cropped by the same share."""

from collections.abc import Mapping
from typing import Any

from keras_attn.models.parts.preprocessing_fields import Steps, make_fields, read_steps


def fields_for_size(fields: Mapping[str, Any], sides: list[int]) -> dict[str, Any]:
    """The fields that give images of another size, cropped by the same share.

    Args:
        fields: A preprocessing.
        sides: Rows and columns.
    """
    try:
        steps = read_steps(fields)
    except ValueError:
        return dict(fields)  # They are refused by name when they are used.
    crop_size, size, covers = None, sides, False
    if steps.crop_size is not None:
        share = get_share(fields, steps)
        crop_size, size = sides, [int(side / share) for side in sides]
        keeps_shape = isinstance(steps.size, int)
        covers = len({*sides}) > 1 and (keeps_shape or bool(fields.get("covers")))
        if keeps_shape and not covers:
            size = size[0]
    kept = ("crop_pct", "crop_mode", "crop_offset", "passes")
    known = {name: fields[name] for name in kept if name in fields}
    steps = steps._replace(size=size, crop_size=crop_size)
    return known | make_fields(steps) | ({"covers": True} if covers else {})


def get_share(fields: Mapping[str, Any], steps: Steps) -> float:
    """`crop_pct` where it is what is done, otherwise the share that the crop keeps."""
    share: Any = fields.get("crop_pct")
    if steps.crop_size is not None and steps.size is not None:
        if type(share) in (int, float) and 0.01 <= share <= 1:
            resized = steps.size if isinstance(steps.size, int) else min(steps.size)
            if int(min(steps.crop_size) / share) == resized:
                return share
    return steps.share
