"""The chat format of the tiny pairs: its four marks and how a conversation is written with them."""

from __future__ import annotations

Message = dict[str, str]
Conversation = list[Message]

BOS, END, USER, ASSISTANT = "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"
SPECIAL = [BOS, END, USER, ASSISTANT]
BOS_ID, END_ID, USER_ID, ASSISTANT_ID = range(4)

TEMPLATE = (
    "{{ '" + BOS + "' }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ '" + ASSISTANT + "' }}{% generation %}{{ message['content'] + '" + END + "' }}{% endgeneration %}"
    "{% else %}{{ '" + USER + "' + message['content'] + '" + END + "' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)


def render_prompt(talk: Conversation) -> str:
    """The turns so far, and the mark that asks the assistant to speak: what TEMPLATE makes of them."""
    turns = "".join((ASSISTANT if m["role"] == "assistant" else USER) + m["content"] + END for m in talk)
    return f"{BOS}{turns}{ASSISTANT}"
