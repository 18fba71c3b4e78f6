"""One box of an image in every format, by hand."""

H, W = 20, 40  # Of the image, in pixels.
FORMATS = {
    "xyxy": [4, 5, 12, 15],
    "yxyx": [5, 4, 15, 12],
    "xywh": [4, 5, 8, 10],
    "rel_xyxy": [0.1, 0.25, 0.3, 0.75],
    "rel_yxyx": [0.25, 0.1, 0.75, 0.3],
    "rel_xywh": [0.1, 0.25, 0.2, 0.5],
}
# Of keras-cv only.
CENTER_FORMATS = {"center_xywh": [8, 10, 8, 10], "center_yxhw": [10, 8, 10, 8]}
