"""A user's script: creates a message batch of LINES requests, polls it, reads its results. Prints what it got as JSON."""

import collections
import json
import os
import sys
import time

import anthropic

LINES = int(sys.argv[1])
client = anthropic.Anthropic(base_url=os.environ["BASE_URL"], api_key="any", max_retries=8)


def patiently(call):
    """A server that is down for a moment is asked again, as anybody would."""
    while True:
        try:
            return call()
        except anthropic.APIConnectionError:
            time.sleep(0.2)


def request(number):
    messages = [{"role": "user", "content": f"Tell {number}, please"}]
    return {"custom_id": f"c-{number}", "params": {"model": "sim-small", "max_tokens": 64, "messages": messages}}


requests = [request(number) for number in range(LINES)]
batch = patiently(lambda: client.messages.batches.create(requests=requests))
while batch.processing_status != "ended":
    time.sleep(0.5)
    batch = patiently(lambda: client.messages.batches.retrieve(batch.id))
results = patiently(lambda: list(client.messages.batches.results(batch.id)))
seen = collections.Counter(result.custom_id for result in results)
good = sum(1 for result in results if result.result.type == "succeeded" and result.result.message.content)
print(json.dumps({"status": batch.processing_status, "lines": len(results), "ids": len(seen), "twice": sum(count > 1 for count in seen.values()), "good": good}))
