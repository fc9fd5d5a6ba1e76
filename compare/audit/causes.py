"""The causes that only the audit and the replay name: weights of the draft that never reached the model."""

from __future__ import annotations

from drafttrace.compare.vocabulary import Entry, register

register(
    Entry(
        id="weights-missing",
        kind="weights",
        rank=310,
        listed=10,
        what="A tensor of the draft's checkpoint was never loaded, or a parameter was never filled.",
        signature="drafttrace check: names of checkpoint and model do not meet; a parameter still holds its initial value.",
        remedy="Rename the tensors to what the server's class expects; drafttrace check lists them.",
        cases=("sglang#27829",),
    ),
    Entry(
        id="weights-replaced",
        kind="weights",
        rank=320,
        listed=20,
        what="A weight of the draft is the target's.",
        signature="The tensor's hash is that of the target's tensor.",
        remedy="Keep the server from sharing embedding or head where the draft brings its own.",
        cases=("vllm#27732",),
    ),
    Entry(
        id="weights-unused",
        kind="weights",
        rank=330,
        listed=30,
        what="The checkpoint holds a tensor that nothing reads.",
        signature="drafttrace check lists it.",
        remedy="Usually harmless; where it is a norm or a head, the server's class does not know it.",
        cases=("speculators#1114",),
    ),
)
