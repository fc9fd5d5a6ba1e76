"""The real pair: SmolLM2-135M-Instruct as a package supplies it, with an EAGLE-3 head trained here."""
