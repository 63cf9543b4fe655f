//! `mcp` over real pipes, as a client of the protocol starts it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::place::Place;

/// A client: a message a line, answers matched by id.
struct Client {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    next: u64,
}

impl Client {
    fn start(place: &Place, args: &[&str]) -> Self {
        let mut command = place.command(&[&["mcp", "--profile", "sim"], args].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("running longhaul");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { input: child.stdin.take(), child, output, next: 0 }
    }

    fn send(&mut self, line: &str) {
        let input = self.input.as_mut().expect("open");
        writeln!(input, "{line}").and_then(|()| input.flush()).expect("sending");
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("an answer");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.next += 1;
        let id = self.next;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
        let answer = self.receive();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    fn initialize(&mut self, version: &str) -> Value {
        let client = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": client});
        let answer = self.ask("initialize", &params)["result"].clone();
        self.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        answer
    }

    /// Calls a tool and answers its result, whatever it is.
    fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        let answer = self.ask("tools/call", &json!({"name": tool, "arguments": arguments}));
        let result = answer["result"].clone();
        assert!(result["content"][0]["text"].is_string(), "{answer}");
        result
    }

    /// Calls a tool, which must go well.
    fn done(&mut self, tool: &str, arguments: &Value) -> Value {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], false, "{tool}: {result}");
        result["structuredContent"].clone()
    }

    /// Calls a tool, which must fail with these words.
    fn fails(&mut self, tool: &str, arguments: &Value, words: &str) {
        let result = self.call(tool, arguments);
        let text = result["content"][0]["text"].as_str().expect("a text");
        assert!(result["isError"] == true && text.contains(words), "{tool}: {result}");
    }

    /// Closes the input and answers the exit code and what was still said.
    fn end(mut self) -> (Option<i32>, String) {
        drop(self.input.take());
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.output, &mut rest).expect("the rest");
        (self.child.wait().expect("an end").code(), rest)
    }
}

fn names(answer: &Value) -> Vec<&str> {
    let tools = answer["result"]["tools"].as_array().expect("tools");
    tools.iter().map(|tool| tool["name"].as_str().expect("a name")).collect()
}

