//! Embeddings. The official SDKs ask for base64 of little-endian 32-bit floats by default.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::types::{EmbedInput, EmbedRequest, Embeddings, Usage, vector_from_base64, vector_to_base64};
use crate::wire::fields::{Fields, unknown, wrong};
use crate::wire::shapes::{count, merge, no_answer, numbers, text};

use super::error::error_of_answer;

/// How vectors are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VectorForm {
    /// A list of numbers.
    #[default]
    Float,
    /// Base64 of little-endian 32-bit floats.
    Base64,
}

/// Writes a request. It asks for lists: every engine knows them.
pub fn embed_request_to_json(request: &EmbedRequest) -> Value {
    let EmbedRequest { model, inputs, dimensions, extra } = request;
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(model));
    body.insert("input".to_owned(), json!(inputs));
    body.insert("encoding_format".to_owned(), json!("float"));
    body.extend(dimensions.map(|dimensions| ("dimensions".to_owned(), json!(dimensions))));
    merge(&mut body, extra);
    Value::Object(body)
}

/// Reads a request, and how the vectors are wanted.
pub fn embed_request_from_json(value: Value) -> Result<(EmbedRequest, VectorForm)> {
    let mut fields = Fields::new(value, "")?;
    let form = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => VectorForm::Float,
        Some("base64") => VectorForm::Base64,
        Some(other) => return Err(unknown("encoding_format", "\"float\" or \"base64\"", other)),
    };
    let inputs = inputs_from_json(fields.take("input"))?;
    let dimensions = fields.count("dimensions")?;
    let model = fields.needed_text("model")?;
    Ok((EmbedRequest { model, inputs, dimensions, extra: fields.rest() }, form))
}

/// A text, or its tokens, or a list of either.
fn inputs_from_json(value: Option<Value>) -> Result<Vec<EmbedInput>> {
    const EXPECTED: &str = "a text, a list of texts, or lists of tokens";
    match value {
        Some(Value::String(text)) => Ok(vec![EmbedInput::Text(text)]),
        Some(Value::Array(items)) if items.first().is_some_and(Value::is_number) => {
            Ok(vec![input_from_json(Value::Array(items), "input")?])
        }
        Some(Value::Array(items)) => {
            let input = |(index, item)| input_from_json(item, &format!("input[{index}]"));
            items.into_iter().enumerate().map(input).collect()
        }
        other => Err(wrong("input", EXPECTED, other.as_ref())),
    }
}

fn input_from_json(value: Value, at: &str) -> Result<EmbedInput> {
    let token = |token: &Value| token.as_u64().and_then(|token| u32::try_from(token).ok());
    match value {
        Value::String(text) => Ok(EmbedInput::Text(text)),
        Value::Array(items) => {
            let tokens = items.iter().map(token).collect::<Option<Vec<_>>>();
            tokens
                .map(EmbedInput::Tokens)
                .ok_or_else(|| wrong(at, "whole numbers", Some(&Value::Array(items))))
        }
        other => Err(wrong(at, "a text or a list of tokens", Some(&other))),
    }
}

/// Writes vectors.
pub fn embeddings_to_json(embeddings: &Embeddings, form: VectorForm) -> Value {
    vectors_to_json(&embeddings.model, &embeddings.vectors, &embeddings.usage, form)
}

/// Writes vectors of a model.
pub fn vectors_to_json(model: &str, vectors: &[Vec<f32>], usage: &Usage, form: VectorForm) -> Value {
    let item = |(index, own): (usize, &Vec<f32>)| json!({ "object": "embedding", "index": index, "embedding": vector_to_json(own, form) });
    let data: Vec<Value> = vectors.iter().enumerate().map(item).collect();
    let tokens = usage.input();
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    json!({ "object": "list", "data": data, "model": model, "usage": usage })
}

/// Writes a vector.
pub fn vector_to_json(vector: &[f32], form: VectorForm) -> Value {
    match form {
        VectorForm::Float => numbers(vector),
        VectorForm::Base64 => json!(vector_to_base64(vector)),
    }
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
        Value::String(text) => vector_from_base64(text),
        _ => None,
    }
}
