//! Processes that ask the same model with the same key share its limits: each asks the store for a share and keeps to it.
//! Where nobody else asks, the share is the whole.

use std::collections::HashMap;
use std::time::Duration;

use longhaul_llm::rate::Demand;
use longhaul_llm::{Llm, Route};
use longhaul_queue::Engine;
use longhaul_queue::shares::{LEASE, RENEW_EVERY, SHARE_MIN, Shares};
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::debug;

/// How often routes are looked at: a new one has its share before its first calls have told of any limit.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What a process wants whose calls do not wait: enough for a while, and the rest for those whose calls do.
const WANT_SOME: f64 = 0.25;

/// Keeps to this process's shares for as long as it lives. Dropped, it leaves them to the end of their leases.
#[must_use]
pub(crate) struct Sharing {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Sharing {
    /// Gives the shares up.
    pub(crate) async fn end(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// Begins to share the limits of all routes through a store.
pub(crate) fn start(engine: &Engine, llm: &Llm) -> Sharing {
    let holder = format!("{:016x}", fastrand::u64(..));
    let keeper =
        Keeper { shares: Shares::new(engine.clone(), holder), llm: llm.clone(), kept: HashMap::new() };
    llm.start_routes_at(SHARE_MIN);
    let (stop, stopped) = oneshot::channel();
    Sharing { stop, task: tokio::spawn(keeper.run(stopped)) }
}

struct Keeper {
    shares: Shares,
    llm: Llm,
    /// By the identity of routes.
    kept: HashMap<String, Kept>,
}

/// A share, as far as its routes know of it.
struct Kept {
    renew_at: Instant,
    /// Others may have it from then on.
    until: Instant,
}

impl Keeper {
    /// Until it is told to stop, or whoever could tell is gone.
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let told = loop {
            self.look().await;
            tokio::select! {
                told = &mut stopped => break told.is_ok(),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        };
        for identity in self.kept.keys().filter(|_| told) {
            if let Err(error) = self.shares.release(&name_of(identity)).await {
                debug!(%error, "a share is not given up, its lease ends by itself");
            }
        }
    }

    async fn look(&mut self) {
        // Two profiles may lead to the same model with the same key: one limit, for both together.
        let mut alike: HashMap<String, Vec<Route>> = HashMap::new();
        for route in self.llm.routes() {
            if route.controller().demand().is_some() {
                alike.entry(route.identity().to_owned()).or_default().push(route);
            }
        }
        for (identity, routes) in alike {
            self.renew(identity, &routes).await;
        }
    }

    async fn renew(&mut self, identity: String, routes: &[Route]) {
        let now = Instant::now();
        let demands: Vec<Demand> = routes.iter().filter_map(|route| route.controller().demand()).collect();
        let calling = demands.iter().filter(|demand| **demand != Demand::Nothing).count();
        let want = if demands.contains(&Demand::All) { 1.0 } else { WANT_SOME };
        match self.kept.get(&identity) {
            Some(kept) if calling == 0 => {
                // Nobody calls: the others may have it, until somebody calls again.
                if kept.until <= now {
                    routes.iter().for_each(|route| route.controller().set_share(SHARE_MIN));
                }
                return;
            }
            Some(kept) if kept.renew_at > now => return,
            Some(_) | None => {}
        }
        // A store that cannot say is no reason not to ask: then all of it is ours, as for a process by itself.
        let share = self.shares.renew(&name_of(&identity), want).await.unwrap_or(1.0);
        for route in routes {
            let calls = calling == 0 || route.controller().demand() != Some(Demand::Nothing);
            let part = if calls { share / calling.max(1) as f64 } else { SHARE_MIN };
            route.controller().set_share(part);
        }
        self.kept.insert(identity, Kept { renew_at: now + RENEW_EVERY, until: now + LEASE });
    }
}

/// A short name: an identity holds an address.
fn name_of(identity: &str) -> String {
    Sha256::digest(identity).iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}
