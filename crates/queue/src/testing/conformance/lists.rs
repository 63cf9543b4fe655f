//! Lists: filters, searches and pages.

use crate::job::{JobOptions, NewJob};
use crate::state::{OnTimeout, State};
use crate::store::{Field, Filter, ListRequest, NameForm};
use crate::testing::Bench;
use crate::testing::bench::{done, give_up, id, job, json, park, park_until, secs};

async fn listed(bench: &Bench, filter: Filter) -> Vec<i64> {
    let request = ListRequest { filter, limit: 100, ..ListRequest::default() };
    bench.store.list(request).await.expect("list answers").items.iter().map(|job| job.seq).collect()
}

pub(super) async fn a_list_filters_by_everything_at_once(bench: &Bench) {
    let titled = JobOptions { title: Some("Annual Report".to_owned()), ..JobOptions::default() };
    bench.add([job(1).tag("red"), job(2).queue("q").tag("red").tag("blue"), job(3).process("p")]).await;
    bench.add([NewJob { options: titled, kind: "other".to_owned(), ..job(4) }]).await;
    bench.run(1, give_up()).await;
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(listed(bench, Filter::default()).await, [1, 2, 3, 4]);
    assert_eq!(listed(bench, Filter { states: vec![State::Failed], ..Filter::default() }).await, [1]);
    assert_eq!(listed(bench, Filter { queue: text("q"), ..Filter::default() }).await, [2]);
    assert_eq!(listed(bench, Filter { kind: text("other"), ..Filter::default() }).await, [4]);
    assert_eq!(listed(bench, Filter { process_id: Some("p".into()), ..Filter::default() }).await, [3]);
    assert_eq!(listed(bench, Filter { tag: text("red"), ..Filter::default() }).await, [1, 2]);
    let both = Filter { tag: text("red"), states: vec![State::Ready, State::Running], ..Filter::default() };
    assert_eq!(listed(bench, both).await, [2]);
}

