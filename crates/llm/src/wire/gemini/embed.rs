//! Embeddings, many texts at once: `batchEmbedContents`.

use serde_json::{Value, json};

use crate::error::Result;
use crate::types::{EmbedRequest, Embeddings, Usage};
use crate::wire::fields::Fields;
use crate::wire::shapes::{count, no_answer};

use super::error::error_of_answer;
use super::request::model_path;

/// Writes a request.
pub fn embed_request_to_json(request: &EmbedRequest) -> Value {
    let one = |text: &String| {
        let content = json!({ "parts": [{ "text": text }] });
        let mut one = json!({ "model": model_path(&request.model), "content": content });
        if let Some(dimensions) = request.dimensions {
            one["outputDimensionality"] = json!(dimensions);
        }
        one
    };
    json!({ "requests": request.inputs.iter().map(one).collect::<Vec<_>>() })
}

/// Reads a request for a model.
pub fn embed_request_from_json(model: &str, value: Value) -> Result<EmbedRequest> {
    let mut fields = Fields::new(value, "")?;
    let mut dimensions = None;
    let mut inputs = Vec::new();
    for (index, request) in fields.needed_list("requests")?.into_iter().enumerate() {
        let mut request = Fields::new(request, &format!("requests[{index}]"))?;
        dimensions = request.count("outputDimensionality")?.or(dimensions);
        let content = request.object("content")?;
        let parts = request.need("content", "an object", content)?.needed_list("parts")?;
        inputs.push(parts.iter().filter_map(|part| part["text"].as_str()).collect());
    }
    Ok(EmbedRequest { model: model.strip_prefix("models/").unwrap_or(model).to_owned(), inputs, dimensions })
}

/// Writes vectors.
pub fn embeddings_to_json(embeddings: &Embeddings) -> Value {
    let vectors: Vec<Value> = embeddings.vectors.iter().map(|vector| json!({ "values": vector })).collect();
    json!({ "embeddings": vectors, "usageMetadata": { "promptTokenCount": embeddings.usage.input() } })
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
