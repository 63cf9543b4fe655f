//! The thread that serves a server's connections. A worker renews its leases from a thread of its own so that a busy runtime
//! does not cost it its jobs; the connection must not depend on that runtime either.

use longhaul_queue::{Error, Result};
use tokio::runtime::{Builder, Handle, Runtime};

/// See the module.
pub(crate) struct Io(Option<Runtime>);

impl Io {
    pub(crate) fn start(thread: &str) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().thread_name(thread).build();
        let failed = |error| Error::Unavailable(format!("the thread {thread} cannot be started: {error}"));
        runtime.map(|runtime| Self(Some(runtime))).map_err(failed)
    }

    pub(crate) fn handle(&self) -> Result<Handle> {
        let gone = || Error::Unavailable("the store is closed".to_owned());
        self.0.as_ref().map(|runtime| runtime.handle().clone()).ok_or_else(gone)
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Without waiting: this may be dropped by a task.
            runtime.shutdown_background();
        }
    }
}
