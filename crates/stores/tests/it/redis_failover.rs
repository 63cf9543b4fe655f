//! A primary that dies and a replica that takes over. What the replica had not received is gone, and whoever still works on
//! what was lost must be refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use longhaul_queue::state::State;
use longhaul_queue::store::{ExtendRequest, Renewal, Save, Settled};
use longhaul_queue::testing::bench::{LEASE_FOR, id, job};
use longhaul_queue::testing::invariants;
use longhaul_queue::{Claimed, Clock, EngineStore as _, Error, Result, Store, SystemClock};
use longhaul_stores::redis::RedisStore;
use redis::aio::MultiplexedConnection;
use tokio::net::{TcpListener, TcpStream};

use crate::redis_server::{done_item, request};
use crate::servers::redis::RedisServer;

const PATIENCE: Duration = Duration::from_secs(60);
const JOBS: u64 = 400;

/// What clients know of the two servers: one address that leads to whichever of them serves.
struct Address {
    port: u16,
    leads_to: Arc<AtomicU16>,
}

impl Address {
    async fn of(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let leads_to = Arc::new(AtomicU16::new(server.port));
        let target = Arc::clone(&leads_to);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let server = target.load(Ordering::SeqCst);
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
                    // Whichever side ends, ends both.
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { port, leads_to }
    }

    async fn store(&self) -> RedisStore {
        let url = format!("redis://127.0.0.1:{}?name=ha", self.port);
        RedisStore::connect(&url.parse().expect("a URL")).await.expect("the store opens")
    }
}

async fn ask(connection: &mut MultiplexedConnection, command: &[&str]) -> redis::Value {
    let mut asked = redis::cmd(command[0]);
    asked.arg(&command[1..]);
    asked.query_async(connection).await.expect("the server answers")
}

/// Waits until the replica has all that the primary has acknowledged so far.
async fn replicated(connection: &mut MultiplexedConnection) {
    // It waits for this connection's own last write, and for all before it.
    ask(connection, &["SET", "probe", "2"]).await;
    let reached = ask(connection, &["WAIT", "1", "20000"]).await;
    assert_eq!(reached, redis::Value::Int(1), "the replica follows");
}

/// A primary, its replica, and the address that leads to the primary. The replica follows once this returns.
async fn pair() -> (RedisServer, RedisServer, Address) {
    let primary = RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &primary.port.to_string()]);
    let mut connection = primary.connection().await;
    let following = async {
        loop {
            ask(&mut connection, &["SET", "probe", "1"]).await;
            if ask(&mut connection, &["WAIT", "1", "100"]).await == redis::Value::Int(1) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, following).await.expect("the replica follows");
    let address = Address::of(&primary).await;
    (primary, replica, address)
}

async fn fail_over(primary: &mut RedisServer, replica: &RedisServer, address: &Address) {
    primary.kill();
    ask(&mut replica.connection().await, &["REPLICAOF", "NO", "ONE"]).await;
    address.leads_to.store(replica.port, Ordering::SeqCst);
}

