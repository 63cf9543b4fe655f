//! A message in named events.

use serde_json::{Value, json};

use crate::error::Result;
use crate::sse::SseEvent;
use crate::types::{Answer, Delta, ToolCall};
use crate::wire::StreamReader;
use crate::wire::shapes::{merge, no_answer, pieces, text};

use super::answer::{stop_from_text, stop_to_text, usage_from_json, usage_to_json};
use super::error::error_of_answer;

/// Puts an answer together from events.
#[derive(Debug, Default)]
pub struct AnthropicStream {
    id: String,
    model: String,
    text: String,
    calls: Vec<(u64, ToolCall)>,
    stop_reason: Option<String>,
    usage: serde_json::Map<String, Value>,
    ended: bool,
}

impl StreamReader for AnthropicStream {
    fn dialect(&self) -> Option<&'static str> {
        Some("anthropic")
    }

    fn push(&mut self, event: &SseEvent) -> Result<Option<Delta>> {
        if self.ended || event.name.is_none() {
            return Ok(None);
        }
        let data: Value =
            serde_json::from_str(&event.data).map_err(|_| no_answer("an event of the stream is no JSON"))?;
        if let Some(error) = error_of_answer(&data) {
            return Err(error.maybe_billed());
        }
        match data["type"].as_str().or(event.name.as_deref()).unwrap_or_default() {
            "message_start" => {
                let message = &data["message"];
                self.id = text(&message["id"]).unwrap_or_default();
                self.model = text(&message["model"]).unwrap_or_default();
                self.count(&message["usage"]);
            }
            "content_block_start" => return Ok(self.block(&data)),
            "content_block_delta" => return Ok(self.delta(&data)),
            "message_delta" => {
                self.stop_reason = text(&data["delta"]["stop_reason"]).or(self.stop_reason.take());
                self.count(&data["usage"]);
            }
            "message_stop" => return Ok(Some(self.end())),
            // Pings, ends of blocks, and what is added later.
            _ => {}
        }
        Ok(None)
    }

    fn finish(&mut self) -> Result<Option<Delta>> {
        match (self.ended, &self.stop_reason) {
            (true, _) => Ok(None),
            (false, Some(_)) => Ok(Some(self.end())),
            (false, None) => Err(no_answer("the stream broke off before the answer was whole")),
        }
    }
}

impl AnthropicStream {
    /// Later counts replace earlier ones: they are sums.
    fn count(&mut self, usage: &Value) {
        if let Some(usage) = usage.as_object() {
            let told = usage.iter().filter(|(_, value)| !value.is_null());
            merge(&mut self.usage, &told.map(|(key, value)| (key.clone(), value.clone())).collect());
        }
    }

    fn block(&mut self, data: &Value) -> Option<Delta> {
        let block = &data["content_block"];
        match block["type"].as_str()? {
            "tool_use" => {
                let id = text(&block["id"]).unwrap_or_default();
                let name = text(&block["name"]).unwrap_or_default();
                let call = ToolCall { id, name, arguments: String::new() };
                self.calls.push((data["index"].as_u64().unwrap_or_default(), call));
                None
            }
            "text" => self.more_text(text(&block["text"])?),
            _ => None,
        }
    }

    fn delta(&mut self, data: &Value) -> Option<Delta> {
        let delta = &data["delta"];
        match delta["type"].as_str()? {
            "text_delta" => self.more_text(text(&delta["text"])?),
            "input_json_delta" => {
                let index = data["index"].as_u64().unwrap_or_default();
                let call = self.calls.iter_mut().find(|(own, _)| *own == index);
                call?.1.arguments.push_str(delta["partial_json"].as_str()?);
                None
            }
            _ => None,
        }
    }

    fn more_text(&mut self, piece: String) -> Option<Delta> {
        self.text.push_str(&piece);
        Some(Delta::Text(piece))
    }

    fn end(&mut self) -> Delta {
        self.ended = true;
        let calls = std::mem::take(&mut self.calls).into_iter().map(|(_, mut call)| {
            if call.arguments.is_empty() {
                call.arguments = "{}".to_owned();
            }
            call
        });
        Delta::End(Answer {
            id: std::mem::take(&mut self.id),
            model: std::mem::take(&mut self.model),
            text: std::mem::take(&mut self.text),
            tool_calls: calls.collect(),
            vectors: Vec::new(),
            stop: stop_from_text(self.stop_reason.as_deref()),
            usage: usage_from_json(&Value::Object(std::mem::take(&mut self.usage))),
            own: None,
        })
    }
}

/// Writes an answer as the events of a stream.
pub fn answer_to_events(answer: &Answer) -> Vec<SseEvent> {
    let event = |data: Value| SseEvent::named(data["type"].as_str().unwrap_or_default(), data.to_string());
    let mut at_start = usage_to_json(&answer.usage);
    at_start["output_tokens"] = json!(1);
    let message = json!({
        "id": answer.id, "type": "message", "role": "assistant", "model": answer.model, "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": at_start,
    });
    let mut events = vec![event(json!({ "type": "message_start", "message": message }))];
    events.push(event(json!({ "type": "ping" })));
    let mut blocks: Vec<(Value, Vec<Value>)> = Vec::new();
    if !answer.text.is_empty() || answer.tool_calls.is_empty() {
        let deltas =
            pieces(&answer.text).into_iter().map(|text| json!({ "type": "text_delta", "text": text }));
        blocks.push((json!({ "type": "text", "text": "" }), deltas.collect()));
    }
    for call in &answer.tool_calls {
        let pieces = pieces(&call.arguments).into_iter();
        let deltas = pieces.map(|piece| json!({ "type": "input_json_delta", "partial_json": piece }));
        let start = json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": {} });
        blocks.push((start, deltas.collect()));
    }
    for (index, (start, deltas)) in blocks.into_iter().enumerate() {
        events.push(event(json!({ "type": "content_block_start", "index": index, "content_block": start })));
        let delta = |delta| event(json!({ "type": "content_block_delta", "index": index, "delta": delta }));
        events.extend(deltas.into_iter().map(delta));
        events.push(event(json!({ "type": "content_block_stop", "index": index })));
    }
    let stop = json!({ "stop_reason": stop_to_text(answer.stop), "stop_sequence": null });
    let usage = json!({ "output_tokens": answer.usage.output() });
    events.push(event(json!({ "type": "message_delta", "delta": stop, "usage": usage })));
    events.push(event(json!({ "type": "message_stop" })));
    events
}
