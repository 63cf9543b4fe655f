//! `sim serve`: made-up answers over HTTP.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use longhaul_sim::{SimOptions, SimServer};
use tokio::signal::unix::{SignalKind, signal};

use crate::app::App;
use crate::args::SimServeArgs;
use crate::exit::{Code, Failure};

/// Runs the command until it is asked to end.
pub(crate) async fn serve(app: &App, args: &SimServeArgs) -> Result<Code> {
    if !args.host.is_loopback() {
        let text = format!("--host {} is not this machine alone", args.host);
        return Err(Failure::new(Code::Usage, text)
            .hint("the simulator knows no tokens: use 127.0.0.1")
            .into());
    }
    let mut interrupts = signal(SignalKind::interrupt()).context("catching signals")?;
    let mut terms = signal(SignalKind::terminate()).context("catching signals")?;
    let options = options(args)?;
    let address = SocketAddr::new(args.host, args.port);
    let server = SimServer::bind(options, address).await.map_err(|error| {
        Failure::new(Code::Failure, format!("cannot listen on {address}: {error}"))
            .hint("name another --port, or 0")
    })?;
    let base = format!("http://{}", server.address());
    app.out.one(&serde_json::json!({ "url": base }), || base.clone())?;
    app.out.note(format_args!("OpenAI form   {base}/v1      models sim-small, sim-large, sim-embed"));
    app.out.note(format_args!("Anthropic     {base}"));
    app.out.note(format_args!("Gemini        {base}/v1beta"));
    app.out.note(format_args!("what was paid {base}/sim/stats"));
    app.out.hint(format_args!("longhaul run prompts.txt --base-url {base}/v1 --model sim-small"));
    tokio::select! {
        _ = interrupts.recv() => {}
        _ = terms.recv() => {}
    }
    server.stop().await;
    Ok(Code::Ok)
}

/// The settings: flags, and over them the JSON of `--options`.
fn options(args: &SimServeArgs) -> Result<SimOptions> {
    let mut options = SimOptions { seed: args.seed, slots: args.slots, ..SimOptions::default() };
    options.require_key.clone_from(&args.require_key);
    options.log.clone_from(&args.log);
    options.latency.base_ms = u64::try_from(args.latency.as_millis()).unwrap_or(u64::MAX);
    options.limits.rpm = args.rpm;
    options.limits.tpm = args.tpm;
    options.faults.rate_429 = args.rate_429;
    options.faults.rate_5xx = args.rate_5xx;
    options.faults.rate_malformed = args.rate_malformed;
    options.faults.rate_drop = args.rate_drop;
    options.batch.time_scale = args.time_scale;
    let Some(text) = &args.options else { return Ok(options) };
    let wrong = |error: serde_json::Error| {
        Failure::new(Code::Usage, format!("--options cannot be used: {error}"))
            .hint("such as {\"faults\":{\"rate_timeout\":0.01},\"batch\":{\"expire_after\":0.5}}")
    };
    let over: serde_json::Value = serde_json::from_str(text).map_err(wrong)?;
    let mut whole = serde_json::to_value(&options)?;
    merge(&mut whole, over);
    Ok(serde_json::from_value(whole).map_err(wrong)?)
}

/// Lays one object over another, field by field.
fn merge(under: &mut serde_json::Value, over: serde_json::Value) {
    match (under, over) {
        (serde_json::Value::Object(under), serde_json::Value::Object(over)) => {
            for (name, value) in over {
                merge(under.entry(name).or_insert(serde_json::Value::Null), value);
            }
        }
        (under, over) => *under = over,
    }
}
