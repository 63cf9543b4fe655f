//! The controller against simulated providers, on a paused clock: minutes of traffic in a second. The figures are printed
//! (`cargo test -p longhaul-llm rate -- --nocapture`) and stand in `docs/rate-control.md`.

mod fairness;
mod headers;
mod local;
mod permits;
mod provider;
mod random;
mod silent;
mod traffic;
