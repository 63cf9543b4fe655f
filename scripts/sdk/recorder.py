"""Plays OpenAI, Anthropic and Gemini over HTTP, as strictly as the types of their SDKs: each request is validated against the request
types of the provider's own SDK, with unknown fields forbidden at every level. Answers are the least that a client can read."""

import collections
import http.server
import importlib
import json
import pkgutil
import re
import threading
import typing

# Fields of Anthropic's that its newest SDK does not type: sampling, which the service still takes, and those of its beta interface.
UNTYPED = {"temperature", "top_p", "top_k", "context_management", "mcp_servers"}
Entry = collections.namedtuple("Entry", "provider text faults")


class Recorder:
    """Plays all providers on one port, and remembers each request with what its SDK's types say against it."""

    def __init__(self):
        self.checks, self.entries, self.objects, self.count = checks(), [], {}, 0
        handler = type("Handler", (Provider,), {"recorder": self})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_port}"

    def record(self, provider, kind, body):
        """The faults of a request."""
        found = self.checks[kind](body)
        self.count += 1
        self.entries.append(Entry(provider, json.dumps(body, separators=(",", ":"), ensure_ascii=False), found))
        return found

    def take(self, case):
        """The requests of a case."""
        is_of = lambda entry: re.search(rf"case:{case}\b", entry.text)
        taken = [entry for entry in self.entries if is_of(entry)]
        self.entries = [entry for entry in self.entries if not is_of(entry)]
        return taken


def checks():
    """By kind of request: a function that answers what is wrong with a body."""
    import anthropic.types
    import openai.types
    import pydantic
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming as Message
    from google.genai import types as google
    from openai.types.chat import completion_create_params as chat
    from openai.types.embedding_create_params import EmbeddingCreateParams

    for package in (openai.types, anthropic.types):
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            for value in vars(importlib.import_module(info.name)).values():
                if typing.is_typeddict(value) or hasattr(value, "__required_keys__"):
                    value.__pydantic_config__ = {"extra": "forbid", "arbitrary_types_allowed": True}

    def model(name, **fields):
        config = pydantic.ConfigDict(extra="forbid")
        return pydantic.create_model(name, __config__=config, **{field: (kind, ...) if needed else (kind | None, None)
                                                                 for field, (kind, needed) in fields.items()})

    generate = model("Generate", contents=(list[google.Content], True), systemInstruction=(google.Content, False),
                     generationConfig=(google.GenerationConfig, False), tools=(list[google.Tool], False), toolConfig=(google.ToolConfig, False),
                     safetySettings=(list[google.SafetySetting], False), cachedContent=(str, False))
    embed = model("Embed", model=(str, True), content=(google.Content, True), taskType=(str, False), title=(str, False),
                  outputDimensionality=(int, False))
    types = {"chat": chat.CompletionCreateParamsNonStreaming, "chat_stream": chat.CompletionCreateParamsStreaming, "message": Message,
             "embeddings": EmbeddingCreateParams, "generate": generate, "embed": embed}

    def check(kind):
        adapter = pydantic.TypeAdapter(types[kind])

        def faults(body):
            if kind == "message":
                body = {name: value for name, value in body.items() if name not in UNTYPED and not (name == "stream" and value)}
            try:
                exhaust(adapter.validate_python(body, by_alias=True, by_name=False))
            except pydantic.ValidationError as error:
                return [f"{'.'.join(map(str, fault['loc']))}: {fault['type']}" for fault in error.errors()]
            return []
        return faults
    return {kind: check(kind) for kind in types}


def exhaust(value):
    """Lists of TypedDicts are validated while they are read."""
    if isinstance(value, dict):
        value = value.values()
    if not isinstance(value, (str, bytes)) and hasattr(value, "__iter__"):
        for item in value:
            exhaust(item)


