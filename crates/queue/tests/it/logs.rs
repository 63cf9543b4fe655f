//! What the log says of a job's way: every line names its slice, and one that concerns one job names the job.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use longhaul_queue::job::Unique;
use longhaul_queue::testing::{Fault, FaultyStore, Started};
use longhaul_queue::{Failure, JobContext, Json, NewJob, Queue, State};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::stage::Stage;

/// Keeps every line of one thread as its fields.
#[derive(Clone)]
struct Lines(Arc<Mutex<Vec<String>>>, ThreadId);

impl Lines {
    #[track_caller]
    fn check(&self, message: &str, fields: &[&str]) {
        let lines = self.0.lock().unwrap();
        let said = lines.iter().filter(|line| line.contains(message));
        let complete = |line: &&String| fields.iter().all(|field| line.contains(field));
        assert!(
            said.clone().any(|line| complete(&line)),
            "no {message} with {fields:?} among {}",
            said.count()
        );
    }
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("longhaul_queue")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if std::thread::current().id() != self.1 {
            return;
        }
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn lines_about_one_job_name_it_and_every_enter_has_its_exit() {
    let lines = Lines(Arc::default(), std::thread::current().id());
    // For the whole binary: what one thread has set is not asked where another thread met the line first.
    tracing::subscriber::set_global_default(lines.clone()).unwrap();
    let stage = Stage::new();
    let mut worker = stage.worker();
    worker.handle("job", |_: JobContext, (): ()| async { Ok::<_, Failure>("done") });
    let id = stage.enqueue("job").await;
    let started = Started::new(worker);
    stage.until(id, State::Succeeded).await;
    started.drain().await;

    let faulty = FaultyStore::new(Arc::clone(&stage.store));
    (1..=2).for_each(|call| faulty.fail_call(call, Fault::Before));
    let queue = Queue::new(Arc::new(faulty));
    queue.results(&"p".into(), 0, 1).await.unwrap_err();
    queue.consume(vec![id]).await.unwrap_err();

    let job_id = format!("job_id={id}");
    for verb in ["ENTER enqueue", "EXIT enqueue", "ENTER settle", "EXIT settle", "ENTER consume"] {
        lines.check(verb, &["slice=\"queue\"", "count=1", &job_id]);
    }
    let job = NewJob::new("idle", Json::null()).process("night").unique(Unique::key("k"));
    stage.queue.enqueue_many(vec![job.clone(), job]).await.unwrap();
    lines.check("ENTER enqueue", &["count=2", "process_id=\"night\""]);
    lines.check("EXIT enqueue", &["count=2", "inserted=1", "process_id=\"night\""]);
    lines.check("EXIT claim", &["slice=\"queue\"", "count=1", "ok=true", &job_id]);
    lines.check("ENTER run", &["slice=\"queue\""]);
    lines.check("EXIT run", &["slice=\"queue\"", &job_id]);
    lines.check("EXIT results", &["ok=false", "elapsed_us"]);
    lines.check("EXIT consume", &["ok=false", "elapsed_us", &job_id]);
}
