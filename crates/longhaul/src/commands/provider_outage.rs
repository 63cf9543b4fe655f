//! What people are told of a provider that answers nobody: one line when it begins and one when it is over; an error where it
//! never was there.

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use longhaul_llm::{Route, local};

use crate::app::App;
use crate::exit::{Code, Failure};

/// How often to look whether a provider was ever reached.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A provider from which nothing came for so long is asked whether it is there.
const SILENT_AFTER: Duration = Duration::from_secs(30);

/// An outage that was told of.
#[derive(Debug, Default)]
pub(crate) struct OutageNotice(Mutex<Option<Began>>);

#[derive(Debug, Clone, Copy)]
struct Began {
    at: Instant,
    answered: u64,
}

impl OutageNotice {
    /// Tells of what has changed. Between two calls that find out whether it is over nothing may wait for its end, so only an
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

/// Tells of a provider that has taken calls and answers nothing any more. They are waited for, since their answers may be on
/// their way; but nobody has to wonder meanwhile. `silence` is how long nothing was answered, and how much was before.
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
        // A slow model is no outage: its provider still says that it is there.
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

/// The error of a provider that was never there.
pub(crate) fn unreached(route: &Route, id: &str, why: Option<String>) -> Failure {
    let why = why.unwrap_or_else(|| format!("cannot connect to {}", route.base_url()));
    let first = match local::start_command(route.base_url()) {
        Some(command) => format!("start it with {command}"),
        None => {
            format!("check the network and the address {} of profile {}", route.base_url(), route.profile())
        }
    };
    Failure::new(Code::Unreachable, why)
        .hint(format_args!("{first}, then repeat the command; {id} is stored, and nothing was sent"))
}
