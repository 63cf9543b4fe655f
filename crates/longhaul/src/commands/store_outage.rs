//! A full disk, or a store that is away, while a run is under way: said once, and now and then while it lasts.

use std::convert::Infallible;
use std::time::Duration;

use longhaul_pipeline::FollowedRun;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::app::App;

/// Least time between two words about it.
const AGAIN: Duration = Duration::from_secs(30);

/// The error of what cannot be written, while it cannot.
type Outage = watch::Receiver<Option<String>>;

/// Says that nothing can be stored, and that it can again. The worker stops and goes on by itself.
pub(super) async fn tell(app: &App, run: &dyn FollowedRun) -> Infallible {
    // Without models nothing is spent, and no outage of that file is heard of.
    let (_idle, none) = watch::channel(None);
    let mut store = run.queue().outage();
    let mut spending = run.llm().map_or(none, longhaul_llm::Llm::outage);
    loop {
        let error = tokio::select! {
            error = begins(&mut store) => format!("{}: {error}", crate::store::source(&app.settings)),
            error = begins(&mut spending) => error,
        };
        let told_at = Instant::now();
        app.out.warn(format_args!("nothing can be stored, so nothing more is asked: {error}"));
        app.out.hint(
            "answers that have come are kept in memory; once there is room the run goes on by itself; Ctrl-C ends it",
        );
        let over = async {
            ends(&mut store).await;
            ends(&mut spending).await;
        };
        if tokio::time::timeout(AGAIN, over).await.is_ok() {
            app.out.note("there is room again, the run goes on");
        }
        tokio::time::sleep_until(told_at + AGAIN).await;
    }
}

async fn begins(outage: &mut Outage) -> String {
    match outage.wait_for(Option::is_some).await {
        Ok(error) => error.clone().unwrap_or_default(),
        // Its sender is gone: nothing more is heard of it.
        Err(_) => std::future::pending().await,
    }
}

async fn ends(outage: &mut Outage) {
    if outage.wait_for(Option::is_none).await.is_err() {
        std::future::pending::<()>().await;
    }
}
