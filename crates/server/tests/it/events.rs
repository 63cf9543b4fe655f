//! What changes, as it changes.

use longhaul_llm::sse::{SseEvent, SseParser};
use longhaul_queue::{Json, NewJob};
use reqwest::Method;

use crate::stage::Stage;

/// A reader of the stream.
struct Reader {
    response: reqwest::Response,
    parser: SseParser,
    events: std::collections::VecDeque<SseEvent>,
}

impl Reader {
    async fn open(stage: &Stage, path: &str, last: Option<&str>) -> Self {
        let mut request = stage.request(Method::GET, path);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await.expect("an answer");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, parser: SseParser::default(), events: Default::default() }
    }

    async fn next(&mut self) -> Option<(String, serde_json::Value)> {
        loop {
            if let Some(event) = self.events.pop_front() {
                let data = serde_json::from_str(&event.data).expect("JSON");
                return Some((event.name.unwrap_or_default(), data));
            }
            let piece = self.response.chunk().await.expect("a whole stream")?;
            self.events.extend(self.parser.push(&piece).expect("events"));
        }
    }
}

fn job(process: &str) -> NewJob {
    NewJob::new("note", Json::null()).process(process)
}

#[tokio::test]
async fn a_reader_hears_what_it_asked_for_and_comes_back_where_it_was() {
    let stage = Stage::new().await;
    let queue = stage.ctx.queue();
    queue.enqueue(job("before")).await.expect("stored");
    let mut reader = Reader::open(&stage, "/api/v1/events?process=mine", None).await;
    assert_eq!(reader.next().await.expect("a beginning").0, "hello");
    queue.enqueue(job("other")).await.expect("stored");
    queue.enqueue(job("mine")).await.expect("stored");
    let (name, event) = reader.next().await.expect("a change");
    assert_eq!((name.as_str(), event["changes"][0]["process_id"].as_str()), ("change", Some("mine")));
    let last = event["id"].as_u64().expect("a number");
    drop(reader);
    queue.enqueue(job("mine")).await.expect("stored");
    let mut reader = Reader::open(&stage, "/api/v1/events?process=mine", Some(&last.to_string())).await;
    let (_, event) = reader.next().await.expect("what was missed");
    assert!(event["id"].as_u64() > Some(last), "{event}");
    // A stream ends with the server, which does not wait for it.
    stage.stop().await;
    assert!(reader.next().await.is_none());
}

#[tokio::test]
async fn a_reader_of_a_past_that_is_gone_is_told_to_look_afresh() {
    let stage = Stage::new().await;
    let mut reader = Reader::open(&stage, "/api/v1/events?after=999999", None).await;
    stage.ctx.queue().enqueue(job("mine")).await.expect("stored");
    let (name, _) = reader.next().await.expect("a word");
    assert_eq!(name, "resync", "a number from the future is of another store");
}
