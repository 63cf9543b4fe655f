//! Vectors of texts: unit length, the same for the same text, nearer the more words two texts share.

use super::content::model_name;
use super::draw::{Draw, Purpose, hash_of};
use longhaul_llm::types::{EmbedInput, EmbedRequest, Embeddings, Usage};

/// Length of a vector when none is asked for.
pub const EMBED_DIMENSIONS: usize = 256;
/// Longest vector that can be asked for.
pub const EMBED_DIMENSIONS_MAX: usize = 4096;
/// In how many places a word leaves its mark. Few enough that two words seldom meet.
const PLACES: usize = 8;

/// What a request is answered with.
pub(crate) fn embeddings(seed: u64, request: &EmbedRequest, input_tokens: u64) -> Embeddings {
    // Tokens are words of a language that only the simulator speaks.
    let words = |input: &EmbedInput| match input {
        EmbedInput::Text(text) => text.clone(),
        EmbedInput::Tokens(tokens) => format!("{tokens:?}"),
    };
    let vector = |input: &EmbedInput| embedding(seed, &words(input), request.dimensions);
    Embeddings {
        model: model_name(&request.model).to_owned(),
        vectors: request.inputs.iter().map(vector).collect(),
        usage: Usage { fresh_in: input_tokens, ..Usage::default() },
    }
}

/// The vector of a text.
pub fn embedding(seed: u64, text: &str, dimensions: Option<u32>) -> Vec<f32> {
    let wanted = dimensions.and_then(|wanted| usize::try_from(wanted).ok()).unwrap_or(EMBED_DIMENSIONS);
    let length = wanted.clamp(1, EMBED_DIMENSIONS_MAX);
    let mut vector = vec![0.0f32; length];
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        mark(&mut vector, Draw::new(seed, hash_of(&word.to_lowercase()), Purpose::Answer));
    }
    let norm = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if norm < f32::EPSILON {
        // No word, or words that cancel each other: some vector, but of unit length too.
        vector.fill(0.0);
        vector[0] = 1.0;
    } else {
        for value in &mut vector {
            *value /= norm;
        }
    }
    vector
}

fn mark(vector: &mut [f32], mut draw: Draw) {
    for _ in 0..PLACES {
        let bits = draw.next();
        let place = usize::try_from(bits >> 1).unwrap_or_default() % vector.len();
        vector[place] += if bits & 1 == 0 { 1.0 } else { -1.0 };
    }
}
