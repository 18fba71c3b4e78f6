"""LoRA weights, quantized weights, and the layers that have them."""
