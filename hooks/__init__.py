"""What runs inside the SGLang process. Nothing here may ever break serving."""
