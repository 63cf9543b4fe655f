//! Gemini's recorded shapes.

use serde_json::{Map, Value, json};

use super::read_stream;
use crate::error::Class;
use crate::provider::{BatchItem, BatchLine, BatchState, LineOutcome};
use crate::sse::SseEvent;
use crate::types::*;
use crate::wire::gemini::*;
use crate::wire::{BatchCounts, BatchObject};

fn answer() -> Value {
    json!({
        "candidates": [{ "content": { "parts": [
                { "text": "thinking aloud", "thought": true },
                { "text": "Hello" }, { "text": " there" }], "role": "model" },
            "finishReason": "STOP", "index": 0, "avgLogprobs": -0.1 }],
        "usageMetadata": { "promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 150,
            "thoughtsTokenCount": 40, "cachedContentTokenCount": 80,
            "promptTokensDetails": [{ "modality": "TEXT", "tokenCount": 100 }] },
        "modelVersion": "gemini-2.5-flash", "responseId": "resp1",
    })
}

#[test]
fn an_answer_is_read() {
    let read = answer_from_json(&answer()).unwrap();
    assert_eq!((read.text.as_str(), read.stop, read.id.as_str()), ("Hello there", Stop::End, "resp1"));
    assert_eq!(read.usage, Usage { fresh_in: 20, cache_write: 0, cache_read: 80, out: 10, reasoning: 40 });
}

#[test]
fn every_reason_to_stop_is_known() {
    for (reason, stop) in [
        ("STOP", Stop::End),
        ("MAX_TOKENS", Stop::Length),
        ("SAFETY", Stop::Refused),
        ("RECITATION", Stop::Refused),
        ("PROHIBITED_CONTENT", Stop::Refused),
    ] {
        let mut body = answer();
        body["candidates"][0]["finishReason"] = json!(reason);
        assert_eq!(answer_from_json(&body).unwrap().stop, stop, "{reason}");
    }
    let mut body = answer();
    body["candidates"][0]["finishReason"] = json!("MALFORMED_FUNCTION_CALL");
    let error = answer_from_json(&body).unwrap_err();
    assert_eq!(error.class, Class::BadShape);
    assert_eq!(error.answer.unwrap().usage.total(), 150, "it is paid for all the same");
    let blocked =
        json!({ "promptFeedback": { "blockReason": "SAFETY" }, "usageMetadata": { "promptTokenCount": 7 } });
    assert_eq!(answer_from_json(&blocked).unwrap().stop, Stop::Refused);
    assert_eq!(answer_from_json(&json!({})).unwrap_err().class, Class::Network);
}

#[test]
fn calls_without_ids_get_their_own() {
    let call = |name: &str| json!({ "functionCall": { "name": name, "args": { "a": 1 } } });
    let mut body = answer();
    body["candidates"][0]["content"]["parts"] = json!([call("f"), call("f")]);
    let read = answer_from_json(&body).unwrap();
    assert_eq!(read.stop, Stop::ToolCalls);
    let ids: Vec<&str> = read.tool_calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(ids, ["call_resp1_0", "call_resp1_1"]);

    let result = |name: &str, text: &str| json!({ "functionResponse": { "name": name, "response": { "output": text } } });
    let body = json!({ "contents": [
        { "role": "user", "parts": [{ "text": "hi" }] },
        { "role": "model", "parts": [call("f"), call("g"), call("f")] },
        { "role": "user", "parts": [result("g", "1"), result("f", "2"), result("f", "3")] }] });
    let request = request_from_json("m", body).unwrap();
    let answered: Vec<_> =
        request.messages[2..].iter().map(|message| message.tool_call_id.clone().unwrap()).collect();
    assert_eq!(answered, ["call_1", "call_0", "call_2"]);
}

