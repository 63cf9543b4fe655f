//! What changes.

use longhaul_queue::events::{Change, Event, EventPage};
use longhaul_queue::job::Progress;
use longhaul_queue::{JobId, ProcessId, State, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Which changes a reader wants; all given must hold.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Events after this number; `Last-Event-ID` goes before it.
    pub after: Option<u64>,
    /// For a page: at most this many events, 1 to 1000; default 100.
    pub limit: Option<usize>,
    /// Of this process.
    pub process: Option<String>,
    /// Of this queue.
    pub queue: Option<String>,
    /// Of this kind.
    pub kind: Option<String>,
}

/// What one commit changed: the `data` of the event `change`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Event)]
pub struct EventOut {
    /// Its number, rising: also the event's `id`, to come back with.
    pub id: u64,
    /// When.
    #[schema(value_type = i64)]
    pub at: Timestamp,
    /// The first 16 changes that are wanted.
    pub changes: Vec<ChangeOut>,
    /// How many more there were, wanted or not.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
}

/// One job's change.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Change)]
pub struct ChangeOut {
    /// The job.
    #[schema(value_type = String, format = "uuid")]
    pub job_id: JobId,
    /// Its queue.
    pub queue: String,
    /// Its kind.
    pub kind: String,
    /// Its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub process_id: Option<ProcessId>,
    /// Where it stands now.
    #[schema(value_type = String)]
    pub state: State,
    /// `done`, `total`, `message` and `at`, when that is the news.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub progress: Option<Progress>,
}

same_fields!(ChangeOut, Change, { job_id, queue, kind, process_id, state, progress });

/// Events of one look.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = EventPage)]
pub struct EventsOut {
    /// Oldest first.
    pub events: Vec<EventOut>,
    /// What was missed is gone: look afresh.
    pub resync: bool,
}

impl From<Event> for EventOut {
    fn from(event: Event) -> Self {
        let Event { id, at, changes, more } = event;
        Self { id, at, changes: changes.into_iter().map(Into::into).collect(), more }
    }
}

impl From<EventOut> for Event {
    fn from(event: EventOut) -> Self {
        let EventOut { id, at, changes, more } = event;
        Self { id, at, changes: changes.into_iter().map(Into::into).collect(), more }
    }
}

impl From<EventsOut> for EventPage {
    fn from(page: EventsOut) -> Self {
        Self { events: page.events.into_iter().map(Into::into).collect(), resync: page.resync }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's skip_serializing_if passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}
