//! Embeddings, many texts at once: `batchEmbedContents`; in batch mode one a line.

use serde_json::{Map, Value, json};

use crate::error::{Class, Error, Result};
use crate::types::{Answer, EmbedInput, EmbedRequest, Embeddings, Usage};
use crate::wire::fields::Fields;
use crate::wire::shapes::{count, no_answer, numbers};

use super::error::error_of_answer;
use super::request::model_path;

/// Fields of a text to embed that other dialects do not have; theirs stay behind.
const OWN: [&str; 2] = ["taskType", "title"];

/// Writes a request.
pub fn embed_request_to_json(request: &EmbedRequest) -> Result<Value> {
    let requests = request.inputs.iter().map(|input| content_request_to_json(request, input));
    Ok(json!({ "requests": requests.collect::<Result<Vec<_>>>()? }))
}

/// Writes the request for one of the texts.
fn content_request_to_json(request: &EmbedRequest, input: &EmbedInput) -> Result<Value> {
    let EmbedInput::Text(text) = input else {
        return Err(Error::new(Class::BadRequest, "gemini embeds texts, not tokens"));
    };
    let content = json!({ "parts": [{ "text": text }] });
    let mut one = Map::new();
    one.insert("model".to_owned(), json!(model_path(&request.model)));
    one.insert("content".to_owned(), content);
    one.extend(request.dimensions.map(|length| ("outputDimensionality".to_owned(), json!(length))));
    one.extend(request.extra.clone().into_iter().filter(|(name, _)| OWN.contains(&name.as_str())));
    Ok(Value::Object(one))
}

/// Writes the request of a line of a batch, which has one text.
pub(super) fn embed_line_to_json(request: &EmbedRequest) -> Result<Value> {
    match &request.inputs[..] {
        [input] => content_request_to_json(request, input),
        inputs => {
            let text = format!("gemini takes one text in a request of a batch, not {}", inputs.len());
            Err(Error::new(Class::BadRequest, text))
        }
    }
}

/// Reads the request of a line of a batch for a model.
pub(super) fn embed_line_from_json(model: &str, value: Value) -> Result<EmbedRequest> {
    let requests = Map::from_iter([("requests".to_owned(), Value::Array(vec![value]))]);
    embed_request_from_json(model, Value::Object(requests))
}

/// Reads a request for a model. Fields of the provider's own are those of the last text.
pub fn embed_request_from_json(model: &str, value: Value) -> Result<EmbedRequest> {
    let mut fields = Fields::new(value, "")?;
    let model = model.strip_prefix("models/").unwrap_or(model).to_owned();
    let mut read = EmbedRequest { model, ..EmbedRequest::default() };
    for (index, request) in fields.needed_list("requests")?.into_iter().enumerate() {
        let mut request = Fields::new(request, &format!("requests[{index}]"))?;
        read.dimensions = request.count("outputDimensionality")?.or(read.dimensions);
        let content = request.object("content")?;
        let parts = request.need("content", "an object", content)?.needed_list("parts")?;
        let text: String = parts.iter().filter_map(|part| part["text"].as_str()).collect();
        read.inputs.push(EmbedInput::Text(text));
        request.take("model");
        read.extra = request.rest();
    }
    Ok(read)
}

/// Writes vectors.
pub fn embeddings_to_json(embeddings: &Embeddings) -> Value {
    let vectors: Vec<Value> =
        embeddings.vectors.iter().map(|vector| json!({ "values": numbers(vector) })).collect();
    json!({ "embeddings": vectors, "usageMetadata": { "promptTokenCount": embeddings.usage.input() } })
}

/// Writes the vector of a line of a batch.
pub(super) fn embed_answer_to_json(answer: &Answer) -> Value {
    let vector = answer.vectors.first().map(Vec::as_slice).unwrap_or_default();
    json!({
        "embedding": { "values": numbers(vector) },
        "usageMetadata": { "promptTokenCount": answer.usage.input() },
    })
}

/// Reads the vector of a line of a batch. Some answers count their tokens outside of the usage.
pub(super) fn embed_answer_from_json(value: &Value) -> Result<Answer> {
    let mut list = json!({ "embeddings": [value["embedding"]], "usageMetadata": value["usageMetadata"] });
    if list["usageMetadata"].is_null() {
        list["usageMetadata"] = json!({ "promptTokenCount": value["tokenCount"] });
    }
    embeddings_from_json("", &list).map(Answer::from)
}

/// Reads the vectors of a model, which the answer does not name.
pub fn embeddings_from_json(model: &str, value: &Value) -> Result<Embeddings> {
    if let Some(error) = error_of_answer(value) {
        return Err(error);
    }
    let list =
        value["embeddings"].as_array().ok_or_else(|| no_answer("the answer has no list of vectors"))?;
    let vector = |item: &Value| -> Option<Vec<f32>> {
        item["values"].as_array()?.iter().map(|number| number.as_f64().map(|n| n as f32)).collect()
    };
    let vectors = list.iter().map(vector).collect::<Option<Vec<_>>>();
    Ok(Embeddings {
        model: model.to_owned(),
        vectors: vectors.ok_or_else(|| no_answer("a vector of the answer cannot be read"))?,
        usage: Usage { fresh_in: count(&value["usageMetadata"]["promptTokenCount"]), ..Usage::default() },
    })
}
