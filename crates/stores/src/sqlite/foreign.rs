//! Notices writes by other processes while a store is idle: the system reports writes to its write-ahead log, so nothing polls.
//! One descriptor and one thread serve all stores of the process. Linux only; elsewhere, or if the system refuses, the caller polls
//! instead.

use std::path::Path;
use std::sync::Weak;

use super::writer::Core;

/// Wakes the writer of this store at the next write to its log, once. False if that is not possible.
pub(super) fn wake_on_write(log: &Path, core: Weak<Core>) -> bool {
    platform::wake_on_write(log, core)
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

    use super::Core;

    /// Events read at once; more are read next.
    const BUFFER_BYTES: usize = 4_096;

    static LISTENER: OnceLock<Option<Listener>> = OnceLock::new();

    struct Listener {
        inotify: OwnedFd,
        /// By the number of the watch: the stores of this process that rest on one log.
        resting: Mutex<HashMap<i32, Vec<Weak<Core>>>>,
    }

    pub(super) fn wake_on_write(log: &Path, core: Weak<Core>) -> bool {
        let Some(listener) = LISTENER.get_or_init(start) else { return false };
        // Held over both steps: an event may come before the watch is in the table.
        let mut resting = listener.resting.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(watch) = add_watch(&listener.inotify, log, WatchFlags::MODIFY | WatchFlags::ONESHOT) else {
            return false;
        };
        let stores = resting.entry(watch).or_default();
        stores.retain(|store| store.strong_count() > 0);
        stores.push(core);
        true
    }

    fn start() -> Option<Listener> {
        let inotify = init(CreateFlags::CLOEXEC).ok()?;
        let thread = std::thread::Builder::new().name("longhaul-foreign-writes".to_owned());
        match thread.spawn(listen) {
            Ok(_) => Some(Listener { inotify, resting: Mutex::default() }),
            Err(error) => {
                debug!(%error, "no thread to listen for other processes: stores ask now and then");
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
                    debug!(%error, "other processes' writes are no longer heard");
                    return;
                }
            };
            let mut resting = listener.resting.lock().unwrap_or_else(PoisonError::into_inner);
            let stores: Vec<_> = if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                resting.drain().flat_map(|(_, stores)| stores).collect()
            } else {
                resting.remove(&watch).unwrap_or_default()
            };
            drop(resting);
            stores.iter().filter_map(Weak::upgrade).for_each(|core| core.wake());
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    use std::path::Path;
    use std::sync::Weak;

    use super::Core;

    pub(super) fn wake_on_write(_log: &Path, _core: Weak<Core>) -> bool {
        false
    }
}
