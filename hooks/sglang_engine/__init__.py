"""All that knows SGLang: where to attach, how a batch maps to rows, what differs between versions."""
