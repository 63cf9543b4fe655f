//! Several processes on one file, and leases of workers that seem dead and are not.

use crate::place::Place;

/// "database is locked" reaches callers elsewhere (queues.md, complaint 4).
#[test]
fn processes_share_a_file_without_an_error_to_anybody() {
    let report = Place::new().json(&["verify", "sharing", "--processes", "4", "--seconds", "5"]);
    assert_eq!(report["ok"], true, "{report}");
    assert!(report["facts"]["results_consumed"].as_u64() > Some(100), "{report}");
}

/// Long jobs run twice elsewhere, and blocked event loops starve heartbeats (complaints 1 and 24).
#[test]
fn a_blocked_handler_keeps_its_lease() {
    let report = Place::new().json(&["verify", "lease", "--seconds", "8", "--lease", "2s"]);
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(report["facts"]["runs"], 1, "{report}");
}
