"""Run by vLLM's Python: how its parser `hf` reads texts. A JSON of folder, prompt (ids), tools and
texts comes in; a list of [reasoning, content, calls] goes out."""

import json
import sys

from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.parser_manager import ParserManager

given = json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained(given["folder"])
parser_of = ParserManager.get_parser("hf", "hf", enable_auto_tools=True, tokenizer=tokenizer)
request = ChatCompletionRequest(
    model="m", messages=[{"role": "user", "content": "u"}], tools=given["tools"], tool_choice="auto"
)
found = []
for text in given["texts"]:
    parser = parser_of(tokenizer, request.tools)
    parser.set_prompt_token_ids(given["prompt"])
    reasoning, content, calls = parser.parse(text, request, enable_auto_tools=True)
    found.append([reasoning, content, [[call.name, json.loads(call.arguments)] for call in calls or ()]])
json.dump(found, sys.stdout)
