//! The signatures of both halves of the seam, once, for stores that stand in front of another.

/// Implements [`Store`](crate::store::Store) and [`EngineStore`](crate::store::EngineStore) for a store with a field `inner`. Each
/// call that can fail becomes `$around!(self.name(arguments))`, an expression that makes the call and gives its reply; the others
/// go straight to `inner`. A store that hears of changes elsewhere than `inner` gives its own `spawn_on_listener`.
#[macro_export]
macro_rules! forward_store {
    ($store:ty, $around:ident) => {
        $crate::forward_store! { $store, $around, {
            fn spawn_on_listener(&self, task: $crate::store::Task) -> Option<$crate::store::Task> {
                self.inner.spawn_on_listener(task)
            }
        } }
    };
    ($store:ty, $around:ident, { $($listener:tt)* }) => {
        $crate::forward_store! { @half $store, $around, Store {
            fn caps(&self) -> $crate::store::Caps {
                self.inner.caps()
            }

            fn clock(&self) -> Option<std::sync::Arc<dyn $crate::Clock>> {
                self.inner.clock()
            }

            fn watch(&self) -> tokio::sync::watch::Receiver<u64> {
                self.inner.watch()
            }
        } {
            insert(jobs: Vec<$crate::NewJob>, now: $crate::Timestamp) -> Vec<$crate::store::Enqueued>;
            get(ids: Vec<$crate::JobId>) -> Vec<$crate::JobDetail>;
            list(request: $crate::store::ListRequest) -> $crate::store::Page<$crate::Job>;
            counts() -> Vec<$crate::store::Count>;
            unpark(request: $crate::store::UnparkRequest) -> $crate::store::Unparked;
            cancel(ids: Vec<$crate::JobId>, now: $crate::Timestamp) -> Vec<$crate::store::CancelReply>;
            retry(request: $crate::store::RetryRequest) -> Vec<$crate::Result<$crate::State>>;
            unhold(id: $crate::JobId, now: $crate::Timestamp) -> $crate::State;
            edit(id: $crate::JobId, change: $crate::JobChange, now: $crate::Timestamp) -> $crate::State;
            run_now(id: $crate::JobId, now: $crate::Timestamp) -> $crate::State;
            results(process_id: $crate::ProcessId, after: i64, limit: usize)
                -> $crate::store::Page<$crate::job::JobResult>;
            delete(ids: Vec<$crate::JobId>) -> $crate::store::Deleted;
            queues() -> Vec<$crate::store::QueueInfo>;
            set_queue(change: $crate::store::QueueChange) -> ();
            processes(after: Option<$crate::ProcessId>, limit: usize) -> Vec<$crate::store::ProcessInfo>;
            process(id: $crate::ProcessId) -> Option<$crate::store::ProcessInfo>;
            seal(id: $crate::ProcessId, sealed: bool, now: $crate::Timestamp) -> ();
            schedules() -> Vec<$crate::store::Schedule>;
            put_schedule(schedule: $crate::store::Schedule) -> ();
            delete_schedule(name: String) -> bool;
            workers(now: $crate::Timestamp) -> Vec<$crate::store::WorkerInfo>;
            events(after: Option<u64>, limit: usize) -> $crate::events::EventPage;
        } }
        $crate::forward_store! { @half $store, $around, EngineStore {
            $($listener)*

            async fn register_local_worker(&self, worker: $crate::WorkerId) {
                self.inner.register_local_worker(worker).await;
            }
        } {
            claim(request: $crate::store::ClaimRequest) -> Vec<$crate::Claimed>;
            extend(request: $crate::store::ExtendRequest) -> Vec<$crate::store::Renewal>;
            save(lease: $crate::Lease, save: $crate::store::Save, now: $crate::Timestamp) -> ();
            settle(items: Vec<$crate::store::SettleItem>, now: $crate::Timestamp) -> Vec<$crate::store::Settled>;
            cancelling(worker: $crate::WorkerId) -> Vec<$crate::JobId>;
            promote_due(now: $crate::Timestamp, limit: usize) -> $crate::store::Swept;
            rescue_expired(now: $crate::Timestamp, limit: usize) -> $crate::store::Swept;
            prune(now: $crate::Timestamp, limit: usize) -> $crate::store::Swept;
            fire(firing: $crate::store::Firing, now: $crate::Timestamp) -> bool;
            heartbeat(worker: $crate::store::WorkerInfo) -> ();
            verify() -> ();
            ledger() -> Vec<$crate::store::LedgerRow>;
            record(name: String) -> Option<$crate::store::Record>;
            put_record(name: String, expected: u64, value: $crate::Json) -> bool;
            export(after: Option<String>, limit: usize) -> $crate::store::ExportPage;
            import(pieces: Vec<$crate::store::ExportRecord>) -> ();
        } }
    };
    (@half $store:ty, $around:ident, $half:ident { $($plain:tt)* } {
        $($name:ident($($argument:ident: $type:ty),*) -> $reply:ty;)*
    }) => {
        #[async_trait::async_trait]
        impl $crate::store::$half for $store {
            $($plain)*

            $(async fn $name(&self $(, $argument: $type)*) -> $crate::Result<$reply> {
                $around!(self.$name($($argument),*))
            })*
        }
    };
}
