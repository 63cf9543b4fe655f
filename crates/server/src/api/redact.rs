//! Values under names of secrets are not shown to whoever only looks. Who may work gets whole payloads anyway.

use longhaul_queue::Json;
use serde_json::Value;

use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::redact;
use crate::tokens::Scope;

/// Whether what is shown to this caller is redacted. Without a token nobody has said that they may work.
pub(super) fn applies(ctx: &Ctx, caller: &Caller) -> bool {
    let Some(name) = &caller.0 else { return true };
    !ctx.tokens.list().iter().any(|token| token.name == *name && token.allows(Scope::Work))
}

/// The value without its secrets.
pub(super) fn redacted(json: &Json) -> Json {
    // Most values have none, and are shown as they are.
    let Ok(mut value) = json.to::<Value>() else { return json.clone() };
    if !redact::json(&mut value) {
        return json.clone();
    }
    Json::of(&value).unwrap_or_else(|_| Json::null())
}
