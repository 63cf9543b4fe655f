//! Anthropic's dialect: messages and message batches. Content is blocks; instructions stand apart from the turns; a tool's
//! result is a block of the user's turn.

mod answer;
mod batch;
mod error;
mod request;
mod stream;

pub use answer::{answer_from_json, answer_to_json};
pub use batch::{
    batch_from_json, batch_to_json, create_from_json, create_to_body, item_from_json, item_to_json,
    line_from_json, line_to_json,
};
pub use error::{error_from, error_to_json};
pub use request::{MAX_TOKENS_DEFAULT, request_from_json, request_to_json};
pub use stream::{AnthropicStream, answer_to_events};
