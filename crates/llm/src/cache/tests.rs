use std::sync::atomic::AtomicUsize;

use serde_json::json;

use super::*;
use crate::types::{ChatRequest, Message, OutputSchema, Role, Usage};

const NOW: i64 = 1_763_190_000_000;
const HOUR_MS: i64 = 60 * 60 * 1_000;

fn request(text: &str) -> ChatRequest {
    ChatRequest {
        model: "m".into(),
        messages: vec![Message::text(Role::User, text)],
        ..ChatRequest::default()
    }
}

fn key(text: &str) -> Key {
    Key::new("openai", "http://localhost", &request(text).into())
}

fn answer(text: &str) -> Answer {
    let usage = Usage { fresh_in: 3, out: 4, ..Usage::default() };
    Answer {
        id: "1".into(),
        model: "m".into(),
        text: text.into(),
        tool_calls: vec![],
        vectors: Vec::new(),
        own: None,
        stop: Stop::End,
        usage,
    }
}

fn cache(options: CacheOptions) -> Cache {
    Cache::new(LlmFile::in_memory().expect("memory opens"), options)
}

async fn get(cache: &Cache, text: &str, now_ms: i64) -> Option<String> {
    let found = cache.get(CacheMode::Auto, &key(text), now_ms).await.expect("auto never fails");
    found.map(|found| found.answer.text)
}

async fn put(cache: &Cache, text: &str, now_ms: i64) {
    cache.put(CacheMode::Auto, &key(text), &answer(text), now_ms).await;
}

#[test]
fn a_key_holds_all_that_shapes_an_answer() {
    let base = key("hello");
    assert_eq!(base, Key::new("openai", "http://localhost/", &request("hello").into()));
    let with = |change: fn(&mut ChatRequest)| {
        let mut request = request("hello");
        change(&mut request);
        Key::new("openai", "http://localhost", &request.into())
    };
    let others = [
        key("hello "),
        Key::new("sim", "http://localhost", &request("hello").into()),
        Key::new("openai", "http://localhost:1", &request("hello").into()),
        Key::new("openaih", "ttp://localhost", &request("hello").into()),
        with(|request| request.model = "n".into()),
        with(|request| request.max_tokens = Some(1)),
        with(|request| request.temperature = Some(0.0)),
        with(|request| request.seed = Some(1)),
        with(|request| request.stop = vec!["x".into()]),
        with(|request| _ = request.extra.insert("top_k".into(), json!(1))),
        with(|request| request.messages[0].role = Role::System),
    ];
    let distinct: std::collections::HashSet<Key> = others.into_iter().chain([base]).collect();
    assert_eq!(distinct.len(), others.len() + 1);
    assert_eq!(format!("{base:?}").len(), 16);
}

