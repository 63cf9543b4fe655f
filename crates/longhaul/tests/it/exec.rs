//! The protocol between the worker and a command: environment, result, every control line, every way to end.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use crate::place::{Place, Ran, read};

#[test]
fn stdin_is_the_payload_and_stdout_the_result() {
    let place = Place::new();
    let job = place.exec(r#"{"n":12345678901234567890}"#, "cat");
    assert_eq!(job["state"], "succeeded");
    let shown = place.ok(&["jobs", "show", job["id"].as_str().expect("an id"), "-o", "json"]);
    assert!(shown.contains(r#""result":{"n":12345678901234567890}"#), "{shown}");
    assert!(place.exec("1", "true")["result"].is_null());
}

#[test]
fn a_command_without_text_is_refused() {
    let place = Place::new();
    let id = place.enqueue(&["x"]);
    for command in ["", " \t\n"] {
        let ran = place.run(&["work", "--drain", "--exec", command]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(
            ran.stderr.contains("--exec is empty") && ran.stderr.contains("'exec ./deploy.sh'"),
            "{ran:?}"
        );
    }
    assert_eq!(place.show(&id)["state"], "ready");
}

#[test]
fn the_environment_tells_about_the_job() {
    let place = Place::new();
    let parent = place.enqueue(&["x", "7"]);
    let id = place.enqueue(&["y", "8", "--after", &parent, "--process", "p", "--queue", "default"]);
    place.drain(&["--exec", r#"env | grep ^LONGHAUL_ | sort > "$LONGHAUL_KIND.env"; cat"#]);
    let environment = read(&place.path("y.env"));
    for line in [
        format!("LONGHAUL_JOB_ID={id}"),
        "LONGHAUL_KIND=y".to_owned(),
        "LONGHAUL_QUEUE=default".to_owned(),
        "LONGHAUL_PROCESS=p".to_owned(),
        "LONGHAUL_ATTEMPT=0".to_owned(),
        "LONGHAUL_FENCE=1".to_owned(),
        format!("LONGHAUL_IDEMPOTENCY_KEY={id}:exec"),
        format!(r#"LONGHAUL_PARENTS=[{{"job_id":"{parent}","state":"succeeded","result":7,"error":null}}]"#),
    ] {
        assert!(environment.lines().any(|found| found == line), "{line} is missing in\n{environment}");
    }
    assert!(!environment.contains("LONGHAUL_DATA="));
}

#[test]
fn a_failure_is_retried_with_the_end_of_stderr() {
    let place = Place::new();
    let job = place.exec("1", "echo first >&2; echo last >&2; exit 7");
    assert_eq!(job["state"], "failed");
    assert_eq!(job["error"]["text"], "exit code 7: first\nlast");
    let log: Vec<&str> =
        job["log"].as_array().expect("a log").iter().filter_map(|line| line["text"].as_str()).collect();
    assert_eq!(log, ["first", "last"]);
    assert!(place.ok(&["jobs", "log", job["id"].as_str().expect("an id")]).contains("first"));
    assert!(
        place.exec("1", "kill -9 $$")["error"]["text"]
            .as_str()
            .expect("a text")
            .contains("killed by SIGKILL")
    );
    let long = place.exec("1", "yes error | head -c 10000 >&2; exit 1");
    assert!(long["error"]["text"].as_str().expect("a text").len() < 2_100);
}

#[test]
fn stdout_that_is_not_json_is_explained() {
    let place = Place::new();
    let error = place.exec("1", "echo hello")["error"]["text"].as_str().expect("a text").to_owned();
    assert!(error.contains("not one JSON value") && error.contains("jq -Rs ."), "{error}");
    let error =
        place.exec("1", "yes 1 | head -c 1200000")["error"]["text"].as_str().expect("a text").to_owned();
    assert!(error.contains("longer than 1000000 bytes"), "{error}");
}

#[test]
fn stdout_without_end_is_cut_short() {
    let place = Place::new();
    let alive = Alive::watch(&place);
    // The shell would outlive a mere SIGPIPE of `yes`.
    let job = place.exec("1", "exec 9> alive; yes 1; sleep 60");
    alive.ends();
    let error = job["error"]["text"].as_str().expect("a text");
    assert!(error.contains("longer than 1000000 bytes"), "{error}");
    let decided = r#"echo '{"longhaul":"continue"}'; tr '\0' 1 < /dev/zero"#;
    let job = place.exec("1", decided);
    assert!(job["error"]["text"].to_string().contains("longer than 1000000 bytes"), "{job}");
}

#[test]
fn progress_log_and_save_are_kept() {
    let place = Place::new();
    let job = place.exec(
        "1",
        r#"echo '{"longhaul":"progress","done":3,"total":10,"message":"half-way"}'
           echo '{"longhaul":"log","text":"hello"}'
           echo '{"longhaul":"save","data":{"at":3}}'
           echo '{"ok":true}'"#,
    );
    assert_eq!((&job["state"], &job["result"]["ok"]), (&"succeeded".into(), &true.into()));
    assert_eq!((&job["progress"]["done"], &job["progress"]["message"]), (&3.into(), &"half-way".into()));
    assert_eq!((&job["data"]["at"], &job["log"][0]["text"]), (&3.into(), &"hello".into()));
}

#[test]
fn continue_runs_again_with_its_checkpoint() {
    let place = Place::new();
    let job = place.exec(
        "1",
        r#"if [ -z "$LONGHAUL_DATA" ]; then echo '{"longhaul":"continue","data":{"step":1}}'; else echo "$LONGHAUL_DATA"; fi"#,
    );
    assert_eq!((&job["state"], &job["result"]["step"]), (&"succeeded".into(), &1.into()));
    assert_eq!((&job["spent"]["continues"], &job["spent"]["attempt"]), (&1.into(), &0.into()));
}

#[test]
fn a_long_checkpoint_comes_in_a_file() {
    let place = Place::new();
    let job = place.exec(
        "1",
        r#"if [ -n "$LONGHAUL_DATA_FILE" ]; then wc -c < "$LONGHAUL_DATA_FILE"
           else printf '{"longhaul":"continue","data":"%050000d"}\n' 0; fi"#,
    );
    assert_eq!(job["result"], 50_002, "{}", job["error"]);
}

#[test]
fn park_waits_for_a_signal_and_hands_it_over() {
    let place = Place::new();
    let command = r#"if [ -z "$LONGHAUL_WAKE" ]; then echo '{"longhaul":"park","key":"k-1","timeout":"1h"}'; else echo "$LONGHAUL_WAKE"; fi"#;
    let job = place.exec("1", command);
    assert_eq!((&job["state"], &job["park"]["key"]), (&"parked".into(), &"k-1".into()));
    let unparked = place.json(&["jobs", "unpark", "--key", "k-1", r#"{"approved":true}"#]);
    assert_eq!(unparked["jobs"][0], job["id"]);
    place.drain(&["--exec", command]);
    let job = place.show(job["id"].as_str().expect("an id"));
    assert_eq!(job["result"]["signal"]["approved"], true);
    let early = place.run(&["jobs", "unpark", "--key", "k-2"]);
    assert!(early.code == Some(0) && early.stderr.contains("kept"), "{early:?}");
}

#[test]
fn retry_and_fail_win_over_the_exit_code() {
    let place = Place::new();
    let id = place.enqueue(&["x"]);
    place.drain(&["--exec", r#"[ "$LONGHAUL_FENCE" -gt 1 ] || echo '{"longhaul":"retry","error":"429","after":"1ms","class":"throttle"}'"#]);
    let job = place.show(&id);
    assert_eq!((&job["state"], &job["spent"]["attempt"]), (&"succeeded".into(), &0.into()));
    assert_eq!(job["runs"][0]["outcome"], "throttle");
    let id = place.enqueue(&["x", "--max-attempts", "9"]);
    place.drain(&["--exec", r#"echo '{"longhaul":"fail","error":"bad input"}'; exit 0"#]);
    let job = place.show(&id);
    assert_eq!((&job["state"], &job["error"]["text"]), (&"failed".into(), &"bad input".into()));
    let last = r#"[ "$LONGHAUL_FENCE" -gt 1 ] && exit 0
        echo '{"longhaul":"fail","error":"first"}'; echo '{"longhaul":"continue"}'; exit 9"#;
    let job = place.exec("1", last);
    assert_eq!((&job["state"], &job["runs"][0]["outcome"]), (&"succeeded".into(), &"continue".into()));
}

#[test]
fn enqueue_adds_a_job_with_the_outcome() {
    let place = Place::new();
    let command = r#"[ "$LONGHAUL_KIND" = y ] || echo '{"longhaul":"enqueue","job":{"kind":"y","payload":[1.10],"options":{"tags":["t"]}}}'"#;
    let parent = place.exec("1", command);
    assert_eq!(parent["state"], "succeeded");
    let jobs = place.json(&["jobs", "ls", "--kind", "y"]);
    assert_eq!(
        (&jobs["items"][0]["state"], &jobs["items"][0]["options"]["parent_id"]),
        (&"succeeded".into(), &parent["id"])
    );
}

#[test]
fn a_wrong_control_line_fails_the_run_and_says_why() {
    let place = Place::new();
    let error = place.exec("1", r#"echo '{"longhaul":"contine"}'"#)["error"]["text"]
        .as_str()
        .expect("a text")
        .to_owned();
    assert!(error.contains("unknown variant `contine`"), "{error}");
    let error =
        place.exec("1", r#"echo '{"longhaul":"enqueue","job":{"knd":"x"}}'"#)["error"]["text"].to_string();
    assert!(error.contains("unknown field `knd`"), "{error}");
}

#[test]
fn a_run_limit_ends_the_whole_group() {
    let place = Place::new();
    let alive = Alive::watch(&place);
    let id = place.enqueue(&["x", "--max-attempts", "1", "--run-limit", "300ms"]);
    place.drain(&["--exec", "exec 9> alive; sleep 60 & sleep 60; echo 1"]);
    let job = place.show(&id);
    assert_eq!((&job["state"], &job["error"]["reason"]), (&"failed".into(), &"run_limit".into()));
    alive.ends();
}

#[test]
fn what_is_left_in_the_background_ends_with_the_command() {
    let place = Place::new();
    let alive = Alive::watch(&place);
    let started = std::time::Instant::now();
    let job = place.exec("1", "exec 9> alive; sleep 60 & echo why >&2; printf 7");
    assert_eq!((&job["state"], &job["result"]), (&"succeeded".into(), &7.into()), "{job}");
    assert!(started.elapsed().as_secs() < 20, "the job ends with its command");
    alive.ends();
    // One that keeps talking is killed as well.
    let job = place.exec("1", "(while echo more >&2; do sleep 0.1; done) & echo 8");
    assert_eq!((&job["state"], &job["result"]), (&"succeeded".into(), &8.into()), "{job}");
}

#[test]
fn a_cancel_reaches_a_command_that_closed_its_output() {
    let place = Place::new();
    let id = place.enqueue(&["x", "--max-attempts", "1"]);
    fifo(&place, "started");
    let command = "exec >&- 2>&-; echo > started; exec sleep 60";
    let mut worker = place.command(&["work", "--drain", "--exec", command]);
    let mut worker = worker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("running longhaul");
    read(&place.path("started"));
    assert_eq!(place.json(&["jobs", "cancel", &id])["items"][0]["change"], "requested");
    assert_eq!(place.run(&["jobs", "wait", &id, "--timeout", "20s"]).code, Some(3));
    assert_eq!(place.show(&id)["state"], "cancelled");
    assert_eq!(worker.wait().expect("waiting").code(), Some(0));
}

#[test]
fn a_cancelled_command_gets_sigterm_and_may_tidy_up() {
    let place = Place::new();
    let id = place.enqueue(&["x", "--max-attempts", "1"]);
    fifo(&place, "started");
    let command = r#"trap 'echo bye > tidied; exit 3' TERM; echo > started; sleep 600 & wait"#;
    let mut worker = place.command(&["work", "--drain", "--exec", command]);
    let worker = worker.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("running longhaul");
    // Opening a pipe for reading waits until the command opens it for writing.
    read(&place.path("started"));
    assert_eq!(place.json(&["jobs", "cancel", &id])["items"][0]["change"], "requested");
    assert_eq!(place.run(&["jobs", "wait", &id, "--timeout", "20s"]).code, Some(3));
    assert_eq!(place.show(&id)["state"], "cancelled");
    assert_eq!(read(&place.path("tidied")), "bye\n");
    assert_eq!(Ran::from(worker.wait_with_output().expect("waiting")).code, Some(0));
}

#[test]
fn a_killed_worker_takes_its_command_along() {
    let place = Place::new();
    let alive = Alive::watch(&place);
    place.enqueue(&["x"]);
    fifo(&place, "started");
    let mut worker = place.command(&["work", "--exec", "exec 9> alive; echo > started; exec sleep 60"]);
    let mut worker = worker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("running longhaul");
    read(&place.path("started"));
    worker.kill().expect("killing the worker");
    worker.wait().expect("waiting");
    alive.ends();
}

#[test]
fn a_term_signal_drains_the_worker() {
    let place = Place::new();
    let id = place.enqueue(&["x"]);
    fifo(&place, "started");
    fifo(&place, "go");
    let mut worker = place.command(&["work", "--exec", "echo > started; cat go; echo 5"]);
    let worker = worker.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("running longhaul");
    read(&place.path("started"));
    let term = std::process::Command::new("kill").arg(worker.id().to_string()).status().expect("kill");
    assert!(term.success());
    std::fs::write(place.path("go"), "").expect("opening the gate");
    let ran = Ran::from(worker.wait_with_output().expect("waiting"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("draining") && ran.stderr.contains("1 done"), "{ran:?}");
    assert_eq!(place.show(&id)["result"], 5);
}

#[test]
fn a_command_that_fails_during_a_drain_has_failed() {
    let place = Place::new();
    let id = place.enqueue(&["x", "--max-attempts", "1"]);
    fifo(&place, "started");
    fifo(&place, "go");
    let mut worker = place.command(&["work", "--exec", "echo > started; cat go; exit 4"]);
    let mut worker = worker.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("running longhaul");
    read(&place.path("started"));
    let term = std::process::Command::new("kill").arg(worker.id().to_string()).status().expect("kill");
    assert!(term.success());
    let stderr = BufReader::new(worker.stderr.take().expect("piped"));
    let mut said = stderr.lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("draining")), "the drain has begun");
    std::fs::write(place.path("go"), "").expect("opening the gate");
    said.for_each(drop);
    assert_eq!(worker.wait().expect("waiting").code(), Some(0));
    let job = place.show(&id);
    assert_eq!(job["state"], "failed", "nobody told the command to end: {job}");
}

fn fifo(place: &Place, name: &str) {
    assert!(std::process::Command::new("mkfifo").arg(place.path(name)).status().expect("mkfifo").success());
}

/// Sees the end of all processes that hold the pipe `alive` open.
struct Alive {
    reader: std::thread::JoinHandle<String>,
}

impl Alive {
    fn watch(place: &Place) -> Self {
        fifo(place, "alive");
        let path = place.path("alive");
        Self { reader: std::thread::spawn(move || read(&path)) }
    }

    /// Waits for the end, and demands that it came long before the command would have ended by itself.
    fn ends(self) {
        let started = std::time::Instant::now();
        self.reader.join().expect("reading the pipe");
        assert!(started.elapsed().as_secs() < 20, "the command outlived its run");
    }
}
