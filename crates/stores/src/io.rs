//! The thread that serves a server's connections. A worker renews its leases from a thread of its own so that a busy runtime
//! does not cost it its jobs; the connection must not depend on that runtime either.

use longhaul_queue::{Error, Result};
use tokio::runtime::{Builder, Handle, Runtime};

/// See the module.
pub(crate) struct Io(Option<Runtime>);

impl Io {
    pub(crate) fn start(thread: &str) -> Result<Self> {
        let failed = |error| Error::Unavailable(format!("the thread {thread} cannot be started: {error}"));
        let name = thread.to_owned();
        let build =
            move || Builder::new_multi_thread().worker_threads(1).enable_all().thread_name(name).build();
        // On a thread of its own: a runtime panics where the system has no thread left for it, and what is half made of it must not
        // be dropped inside of the caller's.
        let building = std::thread::Builder::new().spawn(build).map_err(failed)?;
        let built = building.join().unwrap_or_else(|_| Err(std::io::Error::other("no thread is left")));
        built.map(|runtime| Self(Some(runtime))).map_err(failed)
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
