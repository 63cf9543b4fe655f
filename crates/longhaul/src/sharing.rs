//! Processes that ask the same model with the same key share its limits: each asks the store for a share and keeps to it.
//! Where nobody else asks, the share is the whole.

use std::collections::HashMap;
use std::time::Duration;

use longhaul_llm::Llm;
use longhaul_llm::rate::Demand;
use longhaul_queue::Queue;
use longhaul_queue::shares::{RENEW_EVERY, SHARE_MIN, Shares};
use sha2::{Digest as _, Sha256};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// How often routes are looked at: a new one has its share before its first calls have told of any limit.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What a process wants whose calls do not wait: enough for a while, and the rest for those whose calls do.
const WANT_SOME: f64 = 0.25;

/// Keeps to this process's shares for as long as it lives. Then the others have them when their leases have ended.
#[must_use]
pub(crate) struct Sharing(AbortHandle);

impl Drop for Sharing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Begins to share the limits of all routes through a store.
pub(crate) fn start(queue: &Queue, llm: &Llm) -> Sharing {
    let holder = format!("{:016x}", fastrand::u64(..));
    let shares = Shares::new(queue.clone(), holder);
    llm.start_routes_at(SHARE_MIN);
    Sharing(tokio::spawn(share(shares, llm.clone())).abort_handle())
}

async fn share(shares: Shares, llm: Llm) {
    let mut due: HashMap<String, Instant> = HashMap::new();
    loop {
        for route in llm.routes() {
            let Some(demand) = route.controller().demand() else { continue };
            let now = Instant::now();
            let want = match (demand, due.get(route.identity())) {
                (_, Some(due_at)) if *due_at > now => continue,
                // The others may have it until somebody calls again.
                (Demand::Nothing, Some(_)) => continue,
                (Demand::Nothing, None) | (Demand::Some, _) => WANT_SOME,
                (Demand::All, _) => 1.0,
            };
            due.insert(route.identity().to_owned(), now + RENEW_EVERY);
            // A store that cannot say is no reason not to ask: then all of it is ours, as for a process by itself.
            let share = shares.renew(&name_of(route.identity()), want).await.unwrap_or(1.0);
            route.controller().set_share(share);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A short name: an identity holds an address.
fn name_of(identity: &str) -> String {
    Sha256::digest(identity).iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}
