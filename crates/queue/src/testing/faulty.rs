//! A store that fails on demand: at a given call, before it was carried out or after. The second is the nasty one,
//! where the caller cannot know.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;

use crate::error::Error;
use crate::store::{EngineStore, Task};

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is not carried out.
    Before,
    /// It is carried out, and its reply is lost.
    After,
}

/// A store that fails on demand.
pub struct FaultyStore {
    inner: Arc<dyn EngineStore>,
    plan: Mutex<Plan>,
    listener: Option<Handle>,
}

#[derive(Default)]
struct Plan {
    calls: u64,
    faults: HashMap<u64, Fault>,
}

impl FaultyStore {
    /// A store that works until told otherwise.
    pub fn new(inner: Arc<dyn EngineStore>) -> Self {
        Self { inner, plan: Mutex::default(), listener: None }
    }

    /// One that hears of changes on a runtime of its own, as a server's store does.
    #[must_use]
    pub fn hearing_on(self, runtime: Handle) -> Self {
        Self { listener: Some(runtime), ..self }
    }

    /// Lets call `number` fail with `Unavailable`, counted from 1 over all async methods.
    pub fn fail_call(&self, number: u64, fault: Fault) {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).faults.insert(number, fault);
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).calls
    }

    /// Counts a call and says what is to become of it.
    fn count(&self) -> Option<Fault> {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        plan.calls += 1;
        let number = plan.calls;
        plan.faults.remove(&number)
    }
}

/// Makes a call, or fails it.
macro_rules! faulty {
    ($self:ident.$name:ident($($argument:ident),*)) => {{
        let fault = $self.count();
        if fault == Some(Fault::Before) {
            return Err(Error::Unavailable(concat!(stringify!($name), " was not carried out").to_owned()));
        }
        let reply = $self.inner.$name($($argument),*).await;
        if fault == Some(Fault::After) {
            return Err(Error::Unavailable(concat!("the reply of ", stringify!($name), " is lost").to_owned()));
        }
        reply
    }};
}

crate::forward_store!(FaultyStore, faulty, {
    fn spawn_on_listener(&self, task: Task) -> Option<Task> {
        match &self.listener {
            Some(listener) => {
                listener.spawn(task);
                None
            }
            None => self.inner.spawn_on_listener(task),
        }
    }
});
