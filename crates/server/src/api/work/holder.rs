//! Whose lease it is. All that a lease says can be read by every token: the job, the fence, the worker. So a worker is known by the
//! name of its token too, and a lease counts only from that token. From others it is a lease that was lost.

use longhaul_queue::limits::check_name;
use longhaul_queue::{Job, Lease, State, WorkerId};

use super::wrong;
use crate::guard::Caller;
use crate::problem::Problem;

/// The name under which a caller's worker holds jobs, `TOKEN/WORKER`, or just its own where no token is needed. A worker may send
/// either: it is told the long one.
pub(super) fn worker_of(caller: &Caller, name: &str) -> Result<WorkerId, Problem> {
    check_name("worker", name).map_err(|error| wrong("worker", error))?;
    let prefix = prefix_of(caller);
    let name = format!("{prefix}{}", name.strip_prefix(&prefix).unwrap_or(name));
    check_name("worker", &name).map_err(|error| wrong("worker", error))?;
    Ok(WorkerId::from(name))
}

/// Whether a job is held under a lease, and the lease is the caller's, as far as was read: the store asks again for the fence when
/// it writes.
pub(super) fn holds(caller: &Caller, job: &Job, lease: &Lease) -> bool {
    job.state == State::Running
        && job.fence == lease.fence
        && job.worker.as_ref() == Some(&lease.worker)
        && lease.worker.as_str().starts_with(&prefix_of(caller))
}

/// What the names of a caller's workers begin with. A slash in a token's name is written otherwise, or the worker `b/c` of the token
/// `a` would be the worker `c` of the token `a/b`.
fn prefix_of(caller: &Caller) -> String {
    let name = caller.name.as_ref();
    name.map_or_else(String::new, |name| format!("{}/", name.replace('%', "%25").replace('/', "%2F")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_has_one_name_for_its_token_and_none_for_another() {
        let caller = |name: &str| {
            let mut caller = Caller::LOCAL;
            caller.name = Some(name.to_owned());
            caller
        };
        let named = |token: &str, worker: &str| {
            worker_of(&caller(token), worker).map(|worker| worker.as_str().to_owned()).ok()
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(named("ann", "w"), text("ann/w"));
        assert_eq!(named("ann", "ann/w"), text("ann/w"), "sent as it was told");
        assert_eq!(named("bob", "ann/w"), text("bob/ann/w"));
        assert_ne!(named("a", "b/c"), named("a/b", "c"));
        assert_ne!(named("a%2Fb", "c"), named("a/b", "c"));
        assert_eq!(
            (named("ann", ""), named("ann", &"w".repeat(200))),
            (None, None),
            "too short, too long with its token"
        );
        let open = worker_of(&Caller::LOCAL, "w").expect("a name");
        assert_eq!(open.as_str(), "w");
    }
}
