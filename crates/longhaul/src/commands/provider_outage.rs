//! Reports provider outages: one line when an outage begins and one when it is over; an error if the provider was never
//! reached.

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use longhaul_llm::{Route, local};

use crate::app::App;
use crate::exit::{Code, Failure};

/// How often to look whether a provider was ever reached.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// After this long without an answer the provider is pinged.
const SILENT_AFTER: Duration = Duration::from_secs(30);

/// An outage that was reported.
#[derive(Debug, Default)]
pub(crate) struct OutageNotice(Mutex<Option<Began>>);

#[derive(Debug, Clone, Copy)]
struct Began {
    at: Instant,
    answered: u64,
}

impl OutageNotice {
    /// Reports what has changed. Between two probes it may happen that no request waits for the end of the outage, so only an
    /// answer ends it.
    pub(crate) fn look(&self, app: &App, outage: Option<&str>, answered: u64) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (*told, outage) {
            (None, Some(why)) => {
                app.out.warn(format_args!("the provider does not answer, so the rest waits for it: {why}"));
                *told = Some(Began { at: Instant::now(), answered });
            }
            (Some(began), None) if answered > began.answered => {
                let seconds = began.at.elapsed().as_secs();
                app.out.note(format_args!("the provider answers again after {seconds} s"));
                *told = None;
            }
            _ => {}
        }
    }

    /// Whether one lasts.
    pub(crate) fn is_told(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// Reports a provider that has accepted calls and no longer answers. The calls are waited for, since their answers may be on
/// their way; the message says so meanwhile. `silence` is how long nothing was answered, and how much was before.
pub(crate) async fn tell_silence(
    app: &App,
    route: &Route,
    notice: &OutageNotice,
    silence: impl Fn() -> (Duration, u64),
) -> Infallible {
    loop {
        tokio::time::sleep(SILENT_AFTER).await;
        let (since, answered) = silence();
        if since < SILENT_AFTER || notice.is_told() {
            continue;
        }
        // A slow model is not an outage: its provider still answers the ping.
        if let Err(error) = route.ping().await
            && error.class.is_no_answer()
        {
            notice.look(app, Some(&error.to_string()), answered);
        }
    }
}

/// Returns when a call could not connect and none ever did. Later it is an outage, which is waited for.
pub(crate) async fn never_reached(route: &Route) {
    while !route.is_unreached() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The error for a provider that was never reached.
pub(crate) fn unreached(route: &Route, id: &str, why: Option<String>) -> Failure {
    let why = why.unwrap_or_else(|| format!("cannot connect to {}", route.base_url()));
    let first = match local::start_command(route.base_url()) {
        Some(command) => format!("start it with {command}"),
        None if route.profile() == route.base_url() => {
            format!("check the network and the address {}", route.base_url())
        }
        None => {
            format!("check the network and the address {} of profile {}", route.base_url(), route.profile())
        }
    };
    Failure::new(Code::Unreachable, why)
        .hint(format_args!("{first}, then repeat the command; {id} is stored, and nothing was sent"))
}
