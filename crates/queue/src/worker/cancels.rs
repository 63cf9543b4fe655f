//! Learns which running jobs somebody wants to end, and tells their handlers.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use crate::live_run::LiveRuns;

use super::Identity;

/// Least time between two looks.
const LOOK_GAP: Duration = Duration::from_millis(50);

/// Looks for ever, whenever the store may have changed and after each poll time.
pub(super) async fn watch(identity: Arc<Identity>, runs: Arc<LiveRuns>) {
    let engine = &identity.services.engine;
    let mut changes = engine.store().watch();
    loop {
        changes.mark_unchanged();
        let looked_at = Instant::now();
        if runs.len() > 0 {
            match engine.store().cancelling(identity.id.clone()).await {
                Ok(ids) if ids.is_empty() => {}
                Ok(ids) => {
                    let now = engine.clock().now();
                    runs.all()
                        .iter()
                        .filter(|run| ids.contains(&run.job.id))
                        .for_each(|run| run.request_cancel(now));
                }
                Err(error) => debug!(%error, "could not ask for cancelled jobs"),
            }
        }
        tokio::time::sleep_until(looked_at + LOOK_GAP).await;
        let poll_at = engine.clock().now() + identity.options.poll;
        tokio::select! {
            Ok(()) = changes.changed() => {}
            () = engine.clock().sleep_until(poll_at) => {}
        }
    }
}