#[test]
fn the_result_of_a_tool_carries_its_name() {
    let body = request_to_json(&super::rich_request()).unwrap();
    let turns = body["contents"].as_array().unwrap();
    assert_eq!(turns.len(), 4);
    let result = &turns[2]["parts"][1]["functionResponse"];
    assert_eq!(*result, json!({ "id": "c2", "name": "look", "response": { "output": "a dog" } }));
    assert_eq!(body["systemInstruction"], json!({ "parts": [{ "text": "be brief" }] }));
    assert_eq!(body["generationConfig"]["responseMimeType"], "application/json");
    assert_eq!(model_path("gemini-x"), "models/gemini-x");
    assert_eq!(model_path("tunedModels/x"), "tunedModels/x");
}

#[test]
fn what_types_cannot_say_is_passed_on() {
    let body = json!({
        "contents": [{ "role": "user", "parts": [
            { "text": "hi" }, { "inlineData": { "mimeType": "audio/wav", "data": "AA" } }] }],
        "generationConfig": { "temperature": 0.5, "thinkingConfig": { "thinkingBudget": 0 } },
        "tools": [{ "googleSearch": {} }],
        "toolConfig": { "functionCallingConfig": { "mode": "ANY", "allowedFunctionNames": ["a", "b"] } },
        "safetySettings": [{ "category": "X", "threshold": "BLOCK_NONE" }],
    });
    let request = request_from_json("m", body.clone()).unwrap();
    assert_eq!(request.temperature, Some(0.5));
    assert_eq!(request_to_json(&request).unwrap(), body);
}

#[test]
fn schemas_of_the_older_form_are_read() {
    let body = json!({ "contents": [], "generationConfig": { "responseMimeType": "application/json",
        "responseSchema": { "type": "OBJECT", "properties": { "type": { "type": "STRING" } } } } });
    let schema = request_from_json("m", body).unwrap().schema.unwrap().schema;
    assert_eq!(schema, json!({ "type": "object", "properties": { "type": { "type": "string" } } }));
}

#[test]
fn recorded_streams_are_read() {
    let chunk = |text: &str, reason: Option<&str>| {
        let mut chunk = answer();
        chunk["candidates"][0]["content"]["parts"] = json!([{ "text": text }]);
        match reason {
            Some(reason) => chunk["candidates"][0]["finishReason"] = json!(reason),
            None => drop(chunk["candidates"][0].as_object_mut().unwrap().shift_remove("finishReason")),
        }
        chunk
    };
    let chunks = [chunk("Hel", None), chunk("lo", None), chunk("", Some("STOP"))];
    let events: Vec<SseEvent> = chunks.iter().map(|chunk| SseEvent::unnamed(chunk.to_string())).collect();
    let (text, ends) = read_stream(&mut GeminiStream::default(), &events).unwrap();
    assert_eq!(text, "Hello");
    assert_eq!(ends[0].usage.reasoning, 40);
    assert_eq!(
        answer_from_json(&json!(chunks)).unwrap(),
        ends[0],
        "the same stream, not asked for as events"
    );

    let error = json!([{ "error": { "code": 503, "message": "overloaded", "status": "UNAVAILABLE" } }]);
    let error =
        read_stream(&mut GeminiStream::default(), &[SseEvent::unnamed(error.to_string())]).unwrap_err();
    assert_eq!((error.class, error.maybe_billed), (Class::Overloaded, true));
}

#[test]
fn vectors_survive() {
    let request = EmbedRequest {
        model: "e".to_owned(),
        inputs: vec!["a".into(), "b".into()],
        dimensions: Some(2),
        extra: Map::from_iter([("taskType".to_owned(), json!("CLUSTERING"))]),
    };
    let body = embed_request_to_json(&request).unwrap();
    assert_eq!(body["requests"][1]["model"], "models/e");
    assert_eq!(body["requests"][0]["taskType"], "CLUSTERING");
    assert_eq!(embed_request_from_json("models/e", body).unwrap(), request);
    let embeddings = Embeddings {
        model: "e".to_owned(),
        vectors: vec![vec![0.5, 1.5], vec![2.0, -1.0]],
        usage: Usage { fresh_in: 3, ..Usage::default() },
    };
    assert_eq!(embeddings_from_json("e", &embeddings_to_json(&embeddings)).unwrap(), embeddings);
    assert!(embeddings_from_json("e", &json!({})).is_err());
    let tokens = EmbedRequest { inputs: vec![EmbedInput::Tokens(vec![1])], ..request };
    assert_eq!(embed_request_to_json(&tokens).unwrap_err().class, Class::BadRequest);
}

