//! A process that holds the write lock and does not let go of it is named to those that wait.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use longhaul_queue::testing::bench::job;
use longhaul_queue::{Error, Store as _};
use longhaul_sqlite::child;

use crate::stage::Stage;

/// What the child prints when it has the lock.
const HELD: &str = "the lock is held";

#[tokio::test]
async fn a_stopped_process_that_holds_the_write_lock_is_named() {
    const NAME: &str = "lock_holder::a_stopped_process_that_holds_the_write_lock_is_named";
    if let Some((_, folder)) = child::role() {
        let connection = Stage::at(folder).connection();
        connection.execute_batch("BEGIN IMMEDIATE").expect("the lock is free");
        println!("{HELD}");
        // Until it is killed.
        std::io::stdin().lines().for_each(drop);
        return;
    }
    let stage = Stage::new();
    let store = stage.open();
    let mut command = child::command(NAME, "holder", &stage.folder);
    let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let lines = BufReader::new(holder.stdout.take().expect("piped")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains(HELD)), "the child has the lock");
    let pid = holder.id().to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().expect("kill runs").success());
    // It waits for some ten seconds first.
    let refused = store.insert(vec![job(1)], longhaul_queue::testing::bench::START).await;
    holder.kill().expect("it can be ended");
    holder.wait().expect("it ends");
    let Err(Error::Unavailable(text)) = refused else { panic!("{refused:?}") };
    for words in [&format!("process {pid}"), "holds the write lock", "stopped", &format!("kill -CONT {pid}")]
    {
        assert!(text.contains(words), "{words:?} is missing in {text:?}");
    }
    store.insert(vec![job(1)], longhaul_queue::testing::bench::START).await.expect("the lock is free again");
}
