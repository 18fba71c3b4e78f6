"""Images with labels, boxes, masks, captions and questions."""