pub(super) async fn a_search_looks_into_payload_title_error_and_id(bench: &Bench) {
    let titled = JobOptions { title: Some("Annual 100% Report".to_owned()), ..JobOptions::default() };
    bench
        .add([job(1), NewJob { options: titled, ..job(2) }, NewJob { payload: json(r#""a_b""#), ..job(3) }])
        .await;
    bench.run(1, give_up()).await;
    let found =
        async |text: &str| listed(bench, Filter { search: vec![text.to_owned()], ..Filter::default() }).await;
    assert_eq!(found(r#"{"n":2"#).await, [2]);
    assert_eq!(found("Annual").await, [2]);
    assert_eq!(found("cannot work").await, [1]);
    assert_eq!(found(&id(3).to_string()).await, [3]);
    assert_eq!(found("annual").await, [] as [i64; 0], "a search minds the case");
    assert_eq!(found("0%").await, [2], "a search knows no wildcards");
    assert_eq!(found("a_b").await, [3]);
    assert_eq!(found("-").await, [] as [i64; 0], "no id begins with a dash");
    assert_eq!(found("_n_").await, [] as [i64; 0]);
}

pub(super) async fn a_list_goes_page_by_page_both_ways(bench: &Bench) {
    bench.add((1..=5).map(job)).await;
    for (newest_first, pages) in [
        (false, [(vec![1, 2], Some(2)), (vec![3, 4], Some(4)), (vec![5], None)]),
        (true, [(vec![5, 4], Some(4)), (vec![3, 2], Some(2)), (vec![1], None)]),
    ] {
        let mut cursor = None;
        for (seqs, next) in pages {
            let request = ListRequest { newest_first, cursor, limit: 2, ..ListRequest::default() };
            let page = bench.store.list(request).await.expect("list answers");
            assert_eq!(page.items.iter().map(|job| job.seq).collect::<Vec<_>>(), seqs);
            assert_eq!(page.next, next);
            cursor = next;
        }
    }
}

pub(super) async fn a_page_has_at_least_one_and_at_most_a_thousand_rows(bench: &Bench) {
    bench.add((1..=1_001).map(job)).await;
    for (limit, rows) in [(0, 1), (5_000, 1_000)] {
        let page =
            bench.store.list(ListRequest { limit, ..ListRequest::default() }).await.expect("list answers");
        assert_eq!((page.items.len(), page.next.is_some()), (rows, true));
    }
}

pub(super) async fn a_list_finds_the_jobs_of_every_state(bench: &Bench) {
    bench.add((1..=5).map(job)).await;
    // A park without an end, and one with.
    bench.run(1, park("key")).await;
    bench.run(2, park_until("other", Some(bench.now() + secs(60)), OnTimeout::Resume)).await;
    bench.run(3, give_up()).await;
    bench.run(4, done("1")).await;
    bench.start(5).await;
    bench.add([job(6).queue("q"), job(7).run_at(bench.now() + secs(60)), job(8).after(id(6)), job(9)]).await;
    bench.cancel(9).await;
    let of =
        async |states: &[State]| listed(bench, Filter { states: states.to_vec(), ..Filter::default() }).await;
    for (state, seqs) in [
        (State::Blocked, vec![8]),
        (State::Scheduled, vec![7]),
        (State::Ready, vec![6]),
        (State::Running, vec![5]),
        (State::Parked, vec![1, 2]),
        (State::Succeeded, vec![4]),
        (State::Failed, vec![3]),
        (State::Cancelled, vec![9]),
    ] {
        assert_eq!(of(&[state]).await, seqs, "{state}");
    }
    assert_eq!(of(&State::ALL).await, (1..=9).collect::<Vec<_>>());
    assert_eq!(of(&[State::Cancelled, State::Failed, State::Failed]).await, [3, 9]);
    assert_eq!(of(&[State::Running, State::Ready, State::Parked]).await, [1, 2, 5, 6]);
    let in_queue = Filter { states: vec![State::Ready], queue: Some("q".to_owned()), ..Filter::default() };
    assert_eq!(listed(bench, in_queue).await, [6]);
}

pub(super) async fn a_list_by_id_takes_the_start_of_it(bench: &Bench) {
    bench.add((1..=3).map(job)).await;
    let whole = id(2).to_string();
    let found = async |prefix: &str| {
        listed(bench, Filter { id_prefix: Some(prefix.to_owned()), ..Filter::default() }).await
    };
    assert_eq!(found(&whole).await, [2]);
    assert_eq!(found(&whole.to_uppercase()).await, [2]);
    assert_eq!(found(&whole.replace('-', "")).await, [2]);
    assert_eq!(found(&whole[..9]).await, [1, 2, 3]);
    assert_eq!(found(&whole[..1]).await, [1, 2, 3]);
    for none in ["", "-", "ffffffff", "xyz"] {
        assert_eq!(found(none).await, [] as [i64; 0], "{none:?}");
    }
    let filter = Filter { id_prefix: Some(whole), states: vec![State::Failed], ..Filter::default() };
    assert_eq!(listed(bench, filter).await, [] as [i64; 0], "all conditions hold");
}

pub(super) async fn a_search_takes_fields_of_the_payload(bench: &Bench) {
    let long = "long ".repeat(1_000);
    bench
        .add([
            NewJob { payload: json(r#"{"user":{"id":42,"name":"Ann"},"tags":["red","blue"]}"#), ..job(1) },
            NewJob { payload: json(&format!(r#"{{"user":{{"id":"42"}},"text":"{long}"}}"#)), ..job(2) },
            NewJob { payload: json(r#"{"id":42,"on":true,"none":null}"#), ..job(3) },
            NewJob { payload: json("42"), ..job(4) },
        ])
        .await;
    let found = async |fields: &[(&str, &str)]| {
        let field = |(path, value): &(&str, &str)| Field { path: (*path).into(), value: (*value).into() };
        let fields = fields.iter().map(field).collect();
        listed(bench, Filter { fields, ..Filter::default() }).await
    };
    assert_eq!(found(&[("user.id", "42")]).await, [1, 2], "a string and a number that read alike");
    assert_eq!(found(&[("user.id", "42"), ("user.name", "Ann")]).await, [1]);
    assert_eq!(found(&[("id", "42")]).await, [3]);
    assert_eq!(found(&[("on", "true"), ("none", "null")]).await, [3]);
    assert_eq!(found(&[("tags", "blue")]).await, [1]);
    assert_eq!(found(&[("user.id", "4")]).await, [] as [i64; 0]);
}

pub(super) async fn what_is_hidden_is_found_by_those_only_who_may_see_it(bench: &Bench) {
    let payload = json(r#"{"user":"ann","a":{"password":"hunter2"},"a":1}"#);
    bench.add([NewJob { payload, ..job(1) }, job(2)]).await;
    let found = async |text: &str, hide_secrets: bool| {
        listed(bench, Filter { hide_secrets, ..Filter::parse(text).expect("a search") }).await
    };
    for text in ["hunter", "a.password:hunter2", r#""\"hunter2""#] {
        assert_eq!(found(text, true).await, [] as [i64; 0], "{text}");
        assert_eq!(found(text, false).await, [1], "{text}");
    }
    for text in ["ann", "user:ann", "password"] {
        assert_eq!(found(text, true).await, [1], "{text}");
    }
}

pub(super) async fn jobs_of_hidden_queues_are_neither_listed_nor_found(bench: &Bench) {
    let secret = |number: u64, queue: &str| NewJob {
        payload: json(r#"{"n":"secret"}"#),
        ..job(number).queue(queue).process("p").tag("red")
    };
    bench
        .add([secret(1, "run-%b12"), secret(2, "run-%b1"), secret(3, "run-%c12"), secret(4, "run-xb12")])
        .await;
    let hidden = NameForm { prefix: "run-%b".to_owned(), bytes: "run-%b12".len() };
    for text in ["", "secret", "n:secret", "tag:red", "process:p", "state:ready"] {
        let filter = Filter::parse(text).expect("a search");
        assert_eq!(listed(bench, filter.clone()).await, [1, 2, 3, 4], "{text}");
        let hidden_queues = vec![hidden.clone()];
        assert_eq!(listed(bench, Filter { hidden_queues, ..filter }).await, [2, 3, 4], "{text}");
    }
    let named =
        Filter { queue: Some("run-%b12".to_owned()), hidden_queues: vec![hidden], ..Filter::default() };
    assert_eq!(listed(bench, named).await, [] as [i64; 0]);
}

pub(super) async fn a_search_finds_all_of_its_texts(bench: &Bench) {
    let titled = JobOptions { title: Some("Annual Report".to_owned()), ..JobOptions::default() };
    bench.add([NewJob { options: titled, ..job(1) }, job(2)]).await;
    let found = async |texts: &[&str]| {
        let search = texts.iter().map(|text| (*text).to_owned()).collect();
        listed(bench, Filter { search, ..Filter::default() }).await
    };
    let digits = &id(1).to_string()[..8];
    assert_eq!(found(&["Annual", "\"n\""]).await, [1], "each in its place");
    assert_eq!(found(&["Annual", digits]).await, [1]);
    assert_eq!(found(&[digits]).await, [1, 2]);
    assert_eq!(found(&["Annual", "nowhere"]).await, [] as [i64; 0]);
    assert_eq!(found(&[&digits[..3]]).await, [] as [i64; 0], "too short to be meant as an id");
}

pub(super) async fn a_walk_from_page_to_page_meets_every_job_once(bench: &Bench) {
    bench
        .add((1..=40).map(|number| if number % 3 == 0 { job(number).tag("red") } else { job(number) }))
        .await;
    for (number, event) in [(1, give_up()), (2, done("1")), (3, give_up()), (4, give_up()), (5, give_up())] {
        bench.run(number, event).await;
    }
    let red = Filter { tag: Some("red".to_owned()), ..Filter::default() };
    let failed = Filter { states: vec![State::Failed], ..Filter::default() };
    let text = Filter { search: vec!["3".to_owned()], ..Filter::default() };
    for filter in [Filter::default(), red, failed, text] {
        let expected = listed(bench, filter.clone()).await;
        for newest_first in [false, true] {
            let (mut met, mut cursor) = (Vec::new(), None);
            loop {
                let request = ListRequest { filter: filter.clone(), newest_first, cursor, limit: 3 };
                let page = bench.store.list(request).await.expect("list answers");
                assert!(page.next.is_some() || !page.partial, "who was cut short knows where to go on");
                assert!(page.items.len() < 3 || !page.partial, "a full page is not partial");
                assert!(page.items.len() == 3 || page.partial || page.next.is_none(), "{page:?}");
                met.extend(page.items.iter().map(|job| job.seq));
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
            if newest_first {
                met.reverse();
            }
            assert_eq!(met, expected, "{filter:?}");
        }
    }
}
