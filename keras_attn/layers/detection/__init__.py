"""Regions: proposals, their features, detections and masks."""
