//! Addresses, and what becomes of spans when the receiver takes them, refuses them or is away.

use std::sync::atomic::AtomicUsize;

use longhaul_queue::TraceContext;

use super::super::spans::Fields;
use super::*;

#[test]
fn an_address_is_checked() {
    let cases = [
        ("", true),
        ("http://localhost:4318", true),
        ("https://collector.example.org/otlp/", true),
        ("localhost:4318", false),
        ("grpc://localhost:4317", false),
        ("http://", false),
        ("http:///x", false),
        ("http://user:secret@host", false),
        ("http://host/?key=secret", false),
        ("http://ho st", false),
    ];
    for (text, valid) in cases {
        assert_eq!(check_url(text).is_ok(), valid, "{text:?}");
    }
}

fn closed() -> Closed {
    let (own, now) = (TraceContext::draw(), Instant::now());
    Closed { own, parent: None, link: None, name: "x", started: now, ended: now, fields: Fields::default() }
}

/// An outbox with `spans` in it, its counts, and what ends it.
fn outbox(spans: usize) -> (Outbox, Arc<Counts>, watch::Sender<bool>) {
    let (sender, receiver) = mpsc::channel(QUEUE_MAX);
    let (ending, told) = watch::channel(false);
    let counts = Arc::new(Counts::default());
    let exporter = Exporter { sender, counts: Arc::clone(&counts) };
    (0..spans).for_each(|_| exporter.send(closed()));
    let target = Target { url: "http://x/v1/traces".to_owned(), service_name: "x".to_owned() };
    let anchor = Anchor { at: Instant::now(), unix_nanos: 0 };
    let reported = Instant::now();
    (Outbox { receiver, ending: told, counts: Arc::clone(&counts), target, anchor, reported }, counts, ending)
}

/// Posts answered by `answers`, the last for all others; then closed, exported and dropped spans, and posts.
async fn ended_with(spans: usize, ending_at_once: bool, answers: &[Option<bool>]) -> [u64; 4] {
    let (outbox, counts, ending) = outbox(spans);
    if ending_at_once {
        ending.send_replace(true);
    }
    let posts = Arc::new(AtomicUsize::new(0));
    let (answers, seen) = (answers.to_vec(), Arc::clone(&posts));
    let post = move |_: Vec<u8>| {
        let number = seen.fetch_add(1, Relaxed);
        let answer = answers[number.min(answers.len() - 1)];
        async move { answer.map_or(Ok(()), |again| Err(Refused { text: "no".to_owned(), again })) }
    };
    // The sender is gone, so that it ends by itself when all is posted.
    outbox.run(post).await;
    let load = |count: &AtomicU64| count.load(Relaxed);
    [load(&counts.closed), load(&counts.exported), load(&counts.dropped), posts.load(Relaxed) as u64]
}

/// Spans, whether the program ends, how posts are answered, and what comes of it.
type Case = (usize, bool, Vec<Option<bool>>, [u64; 4]);

#[tokio::test(start_paused = true)]
async fn every_span_is_exported_or_counted_as_dropped() {
    let (taken, away, refused) = (None, Some(true), Some(false));
    let max = QUEUE_MAX as u64;
    let cases: [Case; 7] = [
        (0, false, vec![taken], [0, 0, 0, 0]),
        (5, false, vec![taken], [5, 5, 0, 1]),
        (BATCH_MAX + 1, false, vec![taken], [513, 513, 0, 2]),
        (QUEUE_MAX + 7, false, vec![taken], [max + 7, max, 7, max / 512]),
        // Away for a while: tried again, nothing is lost.
        (5, false, vec![away, away, taken], [5, 5, 0, 3]),
        // Refused for good: not tried again, the next batch is.
        (BATCH_MAX + 1, false, vec![refused, taken], [513, 1, 512, 2]),
        // At the end each batch has one chance.
        (BATCH_MAX + 1, true, vec![away], [513, 0, 513, 2]),
    ];
    for (spans, ending, answers, expected) in cases {
        assert_eq!(ended_with(spans, ending, &answers).await, expected, "{spans} {ending} {answers:?}");
    }
}
