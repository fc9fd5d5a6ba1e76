"""Starts real SGLang servers, with speculative decoding, on a plain CPU: for the tests and the demo of drafttrace."""

from sglang_cpu.arguments import cpu_args, cpu_env
from sglang_cpu.server import CpuServer, ServerDied, ServerTimeout

__all__ = ["CpuServer", "ServerDied", "ServerTimeout", "cpu_args", "cpu_env"]
