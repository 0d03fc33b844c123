"""The demo model with a chat template that has tools, in the format of Hermes or another.

The model knows nothing of tools, so that only a constraint makes calls. Its tokenizer has one marker
of calls as a special token and spells the other, or has both. Importers have scripts/ in sys.path.
"""
import json

import demo_cluster

END = 1021  # of the demo's tokens
MARKER = 1022  # <|im_start|> of the demo's tokenizer becomes <tool_call>
THOUGHT = 1023  # <|im_end|> becomes </think>
TEMPLATE = """\
{%- for t in tools or [] %}{{ t.function.name }} {% endfor %}
{%- if tools %}
Call: <tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call>{% endif %}
{%- for m in messages %}{{ m.content }}
{%- for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}"""


def make_tool_model(directory, context=None, template=TEMPLATE, marker="<tool_call>", thought="</think>"):
    """Writes the model into the directory; `context`: its tokens, if not those of the demo; `marker` and
    `thought`: the texts of those two special tokens."""
    for file in ("generation_config.json", "model.safetensors", "tokenizer_config.json"):
        (directory / file).symlink_to(demo_cluster.MODEL / file)
    config = json.loads((demo_cluster.MODEL / "config.json").read_text(encoding="utf-8"))
    if context is not None:
        config["max_position_embeddings"] = context
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = json.loads((demo_cluster.MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    names = {MARKER: marker, THOUGHT: thought}
    vocabulary = tokenizer["model"]["vocab"]
    for token in tokenizer["added_tokens"]:
        if token["id"] in names:
            name, token["content"] = token["content"], names[token["id"]]
            if name in vocabulary:
                vocabulary[token["content"]] = vocabulary.pop(name)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")


def whole_calls(choice):
    """The calls of an answer, without one that its length has cut off within the arguments."""
    calls = choice.message.tool_calls or []
    if calls and choice.finish_reason == "length":
        try:
            json.loads(calls[-1].function.arguments)
        except json.JSONDecodeError:
            return calls[:-1]
    return calls


def add_calls(chunk, calls):
    """Adds what a chunk of a stream has of calls, as [name, arguments]."""
    for call in chunk.choices[0].delta.tool_calls or []:
        if call.id:
            assert call.index == len(calls), call
            calls.append([call.function.name, ""])
        assert call.index == len(calls) - 1, call
        calls[-1][1] += call.function.arguments