class Provider(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.path.split("?")[0]
        found = self.recorder.objects.get(path.removesuffix(":download"))
        if found is None and path.endswith("/models"):
            found = {"data": [], "models": []}
        self.tell(404 if found is None else 200, found if found is not None else {"error": {"message": f"no {path}"}})

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.split("?")[0]
        verb = path.rsplit(":", 1)[-1] if path.startswith("/v1beta") else path
        getattr(self, {"/v1/chat/completions": "chat", "/v1/embeddings": "embeddings", "/v1/files": "upload", "/v1/batches": "batch",
                       "/v1/messages": "messages", "/v1/messages/batches": "message_batch", "generateContent": "generate",
                       "streamGenerateContent": "generate_stream", "batchEmbedContents": "embed", "batchGenerateContent": "generate_batch",
                       "asyncBatchEmbedContent": "embed_batch"}[verb])(raw)

    def tell(self, status, body):
        text = body if isinstance(body, str) else json.dumps(body)
        kind = "text/event-stream" if text.startswith(("data:", "event:")) else "application/json"
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def judge(self, provider, kind, body, good):
        """The answer, or the refusal that the service would give."""
        faults = self.recorder.record(provider, kind, body)
        if not faults:
            return 200, good
        error = {"message": "; ".join(faults[:3]), "type": "invalid_request_error", "code": 400, "status": "INVALID_ARGUMENT"}
        return 400, {"type": "error", "error": error}

    def chat(self, raw):
        body = json.loads(raw)
        if not body.get("stream"):
            return self.tell(*self.judge("openai", "chat", body, COMPLETION))
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        chunks = [{**chunk, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": None}]},
                  {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, {**chunk, "choices": [], "usage": COMPLETION["usage"]}]
        events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        self.tell(*self.judge("openai", "chat_stream", body, events))

    def embeddings(self, raw):
        self.tell(*self.judge("openai", "embeddings", json.loads(raw), VECTORS))

    def upload(self, raw):
        content = re.search(rb'name="file".*?\r\n\r\n(.*?)\r\n--', raw, re.S).group(1)
        name = f"file-{len(self.recorder.objects)}"
        self.recorder.objects[f"/v1/files/{name}"] = content.decode()
        self.tell(200, {"id": name, "object": "file", "bytes": len(content), "created_at": 1, "filename": "f", "purpose": "batch"})

    def batch(self, raw):
        create = json.loads(raw)
        lines = [json.loads(line) for line in self.recorder.objects[f"/v1/files/{create['input_file_id']}"].splitlines()]
        kind, good = ("embeddings", VECTORS) if "embeddings" in create["endpoint"] else ("chat", COMPLETION)
        told = []
        for line in lines:
            status, body = self.judge("openai", kind, line["body"], good)
            told.append({"id": "r", "custom_id": line["custom_id"], "response": {"status_code": status, "request_id": "r", "body": body}, "error": None})
        name = f"batch_{len(self.recorder.objects)}"
        self.recorder.objects[f"/v1/files/{name}-out/content"] = "\n".join(map(json.dumps, told))
        batch = {"id": name, "object": "batch", "created_at": 1, "status": "completed", "output_file_id": f"{name}-out",
                 "request_counts": {"total": len(told), "completed": len(told), "failed": 0}, **create}
        self.recorder.objects[f"/v1/batches/{name}"] = batch
        self.tell(200, batch)

    def messages(self, raw):
        body = json.loads(raw)
        if not body.get("stream"):
            return self.tell(*self.judge("anthropic", "message", body, MESSAGE))
        events = [{"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
                  {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
                  {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
                  {"type": "content_block_stop", "index": 0},
                  {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 1}},
                  {"type": "message_stop"}]
        text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        self.tell(*self.judge("anthropic", "message", body, text))

    def message_batch(self, raw):
        lines, name = [], f"msgbatch_{len(self.recorder.objects)}"
        for request in json.loads(raw)["requests"]:
            status, body = self.judge("anthropic", "message", request["params"], MESSAGE)
            result = {"type": "succeeded", "message": body} if status == 200 else {"type": "errored", "error": body}
            lines.append(json.dumps({"custom_id": request["custom_id"], "result": result}))
        counts = {"processing": 0, "succeeded": len(lines), "errored": 0, "canceled": 0, "expired": 0}
        batch = {"id": name, "type": "message_batch", "processing_status": "ended", "request_counts": counts, "created_at": "2026-01-01T00:00:00Z",
                 "expires_at": "2026-01-02T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z", "results_url": "x"}
        self.recorder.objects |= {f"/v1/messages/batches/{name}": batch, f"/v1/messages/batches/{name}/results": "\n".join(lines)}
        self.tell(200, batch)

    def generate(self, raw):
        self.tell(*self.judge("gemini", "generate", json.loads(raw), CONTENT))

    def generate_stream(self, raw):
        self.tell(*self.judge("gemini", "generate", json.loads(raw), f"data: {json.dumps(CONTENT)}\n\n"))

    def embed(self, raw):
        judged = [self.judge("gemini", "embed", request, VECTOR) for request in json.loads(raw)["requests"]]
        refused = [body for status, body in judged if status != 200]
        self.tell(*((400, refused[0]) if refused else (200, {"embeddings": [VECTOR for _ in judged]})))

    def generate_batch(self, raw, kind="generate", good=None):
        lines = []
        for line in json.loads(raw)["batch"]["inputConfig"]["requests"]["requests"]:
            status, body = self.judge("gemini", kind, line["request"], good or CONTENT)
            lines.append({"metadata": line["metadata"], **({"response": body} if status == 200 else {"error": body["error"]})})
        name = f"batches/{len(self.recorder.objects)}"
        metadata = {"displayName": json.loads(raw)["batch"]["displayName"], "state": "BATCH_STATE_SUCCEEDED", "createTime": "2026-01-01T00:00:00Z"}
        output = {"inlinedResponses": {"inlinedResponses": lines}}
        self.recorder.objects[f"/v1beta/{name}"] = {"name": name, "metadata": {**metadata, "output": output}, "done": True, "response": output}
        self.tell(200, {"name": name, "metadata": {**metadata, "state": "BATCH_STATE_PENDING"}})

    def embed_batch(self, raw):
        self.generate_batch(raw, "embed", {"embedding": VECTOR})


COMPLETION = {"id": "c", "object": "chat.completion", "created": 1, "model": "m",
              "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
              "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "Hi"}],
           "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
CONTENT = {"responseId": "g", "modelVersion": "m", "candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}, "finishReason": "STOP"}],
           "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}}
VECTOR = {"values": [0.5, 0.25]}
VECTORS = {"object": "list", "model": "m", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}],
           "usage": {"prompt_tokens": 1, "total_tokens": 1}}
