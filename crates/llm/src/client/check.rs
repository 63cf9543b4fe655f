//! Whether an answer is what was asked for.

use serde_json::Value;

use crate::client::Ask;
use crate::error::{Class, Error, Result};
use crate::repair;
use crate::types::{Answer, Stop};

/// The answer as JSON if a schema was asked for, or what is wrong with it.
pub(super) fn check(ask: &Ask, answer: &Answer) -> Result<Option<Value>> {
    let (asked, given) = (ask.request.vectors(), answer.vectors.len());
    if asked != given {
        let text = format!("the answer has {given} vectors for {asked} texts");
        return Err(Error::new(Class::Truncated, text));
    }
    let Some(schema) = &ask.schema else {
        return match answer.stop {
            Stop::Refused => Err(refused(answer)),
            // A text that was cut off is still of use; it says so itself.
            Stop::End | Stop::ToolCalls | Stop::Length => Ok(None),
        };
    };
    match answer.stop {
        Stop::Refused => Err(refused(answer)),
        Stop::ToolCalls => Ok(None),
        Stop::Length => {
            let text = format!(
                "the answer was cut off after {} tokens; allow more with max_tokens",
                answer.usage.output()
            );
            Err(Error::new(Class::Truncated, text))
        }
        Stop::End => {
            let (value, _) = repair::of_answer(answer)?;
            schema.check(&value).map_err(|problem| Error::new(Class::BadShape, problem))?;
            Ok(Some(value))
        }
    }
}

fn refused(answer: &Answer) -> Error {
    /// Enough to see why.
    const SHOWN_CHARS: usize = 200;
    let said: String = answer.text.chars().take(SHOWN_CHARS).collect();
    let text =
        if said.is_empty() { "the model declined".to_owned() } else { format!("the model declined: {said}") };
    Error::new(Class::Refused, text)
}
