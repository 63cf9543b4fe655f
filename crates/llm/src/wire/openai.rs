//! OpenAI's dialect: chat completions, embeddings, files and batches. Ollama, llama.cpp, vLLM, OpenRouter and many others
//! speak it too, each a little differently; what is read is read leniently.

mod answer;
mod batch;
mod embed;
mod error;
mod request;
mod stream;

pub use answer::{answer_from_json, answer_to_json};
pub use batch::{
    BatchCreate, batch_from_json, batch_to_json, batch_written_to_errors, create_from_json, create_to_json,
    input_from_json, input_to_json, line_from_json, line_to_json,
};
pub use embed::{
    VectorForm, embed_request_from_json, embed_request_to_json, embeddings_from_json, embeddings_to_json,
    vector_to_json, vectors_to_json,
};
pub use error::{error_from, error_to_json};
pub use request::{LimitName, check_choices, request_from_json, request_to_json};
pub use stream::{EventOptions, OpenAiStream, answer_to_events};
