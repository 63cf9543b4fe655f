//! Gemini's dialect: generateContent, embeddings, and batch mode. The model stands in the address, not in the body, so
//! reading a request takes it as an argument.

mod answer;
mod batch;
mod embed;
mod error;
mod request;
mod stream;

pub use answer::{answer_from_json, answer_to_json};
pub use batch::{
    BatchCreate, batch_from_json, batch_to_json, create_from_json, create_inline_to_body,
    create_of_file_to_json, input_from_json, input_to_json, line_from_json, line_to_json,
};
pub use embed::{embed_request_from_json, embed_request_to_json, embeddings_from_json, embeddings_to_json};
pub use error::{error_from, error_to_json};
pub use request::{model_path, request_from_json, request_to_json};
pub use stream::{GeminiStream, answer_to_events};
