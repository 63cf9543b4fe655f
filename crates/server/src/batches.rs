//! Batches of SDKs behind this server: whose they are. A batch belongs to the token that created it; how batches live and what they
//! answer is the pipeline's business.

use axum::http::StatusCode;
use longhaul_prompts::sdk_batches::{Batch, Form, NewBatch, Newer};
use longhaul_queue::JobId;
use longhaul_queue::store::Page;

use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::tokens::Scope;

pub(crate) mod access;

/// Creates a batch, or answers the one that the same call created before.
pub(crate) async fn create(ctx: &Ctx, new: NewBatch) -> Result<Batch, Problem> {
    ctx.batches.create(new).await?.ok_or_else(|| {
        Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "idempotency_key_reused",
            "this Idempotency-Key was used for another batch: use a new one",
        )
    })
}

/// The batch of a job, which must be one of this form and the caller's own.
pub(crate) async fn get(ctx: &Ctx, caller: &Caller, id: JobId, form: Form) -> Result<Batch, Problem> {
    let batch = ctx.batches.get(id).await?;
    let is_theirs = |batch: &Batch| batch.payload.form == form && caller.owns(batch.payload.owner.as_deref());
    batch.filter(is_theirs).ok_or_else(|| Problem::not_found(format!("there is no batch {id}")))
}

/// The caller's batches of a form, newest first; everybody's for one who may change everything.
pub(crate) async fn list(
    ctx: &Ctx,
    caller: &Caller,
    form: Form,
    from: Newer,
    limit: usize,
) -> Result<Page<Batch>, Problem> {
    let owner = caller.name.as_deref().filter(|_| !caller.may(Scope::Admin));
    Ok(ctx.batches.list(form, owner, from, limit).await?)
}

/// Asks a batch of the caller's to end. What has been answered by then is kept.
pub(crate) async fn cancel(ctx: &Ctx, caller: &Caller, id: JobId, form: Form) -> Result<Batch, Problem> {
    get(ctx, caller, id, form).await?;
    Ok(ctx.batches.cancel(id).await?)
}
