//! Numbers of jobs by queue, kind and state.

use axum::Json as Answer;
use axum::extract::State as Shared;
use longhaul_api::Listed;
use longhaul_api::counts::CountOut;

use super::ApiResult;
use crate::ctx::Ctx;

/// Counts jobs by queue, kind and state; those of which there are none are left out.
#[utoipa::path(get, path = "/api/v1/counts", tag = "jobs", responses((status = 200, body = Listed<CountOut>)))]
pub(super) async fn count_jobs(Shared(ctx): Shared<Ctx>) -> ApiResult<Answer<Listed<CountOut>>> {
    let counts = ctx.queue().store().counts().await?;
    Ok(Answer(Listed::whole(counts.into_iter().map(Into::into).collect())))
}
