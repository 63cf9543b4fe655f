//! What was spent.

use axum::Json as Answer;
use axum::extract::State as Shared;

use super::ApiResult;
use crate::costs::{Costs, DAYS};
use crate::ctx::Ctx;

/// Shows what was spent, by day and model.
#[utoipa::path(get, path = "/api/v1/costs", tag = "costs", responses((status = 200, body = Costs)))]
pub(super) async fn show_costs(Shared(ctx): Shared<Ctx>) -> ApiResult<Answer<Costs>> {
    Ok(Answer(Costs::of(ctx.llm(), DAYS, ctx.queue().clock().now().as_millis()).await?))
}
