"""A user's script: uploads LINES requests, creates a batch, polls it, reads its answers. Prints what it got as JSON."""

import collections
import io
import json
import os
import sys
import time

import openai

LINES = int(sys.argv[1])
client = openai.OpenAI(base_url=os.environ["BASE_URL"] + "/v1", api_key="any", max_retries=8)


def patiently(call):
    """A server that is down for a moment is asked again, as anybody would."""
    while True:
        try:
            return call()
        except openai.APIConnectionError:
            time.sleep(0.2)


def line(number):
    body = {"model": "sim-small", "messages": [{"role": "user", "content": f"Say {number}, please"}]}
    return json.dumps({"custom_id": f"c-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})


content = "\n".join(line(number) for number in range(LINES)).encode()
file = patiently(lambda: client.files.create(file=("input.jsonl", io.BytesIO(content)), purpose="batch"))
batch = patiently(lambda: client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"))
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.5)
    batch = patiently(lambda: client.batches.retrieve(batch.id))
output = patiently(lambda: client.files.content(batch.output_file_id).text)
answers = [json.loads(line) for line in output.splitlines()]
seen = collections.Counter(answer["custom_id"] for answer in answers)
good = sum(1 for answer in answers if answer["response"]["body"]["choices"][0]["message"]["content"])
print(json.dumps({"status": batch.status, "lines": len(answers), "ids": len(seen), "twice": sum(count > 1 for count in seen.values()), "good": good}))