async fn persist<T>(call: impl AsyncFn() -> Result<T>) -> T {
    let tries = async {
        loop {
            match call().await {
                Ok(value) => return value,
                Err(Error::Unavailable(_)) => tokio::task::yield_now().await,
                Err(error) => panic!("only the connection goes wrong: {error}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, tries).await.expect("the replica takes over")
}

/// Everybody who holds a lease of the past is refused, whichever way it writes.
async fn check_refused(store: &RedisStore, stale: &Claimed) {
    let now = SystemClock.now();
    let settled = persist(async || store.settle(vec![done_item(stale)], now).await).await;
    assert_eq!(settled, [Settled::LostLease]);
    let leases = vec![stale.lease.clone()];
    let renewal = ExtendRequest { leases, lease_for: LEASE_FOR, now };
    assert_eq!(persist(async || store.extend(renewal.clone()).await).await, [Renewal::Lost]);
    let saved = store.save(stale.lease.clone(), Save::default(), now).await;
    assert!(matches!(saved, Err(Error::LostLease(_))), "{saved:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_writes_that_were_lost_is_refused_though_place_and_fence_are_the_same() {
    let (mut primary, replica, address) = pair().await;
    let store = address.store().await;
    store.insert(vec![job(1)], SystemClock.now()).await.expect("insert answers");
    let mut to_primary = primary.connection().await;
    replicated(&mut to_primary).await;
    // From here on nothing reaches the replica: it stands still, as one does whose network is gone.
    ask(&mut replica.connection().await, &["REPLICAOF", "NO", "ONE"]).await;
    let of_old_claim = store.claim(request("old", 1)).await.expect("claim answers").remove(0);
    store.insert(vec![job(2)], SystemClock.now()).await.expect("insert answers");
    let of_lost_job = store.claim(request("old", 1)).await.expect("claim answers").remove(0);

    fail_over(&mut primary, &replica, &address).await;
    // The same place and fence again: for another worker, and for another job.
    let again = persist(async || store.claim(request("new", 1)).await).await.remove(0);
    assert_eq!((again.lease.seq, again.lease.fence), (of_old_claim.lease.seq, of_old_claim.lease.fence));
    check_refused(&store, &of_old_claim).await;
    persist(async || store.insert(vec![job(3)], SystemClock.now()).await).await;
    let other = persist(async || store.claim(request("old", 1)).await).await.remove(0);
    assert_eq!((other.lease.seq, other.lease.fence), (of_lost_job.lease.seq, of_lost_job.lease.fence));
    check_refused(&store, &of_lost_job).await;

    let items = vec![done_item(&again), done_item(&other)];
    let settled = persist(async || store.settle(items.clone(), SystemClock.now()).await).await;
    assert_eq!(settled, [Settled::Applied(State::Succeeded), Settled::Applied(State::Succeeded)]);
    // A reader of events that is ahead of what survived is told so.
    let page = persist(async || store.events(Some(1_000), 10).await).await;
    assert!(page.resync);
    invariants::check(&store).await.expect("what is stored fits together");
}

/// Claims and settles until every job has ended, or is leased to a claim whose answer was lost.
async fn work(store: &RedisStore, name: &str, total: u64) {
    loop {
        let claimed = persist(async || store.claim(request(name, 4)).await).await;
        let items: Vec<_> = claimed.iter().map(done_item).collect();
        let replies = persist(async || store.settle(items.clone(), SystemClock.now()).await).await;
        // A repeated settlement may find that it was carried out the first time.
        let expected = [Settled::Applied(State::Succeeded), Settled::LostLease];
        assert!(replies.iter().all(|reply| expected.contains(reply)), "{replies:?}");
        if claimed.is_empty() && ended(store).await + running(store).await >= total {
            return;
        }
    }
}

async fn of_state(store: &RedisStore, state: State) -> u64 {
    let counts = persist(async || store.counts().await).await;
    counts.iter().filter(|row| row.state == state).map(|row| row.jobs).sum()
}

async fn ended(store: &RedisStore) -> u64 {
    of_state(store, State::Succeeded).await
}

async fn running(store: &RedisStore) -> u64 {
    of_state(store, State::Running).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_under_load_loses_nothing_that_was_replicated_and_settles_nothing_twice() {
    let (mut primary, replica, address) = pair().await;
    let store = address.store().await;
    store.insert((1..=JOBS).map(job).collect(), SystemClock.now()).await.expect("insert answers");
    replicated(&mut primary.connection().await).await;
    let disturb = async {
        let half = async {
            while ended(&store).await < JOBS / 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, half).await.expect("jobs end");
        fail_over(&mut primary, &replica, &address).await;
    };
    let all = async { tokio::join!(work(&store, "w1", JOBS), work(&store, "w2", JOBS), disturb) };
    tokio::time::timeout(2 * PATIENCE, all).await.expect("every job ends or is leased");
    // What ran again because its end was lost has the same fence again, so that only what survives can tell.
    let ids: Vec<_> = (1..=JOBS).map(id).collect();
    let mut found = Vec::new();
    for ids in ids.chunks(100) {
        found.extend(persist(async || store.get(ids.to_vec()).await).await);
    }
    assert_eq!(found.len() as u64, JOBS, "no job is lost");
    for detail in &found {
        let once = usize::from(detail.job.state == State::Succeeded);
        assert_eq!((detail.runs.len(), detail.job.fence), (once, 1), "settled once: {detail:?}");
    }
    // A claim whose answer was lost holds its jobs until the lease is over; everything else has succeeded.
    let later = SystemClock.now() + LEASE_FOR + Duration::from_secs(1);
    let rescued = persist(async || store.rescue_expired(later, 1_000).await).await.changed;
    assert_eq!(ended(&store).await + rescued, JOBS);
    invariants::check(&store).await.expect("what is stored fits together");
}
