//! Notices writes by other processes while a file is idle: the system reports writes to its write-ahead log, so nothing polls.
//! One descriptor and one thread serve all files of the process. Linux only; elsewhere, or if the system refuses, the caller polls
//! instead.

use std::path::Path;
use std::sync::{Arc, Weak};

/// What is woken.
pub(crate) trait Wake: Send + Sync {
    fn wake(self: Arc<Self>);
}

/// Wakes the writer of this file at the next write to its log, once. False if that is not possible.
pub(crate) fn wake_on_write(log: &Path, writer: Weak<dyn Wake>) -> bool {
    platform::wake_on_write(log, writer)
}

#[cfg(target_os = "linux")]
mod platform {
    use std::collections::HashMap;
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::sync::{Mutex, OnceLock, PoisonError, Weak};

    use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
    use tracing::debug;

    use super::Wake;

    /// Events read at once; more are read next.
    const BUFFER_BYTES: usize = 4_096;

    static LISTENER: OnceLock<Option<Listener>> = OnceLock::new();

    struct Listener {
        inotify: OwnedFd,
        /// By the number of the watch: the writers of this process that rest on one log.
        resting: Mutex<HashMap<i32, Vec<Weak<dyn Wake>>>>,
    }

    pub(super) fn wake_on_write(log: &Path, writer: Weak<dyn Wake>) -> bool {
        let Some(listener) = LISTENER.get_or_init(start) else { return false };
        // Held over both steps: an event may come before the watch is in the table.
        let mut resting = listener.resting.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(watch) = add_watch(&listener.inotify, log, WatchFlags::MODIFY | WatchFlags::ONESHOT) else {
            return false;
        };
        let writers = resting.entry(watch).or_default();
        writers.retain(|writer| writer.strong_count() > 0);
        writers.push(writer);
        true
    }

    fn start() -> Option<Listener> {
        let inotify = init(CreateFlags::CLOEXEC).ok()?;
        let thread = std::thread::Builder::new().name("longhaul-foreign-writes".to_owned());
        match thread.spawn(listen) {
            Ok(_) => Some(Listener { inotify, resting: Mutex::default() }),
            Err(error) => {
                debug!(%error, "no thread to listen for other processes: writers poll");
                None
            }
        }
    }

    fn listen() {
        // The code that fills this has started the thread.
        let Some(listener) = LISTENER.wait() else { return };
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut events = Reader::new(&listener.inotify, &mut buffer);
        loop {
            let (watch, flags) = match events.next() {
                Ok(event) => (event.wd(), event.events()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => {
                    debug!(%error, "other processes' writes are no longer noticed");
                    return;
                }
            };
            let mut resting = listener.resting.lock().unwrap_or_else(PoisonError::into_inner);
            let writers: Vec<_> = if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                resting.drain().flat_map(|(_, writers)| writers).collect()
            } else {
                resting.remove(&watch).unwrap_or_default()
            };
            drop(resting);
            writers.iter().filter_map(Weak::upgrade).for_each(Wake::wake);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    use std::path::Path;
    use std::sync::Weak;

    use super::Wake;

    pub(super) fn wake_on_write(_log: &Path, _writer: Weak<dyn Wake>) -> bool {
        false
    }
}