#[test]
fn a_client_that_only_looks_sees_everything_and_changes_nothing() {
    let place = Place::new();
    let id = place.enqueue(&["echo", r#"{"hello":1,"api_key":"sk-very-secret"}"#, "--process", "p"]);
    place.drain(&[]);
    let mut client = Client::start(&place, &[]);
    let hello = client.initialize("2025-06-18");
    assert_eq!(hello["protocolVersion"], "2025-06-18");
    assert!(
        hello["capabilities"]["tools"].is_object() && hello["serverInfo"]["name"] == "longhaul",
        "{hello}"
    );
    assert_eq!(client.ask("ping", &json!({}))["result"], json!({}));
    let listed = client.ask("tools/list", &json!({}));
    let reading = [
        "list_jobs",
        "get_job",
        "wait_job",
        "list_runs",
        "get_run",
        "get_results",
        "queue_stats",
        "list_job_kinds",
        "cost_report",
        "estimate_cost",
    ];
    assert_eq!(names(&listed), reading);

    let jobs = client.done("list_jobs", &json!({"states": ["succeeded"], "limit": 5}));
    assert_eq!((jobs["jobs"][0]["id"].as_str(), jobs["next_cursor"].is_null()), (Some(id.as_str()), true));
    let job = client.done("get_job", &json!({"id": id}));
    assert_eq!((&job["payload"]["hello"], &job["payload"]["api_key"]), (&json!(1), &json!("[redacted]")));
    assert!(!job.to_string().contains("very-secret"), "{job}");
    assert_eq!(client.done("get_job", &json!({"id": "p"}))["total"], 1);
    assert_eq!(client.done("wait_job", &json!({"id": id}))["ended"], true);
    assert_eq!(client.done("get_results", &json!({"id": id}))["value"]["hello"], 1);
    assert_eq!(client.done("get_results", &json!({"id": "p"}))["results"][0]["result"]["hello"], 1);
    for id in [id.as_str(), "p"] {
        assert!(!client.done("get_results", &json!({"id": id})).to_string().contains("very-secret"), "{id}");
    }
    let stats = client.done("queue_stats", &json!({}));
    assert_eq!(stats["all_queues"]["succeeded"], 1, "{stats}");
    let kinds = client.done("list_job_kinds", &json!({}));
    let echo = json!({"kind": "echo", "queues": ["default"], "states": {"succeeded": 1}, "workers": 0});
    assert_eq!(kinds["kinds"], json!([echo]), "{kinds}");
    assert_eq!(client.done("cost_report", &json!({"days": 1}))["cost_usd"], 0.0);
    let cost =
        client.done("estimate_cost", &json!({"model": "sim-small", "requests": ["Hello?", "And you?"]}));
    assert!(cost["requests"] == 2 && cost["cost_usd"].as_f64() > Some(0.0), "{cost}");

    for tool in ["enqueue_job", "submit_batch", "cancel_job", "retry_job", "cancel_run", "remove_run"] {
        client.fails(tool, &json!({"id": id}), "--allow-write");
    }
    let (code, rest) = client.end();
    assert_eq!((code, rest.as_str()), (Some(0), ""));
    assert_eq!(place.json(&["jobs", "ls"])["items"].as_array().expect("jobs").len(), 1);
}

#[test]
fn a_client_that_may_write_hands_in_cancels_and_retries() {
    let place = Place::new();
    let mut client = Client::start(&place, &["--allow-write"]);
    client.initialize("2025-11-25");
    assert_eq!(names(&client.ask("tools/list", &json!({}))).len(), 20);

    let job = json!({"kind": "fail", "payload": {}, "options": {"max_attempts": 1, "title": "t"}});
    let job = client.done("enqueue_job", &job);
    assert!(
        job["state"] == "ready" && job["note"].as_str().expect("a note").contains("longhaul work"),
        "{job}"
    );
    let batch = json!({
        "model": "sim-small", "mode": "sync", "max_cost_usd": 0.5,
        "requests": [{"custom_id": "a", "prompt": "One?"}, {"custom_id": "b", "prompt": "Two?"}],
    });
    let run = client.done("submit_batch", &batch);
    assert_eq!((&run["requests"], &run["resumed"]), (&json!(2), &json!(false)));
    assert_eq!(client.done("submit_batch", &batch)["resumed"], true, "the same call is the same run");
    place.drain(&["--profile", "sim"]);

    let waited = client.done("wait_job", &json!({"id": run["id"]}));
    assert!(waited["ended"] == true && waited["units"]["done"] == 2, "{waited}");
    let results = client.done("get_results", &json!({"id": run["id"], "limit": 1}));
    let next = results["next_cursor"].clone();
    assert!(results["results"][0]["custom_id"] == "a" && next.is_string(), "{results}");
    let results = client.done("get_results", &json!({"id": run["id"], "cursor": next}));
    assert!(
        results["results"][0]["custom_id"] == "b" && results["results"][0]["result"]["text"].is_string(),
        "{results}"
    );
    assert_eq!(client.done("cost_report", &json!({"run": run["id"]}))["totals"]["answers"], 2);

    assert_eq!(client.done("get_job", &json!({"id": job["id"]}))["state"], "failed");
    assert_eq!(client.done("retry_job", &json!({"id": job["id"]}))["state"], "ready");
    assert_eq!(client.done("cancel_job", &json!({"id": job["id"]}))["change"], "cancelled");
    client.fails("cancel_job", &json!({"id": job["id"]}), "before");
    assert_eq!(client.end().0, Some(0));
}

#[test]
fn wrong_arguments_name_their_field() {
    let place = Place::new();
    let mut client = Client::start(&place, &["--allow-write"]);
    let rows = [
        ("list_jobs", json!({"limit": 500}), "/limit"),
        ("list_jobs", json!({"states": ["done"]}), "/states/0"),
        ("list_jobs", json!({"colour": "red"}), "colour"),
        ("list_jobs", json!([]), "object"),
        ("get_job", json!({}), "\"id\""),
        ("get_job", json!({"id": "no-such"}), "no-such"),
        ("get_job", json!({"id": "0198c5a2-0000-7000-8000-000000000000"}), "there is no job"),
        ("wait_job", json!({"id": "x", "timeout_seconds": 61}), "/timeout_seconds"),
        ("submit_batch", json!({"model": "sim-small"}), "field requests"),
        ("submit_batch", json!({"model": "sim-small", "requests": ["a"], "input_file": "file-1"}), "exclude"),
        ("submit_batch", json!({"model": "sim-small", "requests": [{"custom_id": "x"}]}), "/requests/0"),
        (
            "submit_batch",
            json!({"model": "sim-small", "requests": ["a"], "max_cost_usd": 0}),
            "/max_cost_usd",
        ),
        ("list_jobs", json!({"cursor": "12"}), "field cursor"),
        ("get_run", json!({"id": "no-such"}), "no-such"),
        ("get_run", json!({"id": "x", "wait_s": 61}), "/wait_s"),
        ("enqueue_job", json!({"kind": "echo", "id": "7"}), "at /id: "),
        ("enqueue_job", json!({"kind": "echo", "process": "p"}), "process_id, queue, "),
        ("enqueue_job", json!({"kind": "echo", "options": {"titel": "t"}}), "titel"),
        ("enqueue_job", json!({"kind": "echo", "options": {"max_attempts": 0}}), "/options/max_attempts"),
        ("enqueue_job", json!({"kind": "echo", "delay_ms": 1, "run_at": 2}), "field delay_ms"),
        ("enqueue_job", json!({"kind": "echo", "depends_on": ["nobody"]}), "field depends_on"),
        ("queue_stats", json!({"queue": "nobody"}), "nobody"),
    ];
    for (tool, arguments, words) in rows {
        client.fails(tool, &arguments, words);
    }
    assert_eq!(client.end().0, Some(0));
}

#[test]
fn what_is_no_message_is_told_and_the_next_one_is_answered() {
    let place = Place::new();
    let mut client = Client::start(&place, &["--allow-write"]);
    for (line, code) in
        [("{\"jsonrpc\":", -32700), ("[]", -32600), ("{\"jsonrpc\":\"2.0\",\"id\":1}", -32600)]
    {
        client.send(line);
        let answer = client.receive();
        assert!(answer["error"]["code"] == code && answer["id"].is_null(), "{line}: {answer}");
    }
    client.send("");
    assert_eq!(client.ask("tools/call", &json!({"name": "rm_rf"}))["error"]["code"], -32602);
    assert_eq!(client.ask("resources/list", &json!({}))["error"]["code"], -32601);
    assert_eq!(client.ask("initialize", &json!({}))["error"]["code"], -32602);
    assert_eq!(client.initialize("2099-01-01")["protocolVersion"], "2025-11-25");
    // A wait holds up no other call, and one that is cancelled says nothing more.
    let id = client.done("enqueue_job", &json!({"kind": "nobody"}))["id"].clone();
    let wait = json!({"name": "wait_job", "arguments": {"id": id, "timeout_seconds": 60}});
    client.send(&json!({"jsonrpc": "2.0", "id": "w", "method": "tools/call", "params": wait}).to_string());
    client.send(&json!({"jsonrpc": "2.0", "id": "v", "method": "tools/call", "params": wait}).to_string());
    assert_eq!(client.ask("ping", &json!({}))["result"], json!({}));
    client.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"w"}}"#);
    assert_eq!(client.ask("ping", &json!({}))["result"], json!({}));
    // The end of the input ends the wait.
    let (code, rest) = client.end();
    assert_eq!(code, Some(0));
    let rest: Vec<Value> = rest.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert!(rest[0]["id"] == "v" && rest[0]["result"]["structuredContent"]["ended"] == false, "{rest:?}");
}

