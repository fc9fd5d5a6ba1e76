"""An SGLang plugin that puts faults into a running server, for drafttrace's fault lab.

On the PYTHONPATH, SGLang finds it as it finds every installed plugin. It does nothing unless
DRAFTTRACE_SERVED_FAULTS names a file; the words in that file are the faults in force, and they may change between
requests: one server start serves the whole lab. Every fault works on the server's own tensors, at the place where the
real bug of that kind sits.
"""