#[test]
fn a_batch_of_texts_to_embed_survives() {
    let item = |id: &str, inputs: Vec<EmbedInput>| {
        let request =
            EmbedRequest { model: "e".to_owned(), inputs, dimensions: Some(2), ..Default::default() };
        BatchItem { custom_id: id.to_owned(), request: request.into() }
    };
    let items = [item("a", vec!["one".into()]), item("b", vec!["two".into()])];
    let body: Value = serde_json::from_slice(&create_inline_to_body("t", &items).unwrap()).unwrap();
    let first = &body["batch"]["inputConfig"]["requests"]["requests"][0]["request"];
    assert_eq!(first["content"]["parts"][0]["text"], "one");
    assert_eq!(create_from_json(Endpoint::Embeddings, "models/e", body).unwrap().items, items);
    let read = |item| input_from_json(Endpoint::Embeddings, "e", input_to_json(item)?);
    assert_eq!(read(&items[1]).unwrap(), items[1]);
    let two = item("c", vec!["one".into(), "two".into()]);
    assert_eq!(read(&two).unwrap_err().message, "gemini takes one text in a request of a batch, not 2");
    // As the service answers, with the tokens where either version of it counts them.
    for tokens in [json!({ "tokenCount": "3" }), json!({ "usageMetadata": { "promptTokenCount": 3 } })] {
        let mut line = json!({ "key": "a", "response": { "embedding": { "values": [0.5, -0.1] } } });
        line["response"].as_object_mut().unwrap().extend(tokens.as_object().unwrap().clone());
        let LineOutcome::Answered(answer) = line_from_json(&line).unwrap().outcome else { panic!("{line}") };
        assert_eq!((&answer.vectors, answer.usage.fresh_in), (&vec![vec![0.5, -0.1]], 3));
        let line = BatchLine { custom_id: Some("a".to_owned()), outcome: LineOutcome::Answered(answer) };
        let written = line_to_json(&line).unwrap();
        assert_eq!(
            written["response"]["embedding"]["values"],
            json!([0.5, -0.1]),
            "no digits without meaning"
        );
    }
}

#[test]
fn a_recorded_batch_is_read() {
    let lines = json!([
        { "response": answer(), "metadata": { "key": "b" } },
        { "error": { "code": 8, "message": "exhausted" }, "metadata": { "key": "a" } },
        { "error": { "code": 1, "message": "cancelled" }, "metadata": { "key": "c" } }]);
    let recorded = json!({
        "name": "batches/abc",
        "metadata": { "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch",
            "model": "models/gemini-2.5-flash", "displayName": "chunk-1", "state": "BATCH_STATE_SUCCEEDED",
            "createTime": "2024-08-20T18:37:24.100435Z", "endTime": "2024-08-20T19:00:00Z",
            "output": { "inlinedResponses": { "inlinedResponses": lines } },
            "batchStats": { "requestCount": "3", "successfulRequestCount": "1", "failedRequestCount": "2" } },
        "done": true, "response": {},
    });
    let batch = batch_from_json(&recorded).unwrap();
    assert_eq!((batch.state, batch.tag(), batch.requests), (BatchState::Completed, Some("chunk-1"), Some(3)));
    assert_eq!(batch.status().completed, Some(1));
    let lines = batch.inline.unwrap();
    assert_eq!(lines[0].custom_id.as_deref(), Some("b"));
    assert!(matches!(&lines[0].outcome, LineOutcome::Answered(answer) if answer.text == "Hello there"));
    assert!(matches!(&lines[1].outcome, LineOutcome::Failed(error) if error.class == Class::Throttled));
    assert!(matches!(&lines[2].outcome, LineOutcome::NotRun));

    let failed = json!({ "name": "batches/x", "done": true, "error": { "code": 3, "message": "bad file" },
        "metadata": { "state": "BATCH_STATE_FAILED" } });
    assert_eq!(batch_from_json(&failed).unwrap().error.as_deref(), Some("bad file"));
}

