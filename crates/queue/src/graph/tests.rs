use super::{Edge, check, edge};
use crate::clock::Timestamp;
use crate::job::{JobId, NewJob, OnFailure};
use crate::json::Json;
use crate::state::State;

fn id(number: u8) -> JobId {
    JobId::generate(Timestamp::from_millis(0), u128::from(number) << 64 | u128::from(number) << 112)
}

/// A submission given as (job, its parents).
fn jobs(edges: &[(u8, &[u8])]) -> Vec<NewJob> {
    let job = |(number, parents): &(u8, &[u8])| {
        let job = NewJob::new("work", Json::null()).id(id(*number));
        parents.iter().fold(job, |job, parent| job.after(id(*parent)))
    };
    edges.iter().map(job).collect()
}

fn refused(edges: &[(u8, &[u8])]) -> String {
    check(&jobs(edges)).unwrap_err().to_string()
}

#[test]
fn any_graph_without_a_cycle_is_accepted() {
    let accepted: [&[(u8, &[u8])]; 6] = [
        &[],
        &[(1, &[])],
        &[(1, &[]), (2, &[1]), (3, &[2])],
        // Children may come before their parents.
        &[(3, &[2]), (2, &[1]), (1, &[])],
        // A diamond.
        &[(1, &[]), (2, &[1]), (3, &[1]), (4, &[2, 3])],
        // A parent that is not part of the submission is the store's business.
        &[(1, &[99])],
    ];
    for edges in accepted {
        assert_eq!(check(&jobs(edges)), Ok(()), "{edges:?}");
    }
}

#[test]
fn a_cycle_is_refused_and_names_its_jobs() {
    for edges in [&[(1, &[2][..]), (2, &[1])][..], &[(1, &[3]), (2, &[1]), (3, &[2]), (4, &[])]] {
        let text = refused(edges);
        assert!(text.contains("cycle"), "{text}");
        assert!(text.contains(&id(1).to_string()) && text.contains(&id(2).to_string()), "{text}");
        assert!(!text.contains(&id(4).to_string()), "{text}");
    }
}

#[test]
fn a_job_that_waits_for_itself_is_refused() {
    assert!(refused(&[(1, &[1])]).contains("cycle"));
}

#[test]
fn an_id_given_twice_is_refused() {
    let text = refused(&[(1, &[]), (2, &[1]), (1, &[])]);
    assert_eq!(text, format!("id {} is given twice in one submission", id(1)));
}

#[test]
fn a_parent_given_twice_is_refused() {
    assert_eq!(refused(&[(1, &[]), (2, &[1, 1])]), format!("depends_on names {} twice", id(1)));
}

#[test]
fn a_long_chain_is_no_deep_recursion() {
    let mut chain = Vec::new();
    for number in 0_u32..50_000 {
        let of = |number: u32| JobId::generate(Timestamp::from_millis(0), u128::from(number) << 64);
        let job = NewJob::new("work", Json::null()).id(of(number));
        chain.push(if number == 0 { job } else { job.after(of(number - 1)) });
    }
    assert_eq!(check(&chain), Ok(()));
}

#[test]
fn an_edge_follows_its_parent_and_its_policy() {
    for state in [State::Blocked, State::Scheduled, State::Ready, State::Running, State::Parked] {
        for policy in [OnFailure::Cancel, OnFailure::Run, OnFailure::Hold] {
            assert_eq!(edge(state, policy), Edge::Open, "{state}");
        }
    }
    for policy in [OnFailure::Cancel, OnFailure::Run, OnFailure::Hold] {
        assert_eq!(edge(State::Succeeded, policy), Edge::Satisfied);
    }
    for state in [State::Failed, State::Cancelled] {
        assert_eq!(edge(state, OnFailure::Cancel), Edge::Cancels);
        assert_eq!(edge(state, OnFailure::Run), Edge::Satisfied);
        assert_eq!(edge(state, OnFailure::Hold), Edge::Holds);
    }
}