#[test]
fn clients_of_the_newest_revision_need_no_handshake() {
    let place = Place::new();
    let mut client = Client::start(&place, &["--allow-write"]);
    let meta = |version: &str| json!({"_meta": {"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}}});
    let found = client.ask("server/discover", &meta("2026-07-28"))["result"].clone();
    assert!(
        found["supportedVersions"].as_array().expect("versions").contains(&json!("2026-07-28")),
        "{found}"
    );
    let listed = client.ask("tools/list", &meta("2026-07-28"))["result"].clone();
    assert!(
        listed["resultType"] == "complete" && listed["ttlMs"].is_u64() && listed["cacheScope"] == "private"
    );
    let refused = client.ask("tools/list", &meta("1900-01-01"))["error"].clone();
    assert!(refused["code"] == -32022 && refused["data"]["requested"] == "1900-01-01", "{refused}");
    assert_eq!(client.ask("server/discover", &json!({}))["error"]["code"], -32602);
    assert_eq!(client.ask("ping", &meta("2026-07-28"))["error"]["code"], -32601);
    assert_eq!(client.end().0, Some(0));
}

#[test]
fn a_client_can_start_in_a_new_folder() {
    let place = Place::new();
    let mut client = Client::start(&place, &[]);
    client.initialize("2025-11-25");
    assert_eq!(client.done("list_jobs", &json!({}))["jobs"], json!([]));
    assert_eq!(client.end().0, Some(0));
}
