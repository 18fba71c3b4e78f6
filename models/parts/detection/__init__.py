"""What two-stage detectors share."""