#[test]
fn a_key_does_not_go_by_the_order_of_fields() {
    let with = |text: &str| {
        let mut request = request("hello");
        request.extra = serde_json::from_str(text).expect("an object");
        Key::new("openai", "", &request.into())
    };
    assert_eq!(
        with(r#"{"a": {"x": 1, "y": [1, 2]}, "b": 2}"#),
        with(r#"{"b": 2, "a": {"y": [1, 2], "x": 1}}"#)
    );
    assert_ne!(with(r#"{"a": [1, 2]}"#), with(r#"{"a": [2, 1]}"#));
    assert_ne!(with(r#"{"a": "1"}"#), with(r#"{"a": 1}"#));
}

#[test]
fn a_field_that_does_not_reach_the_provider_makes_no_other_key() {
    let with = |dialect: &str, user: &str| {
        let mut request = request("hello");
        request.extra.insert("user".into(), json!(user));
        Key::new(dialect, "", &request.into())
    };
    assert_eq!(with("anthropic", "ann"), with("anthropic", "bob"));
    assert_ne!(with("openai", "ann"), with("openai", "bob"));
}

#[test]
fn a_schema_whose_properties_come_in_another_order_is_another_question() {
    let with = |schema: &str| {
        let schema = serde_json::from_str(schema).expect("a schema");
        let schema = Some(OutputSchema { name: "answer".into(), schema, strict: true });
        Key::new("openai", "", &ChatRequest { schema, ..request("hello") }.into())
    };
    let reasons_first = with(r#"{"type": "object", "properties": {"reasoning": {}, "answer": {}}}"#);
    assert_ne!(reasons_first, with(r#"{"type": "object", "properties": {"answer": {}, "reasoning": {}}}"#));
    assert_eq!(reasons_first, with(r#"{"properties": {"reasoning": {}, "answer": {}}, "type": "object"}"#));
}

#[tokio::test]
async fn an_answer_is_given_again_until_it_is_too_old() {
    let ttl = Duration::from_secs(60);
    let cache = cache(CacheOptions { ttl, ..CacheOptions::default() });
    assert_eq!(get(&cache, "a", NOW).await, None);
    put(&cache, "a", NOW).await;
    let found = cache.get(CacheMode::Auto, &key("a"), NOW + 59_999).await.expect("auto never fails");
    assert_eq!(found, Some(Cached { answer: answer("a"), stored_at_ms: NOW }));
    assert_eq!(get(&cache, "a", NOW + 60_000).await, None);
    put(&cache, "a", NOW + 60_000).await;
    assert!(get(&cache, "a", NOW + 60_001).await.is_some(), "it is replaced");
}

#[tokio::test]
async fn modes_say_who_is_asked() {
    let cache = cache(CacheOptions::default());
    cache.put(CacheMode::Off, &key("a"), &answer("a"), NOW).await;
    assert_eq!(get(&cache, "a", NOW).await, None);
    let miss = cache.get(CacheMode::Only, &key("a"), NOW).await.expect_err("only the cache may be asked");
    assert_eq!(miss.class, Class::CacheMiss);
    put(&cache, "a", NOW).await;
    assert_eq!(cache.get(CacheMode::Off, &key("a"), NOW).await.expect("off never fails"), None);
    assert!(cache.get(CacheMode::Only, &key("a"), NOW).await.expect("it is there").is_some());
    assert!(Cache::none().get(CacheMode::Only, &key("a"), NOW).await.is_err());
    assert_eq!("only".parse(), Ok(CacheMode::Only));
    assert!("sometimes".parse::<CacheMode>().is_err());
}

#[tokio::test]
async fn a_cut_off_declined_or_huge_answer_is_not_kept() {
    let cache = cache(CacheOptions::default());
    let unfit = [
        Answer { stop: Stop::Length, ..answer("a") },
        Answer { stop: Stop::Refused, ..answer("a") },
        answer(&"x".repeat(2_000_000)),
    ];
    for unfit in unfit {
        cache.put(CacheMode::Auto, &key("a"), &unfit, NOW).await;
        assert_eq!(get(&cache, "a", NOW).await, None);
    }
}

async fn stored(cache: &Cache) -> (i64, i64, i64) {
    let count = |connection: &Connection| {
        let sql = "SELECT count(*), coalesce(sum(bytes), 0), (SELECT value FROM meta WHERE key = 'cache_bytes') FROM answers";
        Ok(connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?)
    };
    cache.file.as_ref().expect("it has a file").read(count).await.expect("it answers")
}

#[tokio::test]
async fn a_full_cache_loses_what_was_not_used_for_longest() {
    let cache = cache(CacheOptions { bytes_max: 100_000, ..CacheOptions::default() });
    for number in 0..300 {
        put(&cache, &format!("{number}"), NOW + number).await;
    }
    let (rows, ..) = stored(&cache).await;
    assert_eq!(rows, 300, "all fit");
    // A use is noted when the last note is over an hour old.
    for number in 0..10 {
        assert!(get(&cache, &format!("{number}"), NOW + 2 * HOUR_MS).await.is_some());
    }
    for number in 300..700 {
        put(&cache, &format!("{number}"), NOW + HOUR_MS + number).await;
        let (_, bytes, noted) = stored(&cache).await;
        assert!(bytes <= 100_000 && bytes == noted, "{bytes} {noted}");
    }
    for number in (0..10).chain(690..700) {
        assert!(get(&cache, &format!("{number}"), NOW + 2 * HOUR_MS).await.is_some(), "{number}");
    }
    assert_eq!(get(&cache, "10", NOW + 2 * HOUR_MS).await, None);
}

#[tokio::test]
async fn a_hit_is_seldom_a_write() {
    let cache = cache(CacheOptions::default());
    put(&cache, "a", NOW).await;
    let used_at = async || {
        let sql = "SELECT used_at FROM answers";
        let read = |connection: &Connection| Ok(connection.query_row(sql, [], |row| row.get::<_, i64>(0))?);
        cache.file.as_ref().expect("it has a file").read(read).await.expect("it answers")
    };
    for (now_ms, noted) in [(NOW + 1, NOW), (NOW + HOUR_MS, NOW), (NOW + HOUR_MS + 1, NOW + HOUR_MS + 1)] {
        assert!(get(&cache, "a", now_ms).await.is_some());
        assert_eq!(used_at().await, noted);
    }
}

#[tokio::test]
async fn expired_answers_leave_the_file() {
    let cache = cache(CacheOptions { ttl: Duration::from_secs(1), ..CacheOptions::default() });
    for number in 0..200 {
        put(&cache, &format!("old {number}"), NOW).await;
    }
    for number in 0..56 {
        put(&cache, &format!("new {number}"), NOW + 5_000).await;
    }
    let (rows, bytes, noted) = stored(&cache).await;
    assert_eq!((rows, bytes), (56, noted));
}

/// A cache with one answer, and a way to spoil its file.
async fn spoilt(sql: &'static str) -> (Cache, crate::ledger::Ledger, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = LlmFile::open(&folder.path().join("llm.db")).expect("it opens");
    let cache = Cache::new(file.clone(), CacheOptions::default());
    put(&cache, "a", NOW).await;
    assert!(get(&cache, "a", NOW).await.is_some());
    file.write(move |tx| Ok(tx.connection.execute_batch(sql)?)).await.expect("it is spoilt");
    (cache, crate::ledger::Ledger::new(file), folder)
}

fn has_warned(cache: &Cache) -> bool {
    cache.state.warned.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_damaged_cache_is_a_miss_and_the_rest_of_the_file_works() {
    for sql in ["UPDATE answers SET answer = '{'", "DROP TABLE answers"] {
        let (cache, ledger, _folder) = spoilt(sql).await;
        assert_eq!(get(&cache, "a", NOW).await, None, "{sql}");
        assert!(has_warned(&cache));
        put(&cache, "a", NOW).await;
        ledger.set_cap(&crate::ledger::Scope::all(), None).await.expect("the rest of the file works");
    }
}

#[tokio::test]
async fn a_damaged_page_of_the_cache_spoils_nothing_else() {
    use std::io::{Seek, SeekFrom, Write};
    let (cache, ledger, folder) = spoilt("").await;
    drop((cache, ledger));
    let path = folder.path().join("llm.db");
    let connection = Connection::open(&path).expect("it opens");
    let number = |sql| connection.query_row(sql, [], |row| row.get::<_, u64>(0)).expect("a number");
    let bytes = number("PRAGMA page_size");
    let page = number("SELECT rootpage FROM sqlite_schema WHERE name = 'answers'");
    drop(connection);
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).expect("it opens");
    file.seek(SeekFrom::Start((page - 1) * bytes)).expect("it is long enough");
    file.write_all(&vec![0xA5; usize::try_from(bytes).expect("a page is small")]).expect("it is written");

    let file = LlmFile::open(&path).expect("it opens");
    let (cache, ledger) =
        (Cache::new(file.clone(), CacheOptions::default()), crate::ledger::Ledger::new(file));
    assert_eq!(get(&cache, "a", NOW).await, None);
    let all = crate::ledger::Scope::all();
    // In one group: what fails for the cache must not fail for the ledger.
    let (key, answer) = (key("b"), answer("b"));
    let put = cache.put(CacheMode::Auto, &key, &answer, NOW);
    let (set, ()) = tokio::join!(ledger.set_cap(&all, Some(crate::money::NanoUsd(7))), put);
    set.expect("the rest of the file works");
    assert!(has_warned(&cache));
    let cap = ledger.scope(&all).await.expect("it answers").and_then(|found| found.cap);
    assert_eq!(cap, Some(crate::money::NanoUsd(7)));
}

#[tokio::test]
async fn a_read_only_cache_is_read_and_the_ledger_says_so() {
    let (cache, ledger, _folder) = spoilt("PRAGMA query_only = ON").await;
    put(&cache, "b", NOW).await;
    assert!(has_warned(&cache));
    assert_eq!(get(&cache, "b", NOW).await, None);
    assert!(get(&cache, "a", NOW + 2 * HOUR_MS).await.is_some(), "it cannot be touched, but read");
    let error = ledger.set_cap(&crate::ledger::Scope::all(), None).await.expect_err("money is not a cache");
    assert_eq!(error.kind, crate::file::FileErrorKind::ReadOnly);
}

/// A flight of its own for each test: what is flown, and how often.
#[derive(Default)]
struct Field {
    flights: Flights<u32>,
    flown: AtomicUsize,
}

impl Field {
    async fn fly(&self, outcome: Result<u32>, gate: &tokio::sync::Semaphore) -> Result<Flown<u32>> {
        let work = async {
            self.flown.fetch_add(1, Ordering::Relaxed);
            let _permit = gate.acquire().await;
            outcome
        };
        self.flights.run(key("a"), work).await
    }

    fn flown(&self) -> usize {
        self.flown.load(Ordering::Relaxed)
    }
}

fn failure(class: Class) -> Result<u32> {
    Err(Error::new(class, "no"))
}

#[tokio::test]
async fn identical_requests_in_flight_share_one_call() {
    let (field, gate) = (Field::default(), tokio::sync::Semaphore::new(0));
    let flights = futures_util::future::join_all((0..10).map(|number| field.fly(Ok(number), &gate)));
    let other = field.flights.run(key("b"), async { Ok(99) });
    let open = async {
        assert_eq!(field.flights.len(), 1, "another key does not wait");
        gate.add_permits(1);
    };
    let (landed, other, ()) = tokio::join!(biased; flights, other, open);
    assert_eq!(other.expect("it lands"), Flown { value: 99, shared: false });
    for (number, landed) in landed.into_iter().enumerate() {
        assert_eq!(landed.expect("it lands"), Flown { value: 0, shared: number > 0 });
    }
    assert_eq!(field.flown(), 1);
    assert!(field.flights.is_empty());
    // The next one begins anew.
    assert_eq!(field.fly(Ok(7), &gate).await.expect("it lands"), Flown { value: 7, shared: false });
}

#[tokio::test]
async fn who_waits_takes_over_when_the_first_fails() {
    let (field, gate) = (Field::default(), tokio::sync::Semaphore::new(0));
    let (first, second, third, fourth, ()) = tokio::join!(
        biased;
        field.fly(failure(Class::Overloaded), &gate),
        field.fly(failure(Class::BadShape), &gate),
        field.fly(Ok(3), &gate),
        field.fly(Ok(4), &gate),
        async { gate.add_permits(9) },
    );
    assert_eq!(first.expect_err("its own error").class, Class::Overloaded);
    assert_eq!(second.expect_err("its own error").class, Class::BadShape);
    assert_eq!(third.expect("it lands"), Flown { value: 3, shared: false });
    assert_eq!(fourth.expect("it lands"), Flown { value: 3, shared: true });
    assert_eq!(field.flown(), 3);
    assert!(field.flights.is_empty());
}

#[tokio::test]
async fn an_error_that_all_would_meet_is_told_to_all() {
    for class in Class::ALL {
        let (field, gate) = (Field::default(), tokio::sync::Semaphore::new(0));
        let calls = futures_util::future::join_all((0..3).map(|_| field.fly(failure(class), &gate)));
        let (landed, ()) = tokio::join!(biased; calls, async { gate.add_permits(9) });
        assert!(landed.into_iter().all(|landed| landed.is_err_and(|error| error.class == class)));
        let shared = matches!(class, Class::BadRequest | Class::ContextTooLong | Class::Auth | Class::Quota);
        assert_eq!(field.flown(), if shared { 1 } else { 3 }, "{class}");
        assert!(field.flights.is_empty());
    }
}

#[tokio::test]
async fn who_waits_takes_over_when_the_first_goes_away() {
    let field = Arc::new(Field::default());
    let never = Arc::new(tokio::sync::Semaphore::new(0));
    let spawn = |outcome: Result<u32>, gate: &Arc<tokio::sync::Semaphore>| {
        let (field, gate) = (Arc::clone(&field), Arc::clone(gate));
        tokio::spawn(async move { field.fly(outcome, &gate).await })
    };
    let first = spawn(Ok(1), &never);
    while field.flown() == 0 {
        tokio::task::yield_now().await;
    }
    let open = Arc::new(tokio::sync::Semaphore::new(9));
    let (second, third) = (spawn(Ok(2), &open), spawn(Ok(3), &open));
    tokio::task::yield_now().await;
    assert_eq!(field.flown(), 1);
    first.abort();
    assert!(first.await.expect_err("it is cut off").is_cancelled());
    assert_eq!(second.await.expect("no panic").expect("it lands"), Flown { value: 2, shared: false });
    assert_eq!(third.await.expect("no panic").expect("it lands"), Flown { value: 2, shared: true });
    // Also when nobody waits.
    let alone = spawn(Ok(4), &never);
    while field.flown() < 3 {
        tokio::task::yield_now().await;
    }
    alone.abort();
    assert!(alone.await.is_err());
    assert!(field.flights.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn flights_leave_nothing_behind_in_a_crowd() {
    let field = Arc::new(Field::default());
    let gate = Arc::new(tokio::sync::Semaphore::new(1_000));
    let tasks: Vec<_> = (0..400)
        .map(|number: u32| {
            let (field, gate) = (Arc::clone(&field), Arc::clone(&gate));
            let task = tokio::spawn(async move {
                let outcome = if number.is_multiple_of(3) { failure(Class::Network) } else { Ok(number) };
                field.fly(outcome, &gate).await
            });
            if number.is_multiple_of(5) {
                task.abort();
            }
            task
        })
        .collect();
    for task in tasks {
        let _ = task.await;
    }
    assert!(field.flights.is_empty());
}
