//! Values under names of secrets are not shown to whoever only looks. Who may work gets whole payloads anyway.

use crate::ctx::Ctx;
use crate::guard::Caller;
pub(super) use crate::redact::shown as redacted;
use crate::tokens::Scope;

/// Whether what is shown to this caller is redacted. Without a token nobody has said that they may work.
pub(super) fn applies(ctx: &Ctx, caller: &Caller) -> bool {
    let Some(name) = &caller.0 else { return true };
    !ctx.tokens.list().iter().any(|token| token.name == *name && token.allows(Scope::Work))
}
