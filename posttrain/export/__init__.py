"""Export of a trained model: its folder, its model card, GGUF."""
