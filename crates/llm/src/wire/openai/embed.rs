//! Embeddings. The official SDKs ask for base64 of little-endian 32-bit floats by default.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::error::Result;
use crate::types::{EmbedRequest, Embeddings, Usage};
use crate::wire::fields::{Fields, unknown, wrong};
use crate::wire::shapes::{count, no_answer, text};

use super::error::error_of_answer;

/// How vectors are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VectorForm {
    /// A list of numbers.
    #[default]
    Float,
    /// Base64 of little-endian 32-bit floats.
    Base64,
}

/// Writes a request. It asks for lists: every engine knows them.
pub fn embed_request_to_json(request: &EmbedRequest) -> Value {
    let mut body = json!({ "model": request.model, "input": request.inputs, "encoding_format": "float" });
    if let Some(dimensions) = request.dimensions {
        body["dimensions"] = json!(dimensions);
    }
    body
}

/// Reads a request, and how the vectors are wanted.
pub fn embed_request_from_json(value: Value) -> Result<(EmbedRequest, VectorForm)> {
    let mut fields = Fields::new(value, "")?;
    let form = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => VectorForm::Float,
        Some("base64") => VectorForm::Base64,
        Some(other) => return Err(unknown("encoding_format", "\"float\" or \"base64\"", other)),
    };
    if fields.peek("input").is_none() {
        return Err(wrong("input", "a string or a list of strings", None));
    }
    let inputs = fields.texts("input")?;
    let dimensions = fields.count("dimensions")?;
    Ok((EmbedRequest { model: fields.needed_text("model")?, inputs, dimensions }, form))
}

/// Writes vectors.
pub fn embeddings_to_json(embeddings: &Embeddings, form: VectorForm) -> Value {
    let vector = |vector: &Vec<f32>| match form {
        VectorForm::Float => json!(vector),
        VectorForm::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            json!(STANDARD.encode(bytes))
        }
    };
    let item = |(index, own): (usize, &Vec<f32>)| json!({ "object": "embedding", "index": index, "embedding": vector(own) });
    let data: Vec<Value> = embeddings.vectors.iter().enumerate().map(item).collect();
    let tokens = embeddings.usage.input();
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    json!({ "object": "list", "data": data, "model": embeddings.model, "usage": usage })
}

/// Reads vectors of either form, and puts them in the order of the texts.
pub fn embeddings_from_json(value: &Value) -> Result<Embeddings> {
    if let Some(error) = error_of_answer(value) {
        return Err(error);
    }
    let data = value["data"].as_array().ok_or_else(|| no_answer("the answer has no list of vectors"))?;
    let mut vectors = Vec::with_capacity(data.len());
    for (place, item) in data.iter().enumerate() {
        let vector = vector_from_json(&item["embedding"])
            .ok_or_else(|| no_answer(format!("vector {place} of the answer cannot be read")))?;
        vectors.push((item["index"].as_u64().unwrap_or(place as u64), vector));
    }
    vectors.sort_by_key(|(index, _)| *index);
    Ok(Embeddings {
        model: text(&value["model"]).unwrap_or_default(),
        vectors: vectors.into_iter().map(|(_, vector)| vector).collect(),
        usage: Usage { fresh_in: count(&value["usage"]["prompt_tokens"]), ..Usage::default() },
    })
}

fn vector_from_json(value: &Value) -> Option<Vec<f32>> {
    match value {
        Value::Array(numbers) => numbers.iter().map(|number| number.as_f64().map(|n| n as f32)).collect(),
        Value::String(text) => {
            let bytes = STANDARD.decode(text).ok()?;
            let (numbers, rest) = bytes.as_chunks::<4>();
            rest.is_empty().then(|| numbers.iter().map(|number| f32::from_le_bytes(*number)).collect())
        }
        _ => None,
    }
}