#[test]
fn every_state_has_a_meaning() {
    for (word, state) in [
        ("BATCH_STATE_PENDING", BatchState::Queued),
        ("BATCH_STATE_RUNNING", BatchState::Running),
        ("BATCH_STATE_SUCCEEDED", BatchState::Completed),
        ("BATCH_STATE_FAILED", BatchState::Failed),
        ("BATCH_STATE_CANCELLED", BatchState::Cancelled),
        ("BATCH_STATE_EXPIRED", BatchState::Expired),
        ("JOB_STATE_QUEUED", BatchState::Queued),
        ("JOB_STATE_CANCELLING", BatchState::Cancelling),
        ("JOB_STATE_PARTIALLY_SUCCEEDED", BatchState::Completed),
    ] {
        let operation = json!({ "name": "batches/x", "metadata": { "state": word } });
        assert_eq!(batch_from_json(&operation).unwrap().state, state, "{word}");
    }
    let bare = batch_from_json(&json!({ "name": "batches/x", "metadata": {} })).unwrap();
    assert_eq!((bare.state, bare.status().completed), (BatchState::Queued, None));
}

#[test]
fn written_batches_are_read() {
    let line = BatchLine {
        custom_id: Some("k".to_owned()),
        outcome: LineOutcome::Answered(Box::new(answer_from_json(&answer()).unwrap())),
    };
    let counts = BatchCounts { completed: 1, ..BatchCounts::default() };
    let written = BatchObject {
        state: BatchState::Completed,
        model: Some("m".to_owned()),
        requests: Some(1),
        counts: Some(counts),
        ended_at_s: Some(200),
        inline: Some(vec![line]),
        display_name: Some("tag".to_owned()),
        ..BatchObject::new("batches/1", 100)
    };
    let read = batch_from_json(&batch_to_json(&written)).unwrap();
    assert_eq!((read.tag(), read.model.as_deref(), read.ended_at_s), (Some("tag"), Some("m"), Some(200)));
    assert_eq!((read.counts, read.created_at_s), (Some(counts), 100));
    assert_eq!(read.inline.unwrap()[0].custom_id.as_deref(), Some("k"));
    let written = BatchObject { inline: None, output_file: Some("files/out".to_owned()), ..written };
    assert_eq!(batch_from_json(&batch_to_json(&written)).unwrap().output_file.as_deref(), Some("files/out"));
}

#[test]
fn bodies_and_lines_of_input_survive() {
    let request = super::rich_request_in(Dialect::Gemini);
    let items = ["a", "b"].map(|id| BatchItem { custom_id: id.to_owned(), request: request.clone().into() });
    let body: Value = serde_json::from_slice(&create_inline_to_body("a \"tag\"", &items).unwrap()).unwrap();
    let create = create_from_json(Endpoint::Chat, "models/m-1", body).unwrap();
    assert_eq!((create.display_name.as_str(), create.items.as_slice()), ("a \"tag\"", &items[..]));
    let create = create_from_json(Endpoint::Chat, "m", create_of_file_to_json("t", "files/x")).unwrap();
    assert_eq!((create.file.as_deref(), create.items.len()), (Some("files/x"), 0));
    assert_eq!(input_from_json(Endpoint::Chat, "m-1", input_to_json(&items[0]).unwrap()).unwrap(), items[0]);
}
