"""What all plots share: figures, panels, labels, overlays."""
